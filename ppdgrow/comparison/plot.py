"""The picture of a comparison: validation loss of every arm over steps, FLOPs and wall-clock, seeds as bands.

Above the losses themselves, below them their difference to the baseline. A mark on a curve is an insertion. Beside them
the final loss of every run over its FLOPs, with the front of the ungrown ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from ppdgrow.comparison.columns import AXIS_TEXT, LOSS
from ppdgrow.comparison.compare import Comparison
from ppdgrow.comparison.criteria import loss_unit
from ppdgrow.comparison.curves import AXES, Axis, Band, bands, costed_points, difference_band
from ppdgrow.comparison.front import Front, is_ungrown, total_flops
from ppdgrow.comparison.measures import ComparedArm, ComparedRun, several_seeds
from ppdgrow.console.picture import COLOURS, INK, new_figure, render

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# Lines of the arms after the baseline, whose line is black and wide: twelve colours, then the same with other dashes.
DASHES = ("-", "--", "-.", ":")
# Letters that fit below the panels, the strokes counted as letters.
LEGEND = 170
# What decides is the difference to the front of each seed.
FRONT_OF_MEANS = "front of ungrown means (judged by seed)"
# Losses are shown from this share of the longest run on, and differences are scaled to the second half: what comes
# before is a fall that hides all else.
SHOWN_FROM = 0.12
SCALED_FROM = 0.5


def draw_comparison(comparison: Comparison, file_format: str) -> bytes:
    """The bytes of the picture, `svg` or `png`; the same comparison gives the same bytes."""
    from matplotlib.ticker import EngFormatter

    with new_figure(16, 7.5) as figure:
        grid = figure.add_gridspec(2, len(AXES) + 1)
        top = [figure.add_subplot(grid[0, column]) for column in range(len(AXES))]
        rows = [top, [figure.add_subplot(grid[1, column], sharex=axes) for column, axes in enumerate(top)]]
        _front(figure.add_subplot(grid[:, -1]), comparison)
        for axis, losses, differences in zip(AXES, *rows, strict=True):
            _losses(losses, comparison, axis)
            _differences(differences, comparison, axis)
            differences.set_xlabel(AXIS_TEXT[axis].label)
            differences.set_xlim(left=0)
            if axis == "flops":
                differences.xaxis.set_major_formatter(EngFormatter())
        unit = loss_unit(comparison.baseline.first.history)
        rows[0][0].set_ylabel(f"{LOSS}, {unit}")
        rows[1][0].set_ylabel(f"minus {comparison.baseline.name}", parse_math=False)
        _legend(figure, comparison)
        return render(figure, file_format)


def _losses(axes: Axes, comparison: Comparison, axis: Axis) -> None:
    curves = bands([arm.histories for arm in comparison.arms], axis)
    for place, (arm, band) in enumerate(zip(comparison.arms, curves, strict=True)):
        _curve(axes, band, place)
        _mark_insertions(axes, arm, place, axis)
    first = SHOWN_FROM * max((band.at[-1] for band in curves if band.at), default=0.0)
    _frame(axes, [value for band in curves for value in _values(band, first)])


def _differences(axes: Axes, comparison: Comparison, axis: Axis) -> None:
    axes.axhline(0, color=INK, linewidth=1.6)
    scaled = [0.0]
    for place, arm in enumerate(comparison.arms):
        if arm.pairs and arm.comparable and not arm.is_baseline:
            band = difference_band([(run.reference, run.history) for run in arm.pairs], axis)
            _curve(axes, band, place)
            scaled += _values(band, SCALED_FROM * max(band.at, default=0.0))
    _frame(axes, scaled)


def _front(axes: Axes, comparison: Comparison) -> None:
    """Final loss over all training FLOPs: a point for each run, grown ones joined to where they grew; the front."""

    from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

    for place, arm in enumerate(comparison.arms):
        for run in arm.runs:
            cost, loss = total_flops(run.history), run.validation.loss
            joined = [*((at, before) for _, at, before in _insertions(run, "flops")), (cost, loss)]
            axes.plot(*zip(*joined, strict=True), ":", color=_colour(place))
            axes.plot([cost], [loss], "D" if run.insertions else "o", markersize=5, color=_colour(place))
    ungrown = [arm for arm in comparison.arms if arm.comparable and all(map(is_ungrown, arm.histories))]
    points = [
        (fmean(map(total_flops, arm.histories)), fmean(run.validation.loss for run in arm.runs)) for arm in ungrown
    ]
    if len(points) > 1:
        front = Front.of(points)
        line = dict.fromkeys([*front.points, (front.largest, front.points[-1][1])])
        label = FRONT_OF_MEANS if any(len(arm.runs) > 1 for arm in ungrown) else "front of ungrown runs"
        axes.plot(*zip(*line, strict=True), color="#888888", linewidth=1.0, zorder=0, label=label)
        axes.legend(frameon=False, loc="upper right")
    _frame(axes, [])
    axes.set_xscale("log")
    axes.margins(x=0.1)
    axes.autoscale(axis="x")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7)))
    axes.xaxis.set_major_formatter(EngFormatter())
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("training FLOPs in all, logarithmic")
    axes.set_ylabel(f"final {LOSS}")


def _insertions(run: ComparedRun, axis: Axis) -> list[tuple[int, float, float]]:
    """Step, cost and loss before each insertion of a run, where they are known."""
    known = costed_points(run.history, axis)
    if not known:
        return []
    steps, costs = [point.step for point, _ in known], [cost for _, cost in known]
    found = [(insertion.step, insertion.loss_before) for insertion in run.insertions]
    return [(step, float(np.interp(step, steps, costs)), loss) for step, loss in found if loss is not None]


def _curve(axes: Axes, band: Band, place: int) -> None:
    if band.at:
        axes.plot(band.at, band.mean, **_stroke(place))
    if band.low != band.high:
        axes.fill_between(band.at, band.low, band.high, color=_colour(place), alpha=0.15, linewidth=0)


def _colour(place: int) -> str:
    return INK if place == 0 else COLOURS[(place - 1) % len(COLOURS)]


def _stroke(place: int) -> dict[str, Any]:
    """Colour, dashes and width of an arm's line."""
    turn = place - 1 + (place - 1) // len(COLOURS)  # the dashes move on by one where the colours begin again
    dash = "-" if place == 0 else DASHES[turn % len(DASHES)]
    return {"color": _colour(place), "linestyle": dash, "linewidth": 2.4 if place == 0 else 1.5}


def _mark_insertions(axes: Axes, arm: ComparedArm, place: int, axis: Axis) -> None:
    """An open circle for each step at which seeds of an arm grew, at the mean of their losses before it."""
    marks: dict[int, list[tuple[float, float]]] = {}
    for run in arm.runs:
        for step, cost, before in _insertions(run, axis):
            marks.setdefault(step, []).append((cost, before))
    for found in marks.values():
        at, before = (fmean(column) for column in zip(*found, strict=True))
        axes.plot([at], [before], "o", markersize=6, markerfacecolor="white", markeredgecolor=_colour(place))


def _values(band: Band, first: float) -> list[float]:
    """Mean, lowest and highest from a place on."""
    rows = zip(band.at, band.mean, band.low, band.high, strict=True)
    return [value for at, *values in rows if at >= first for value in values]


def _frame(axes: Axes, values: Sequence[float]) -> None:
    """The grid, and limits between which these values fit."""
    axes.grid(color="#DDDDDD", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if values and max(values) > min(values):
        margin = 0.06 * (max(values) - min(values))
        axes.set_ylim(min(values) - margin, max(values) + margin)


def _legend(figure: Figure, comparison: Comparison) -> None:
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], **_stroke(place)) for place in range(len(comparison.arms))]
    columns = max(1, min(4, LEGEND // (8 + max(len(arm.name) for arm in comparison.arms))))
    legend = figure.legend(handles, [""] * len(handles), loc="outside lower center", ncols=columns, frameon=False)
    for text, arm in zip(legend.get_texts(), comparison.arms, strict=True):
        text.set_parse_math(False)  # an arm may be called $x$,
        text.set_text(arm.name)  # or _x, which matplotlib would hide as a label
    several = several_seeds(comparison.arms)
    shaded = "lines are means over seeds, bands reach from the lowest to the highest seed; " if several else ""
    figure.suptitle(f"{shaded}open circles are insertions; right: one point per run, diamonds are grown", fontsize=9)
