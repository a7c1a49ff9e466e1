"""The picture of a probe: gradient norm and activity of each block, in the order in which blocks are applied.

Kinds differ in colour, in lightness and in marker, so that the picture survives a grey printer and colour-blind eyes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import cycle
from typing import TYPE_CHECKING

from ppdgrow.config.kinds import KINDS
from ppdgrow.console.picture import INK, new_figure, render
from ppdgrow.probing.report import IDLE_ACTIVITY, BlockReport

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Colour (Okabe & Ito 2008) and marker by kind of block, in the order of the kinds; an open circle for ordinary layers.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#000000", "#F0E442", "#56B4E9", "#999999")
MARKERS = ("s", "^", "D", "v", "P", "X", "*", "p", "h", "<", ">")
STYLES = {"layer": ("none", "o")} | {
    f"{kind} pair": style for kind, style in zip(KINDS, zip(cycle(COLOURS), cycle(MARKERS), strict=False), strict=False)
}
MAX_LABELS = 40
WIDE_RANGE = 30.0


def draw(blocks: Sequence[BlockReport], file_format: str, *, title: str) -> bytes:
    """The bytes of the picture; the same blocks give the same bytes."""
    with new_figure(min(16.0, 4.0 + 0.3 * len(blocks)), 5.0) as figure:
        upper, lower = figure.subplots(2, 1, sharex=True)
        _panel(upper, blocks, lambda block: block.gradient_norm, "gradient norm")
        _panel(lower, blocks, lambda block: block.activity, "activity  |B(x) - x| / |x|")
        _axis_of_activity(lower, blocks)
        places = range(0, len(blocks), -(-len(blocks) // MAX_LABELS))
        lower.set_xticks(places, [blocks[place].id for place in places], rotation=90 if len(blocks) > 16 else 0)
        lower.set_xlabel("block, in order of application")
        figure.suptitle(title, parse_math=False)  # a folder may be called $x$
        figure.legend(*upper.get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
        return render(figure, file_format)


def _panel(axes: Axes, blocks: Sequence[BlockReport], read: Callable[[BlockReport], float], name: str) -> None:
    """One figure per block, joined by a thin line, marked by kind; what is not finite is left out."""
    values = [read(block) for block in blocks]
    shown = [value if math.isfinite(value) else math.nan for value in values]
    axes.plot(range(len(blocks)), shown, color="#999999", linewidth=0.8, zorder=1)
    for kind, (colour, marker) in STYLES.items():
        places = [place for place, block in enumerate(blocks) if block.kind == kind]
        if places:
            axes.scatter(
                places,
                [shown[place] for place in places],
                s=48,
                marker=marker,
                facecolors="white" if colour == "none" else colour,
                edgecolors=INK,
                linewidths=0.8,
                label=kind,
                zorder=2,
            )
    finite = [value for value in values if math.isfinite(value)]
    if finite and 0 < min(finite) * WIDE_RANGE < max(finite):
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    axes.set_ylabel(name)
    axes.grid(axis="y", color="#DDDDDD", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _axis_of_activity(axes: Axes, blocks: Sequence[BlockReport]) -> None:
    """Where a pair is next to an identity, the axis shows by how much: linear below the idle threshold, log above."""
    if any(block.activity < WIDE_RANGE * IDLE_ACTIVITY for block in blocks if block.kind != "layer"):
        axes.set_yscale("symlog", linthresh=IDLE_ACTIVITY)
        finite = [block.activity for block in blocks if math.isfinite(block.activity)]
        axes.set_ylim(-IDLE_ACTIVITY / 8, 2 * max([IDLE_ACTIVITY, *finite]))
        axes.axhline(IDLE_ACTIVITY, color=INK, linewidth=0.8, linestyle="--", zorder=1)
        axes.annotate(
            f"idle below {IDLE_ACTIVITY:g}",
            (1, IDLE_ACTIVITY),
            xycoords=("axes fraction", "data"),
            xytext=(0, 3),
            textcoords="offset points",
            horizontalalignment="right",
            fontsize=8,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
        )
