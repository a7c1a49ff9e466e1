"""The picture of a comparison: validation loss of every arm over steps, FLOPs and wall-clock, seeds as bands.

Above the losses themselves, below them their difference to the baseline. A mark on a curve is an insertion.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ppdgrow.experiment.comparison.criteria import loss_unit
from ppdgrow.experiment.comparison.curves import AXES, Axis, Band, bands, cost_of, difference_band
from ppdgrow.experiment.comparison.figures import ComparedArm
from ppdgrow.experiment.picture import COLOURS, INK, new_figure, render

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ppdgrow.experiment.comparison.compare import Comparison

# Lines of the arms after the baseline, whose line is black and wide: twelve that differ in colour, or in dashes.
DASHES = ("-", "--", "-.", ":")
NAMES: dict[Axis, str] = {"steps": "optimizer steps", "flops": "training FLOPs", "seconds": "seconds of training steps"}
# Losses are shown from this share of the longest run on, and differences are scaled to the second half: what comes
# before is a fall that hides all else.
SHOWN_FROM = 0.12
SCALED_FROM = 0.5


def draw_comparison(comparison: Comparison, file_format: str) -> bytes:
    """The bytes of the picture, `svg` or `png`; the same comparison gives the same bytes."""
    from matplotlib.ticker import EngFormatter

    with new_figure(12.5, 7.5) as figure:
        rows = figure.subplots(2, len(AXES))
        for axis, losses, differences in zip(AXES, *rows, strict=True):
            _losses(losses, comparison, axis)
            _differences(differences, comparison, axis)
            differences.set_xlabel(NAMES[axis])
            if axis == "flops":
                for panel in (losses, differences):
                    panel.xaxis.set_major_formatter(EngFormatter())
        unit = loss_unit(comparison.baseline.first.history)
        rows[0][0].set_ylabel(f"validation loss, {unit}")
        rows[1][0].set_ylabel(f"less that of {comparison.baseline.name}", parse_math=False)
        _legend(figure, rows[0][0], comparison)
        return render(figure, file_format)


def _losses(axes: Axes, comparison: Comparison, axis: Axis) -> None:
    curves = bands([[run.history for run in arm.runs] for arm in comparison.arms], axis)
    for place, (arm, band) in enumerate(zip(comparison.arms, curves, strict=True)):
        _curve(axes, band, place, label=arm.name)
        _mark_insertions(axes, arm, place, axis)
    _frame(axes)
    ends = [band for band in curves if band.at]
    if ends:
        first = SHOWN_FROM * max(band.at[-1] for band in ends)
        shown = [
            value
            for band in ends
            for at, *values in zip(*_columns(band), strict=True)
            if at >= first
            for value in values
        ]
        _limit(axes, shown)


def _differences(axes: Axes, comparison: Comparison, axis: Axis) -> None:
    axes.axhline(0, color=INK, linewidth=1.6)
    scaled: list[float] = [0.0]
    for place, arm in enumerate(comparison.arms):
        if arm.is_baseline or not arm.pairs:
            continue
        band = difference_band([(run.reference, run.history) for run in arm.pairs], axis)
        _curve(axes, band, place)
        if band.at:
            late = SCALED_FROM * band.at[-1]
            scaled += [value for at, *values in zip(*_columns(band), strict=True) if at >= late for value in values]
    _frame(axes)
    _limit(axes, scaled)


def _curve(axes: Axes, band: Band, place: int, label: str | None = None) -> None:
    if not band.at:
        return
    colour, dash = _line(place)
    axes.plot(band.at, band.mean, color=colour, linestyle=dash, linewidth=2.2 if place == 0 else 1.3, label=label)
    if band.low != band.high:
        axes.fill_between(band.at, band.low, band.high, color=colour, alpha=0.15, linewidth=0)


def _line(place: int) -> tuple[str, str]:
    return (INK, "-") if place == 0 else (COLOURS[(place - 1) % len(COLOURS)], DASHES[(place - 1) % len(DASHES)])


def _mark_insertions(axes: Axes, arm: ComparedArm, place: int, axis: Axis) -> None:
    """An open circle at each growth of the first run of an arm, at the loss before it."""
    history = arm.first.history
    losses = {insertion.step: insertion.loss_before for insertion in arm.first.insertions}
    for point in history.metrics.evaluations:
        loss, cost = losses.get(point.step), cost_of(history, point, axis)
        if loss is not None and cost is not None:
            colour, _ = _line(place)
            axes.plot([cost], [loss], "o", markersize=6, markerfacecolor="white", markeredgecolor=colour)


def _columns(band: Band) -> Sequence[Sequence[float]]:
    return band.at, band.mean, band.low, band.high


def _limit(axes: Axes, values: Sequence[float]) -> None:
    if values and max(values) > min(values):
        margin = 0.06 * (max(values) - min(values))
        axes.set_ylim(min(values) - margin, max(values) + margin)


def _frame(axes: Axes) -> None:
    axes.grid(color="#DDDDDD", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_xlim(left=0)
    axes.spines[["top", "right"]].set_visible(False)


def _legend(figure: Figure, axes: Axes, comparison: Comparison) -> None:
    handles, labels = axes.get_legend_handles_labels()
    legend = figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    for text in legend.get_texts():
        text.set_parse_math(False)  # an arm may be called $x$
    shaded = (
        "lines are means over seeds, bands reach from the lowest to the highest seed; "
        if comparison.several_seeds
        else ""
    )
    figure.suptitle(f"{shaded}open circles are insertions", fontsize=9)
