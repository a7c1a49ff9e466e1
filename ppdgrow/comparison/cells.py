"""How the figures of a comparison are written: the cells of its tables, on a terminal and on a page."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from ppdgrow.comparison.criteria import (
    CHEAPER_FLOPS,
    CHEAPER_SECONDS,
    COMPARABLE_ACCURACY,
    NO_INSERTION_SPIKE,
    Criterion,
)
from ppdgrow.comparison.curves import Axis
from ppdgrow.comparison.figures import ComparedArm, ComparedRun
from ppdgrow.comparison.history import join_seeds
from ppdgrow.comparison.insertions import Insertion
from ppdgrow.statistics import Estimate

NOTHING = "-"
_PASSED = {True: "pass", False: "fail", None: "not judged"}


def spread(found: Estimate, digits: int) -> str:
    """The mean, and the standard deviation where there are several values."""
    deviation = "" if found.deviation is None else f" sd {found.deviation:.{digits}f}"
    return f"{found.mean:.{digits}f}{deviation}"


def spread_if_known(found: Estimate | None, digits: int, unit: str = "") -> str:
    """As `spread`, with a unit; a dash where there is no figure."""
    return NOTHING if found is None else f"{spread(found, digits)}{unit}"


def with_interval(difference: Estimate, digits: int) -> str:
    """The mean of a difference with its sign, and the 95 % interval where there are several values."""
    return f"{difference.mean:+.{digits}f}{interval(difference.low, difference.high, digits)}"


def interval(low: float | None, high: float | None, digits: int, sign: str = "+") -> str:
    """` [low, high]`, or nothing."""
    return "" if low is None or high is None else f" [{low:{sign}.{digits}f}, {high:{sign}.{digits}f}]"


def exact(jump: float) -> str:
    """A change of the loss; nothing but zero is written 0."""
    return "0" if jump == 0 else f"{jump:.3g}"


def seeds(arm: ComparedArm) -> str:
    """The seeds of an arm, separated by commas."""
    left_out = f" ({len(arm.left_out)} left out)" if arm.left_out else ""
    return (join_seeds(run.history for run in arm.runs) or NOTHING) + left_out


def layers(run: ComparedRun) -> str:
    """The depth of a run, `6 -> 12 at step 400` where it grew."""
    changes = [event for event in run.history.surgery if event.layers_after is not None]
    if not changes or changes[0].layers_before is None:
        return str(run.history.architecture.num_layers)
    return str(changes[0].layers_before) + "".join(f" -> {e.layers_after} at step {e.step:,}" for e in changes)


def insertion_cell(arm: ComparedArm) -> str:
    """The largest change of the loss by an insertion, in any seed."""
    jumps = [i.jump for run in arm.runs for i in run.insertions if i.jump is not None]
    return exact(max(jumps, key=abs)) if jumps else NOTHING


def cost_cell(arm: ComparedArm, axis: Axis) -> str:
    """Cost to the baseline's final loss over the baseline's own, or how many seeds reached it."""
    if arm.is_baseline or not arm.pairs:
        return NOTHING
    ratio, reached = arm.cost_to_loss(axis), arm.reached(axis)
    if not arm.recorded(axis):
        return NOTHING
    if ratio is None:
        return "not reached" if not reached else f"reached by {reached} of {len(arm.pairs)}"
    return f"{ratio.mean:.2f}{interval(ratio.low, ratio.high, 2, '')}"


def gradient_spikes(arm: ComparedArm) -> str:
    """Gradient spikes of old and new parameters in all seeds together."""
    old, new = (
        [getattr(run.gradient_spikes, group) for run in arm.runs if getattr(run.gradient_spikes, group) is not None]
        for group in ("old", "new")
    )
    shown = [str(sum(counts)) if counts else NOTHING for counts in (old, new)]
    return " / ".join(shown) if new else shown[0]


def before_after(insertions: Sequence[Insertion]) -> str:
    """The losses right before and after an insertion, mean over the seeds, with as many digits as tell them apart."""
    measured = [(i.loss_before, i.loss_after) for i in insertions]
    known = [(b, a) for b, a in measured if b is not None and a is not None]
    if not insertions:
        return NOTHING
    if len(known) < len(measured):
        return "not measured"
    before, after = (fmean(column) for column in zip(*known, strict=True))
    shown = f"{before:.6f}", f"{after:.6f}"
    if shown[0] == shown[1] and any(insertion.jump for insertion in insertions):
        shown = repr(before), repr(after)
    return f"{shown[0]} / {shown[1]}"


def bump(insertions: Sequence[Insertion]) -> str:
    """The growth bump, and the steps until the loss before it was reached again; means over the seeds."""
    bumps = [insertion.growth_bump for insertion in insertions]
    known = [value for value in bumps if value is not None]
    if not known or len(known) < len(bumps):
        return NOTHING
    steps = [insertion.steps_to_recover for insertion in insertions]
    recovered = [value for value in steps if value is not None]
    told = f"{fmean(recovered):,.0f}" if len(recovered) == len(steps) else "not recovered"
    return f"{fmean(known):+.4f}, {told}"


def outcome(criterion: Criterion) -> str:
    """`pass`, `fail` or `not judged`."""
    return _PASSED[criterion.passed]


def figure(criterion: Criterion) -> str:
    """The figure of a criterion with its interval and unit."""
    value = criterion.value
    if value is None:
        return NOTHING
    if criterion.name == NO_INSERTION_SPIKE:
        return exact(value)
    ratio = criterion.name in (CHEAPER_FLOPS, CHEAPER_SECONDS)
    digits, unit = (2, "") if ratio else (2, " pt") if criterion.name == COMPARABLE_ACCURACY else (4, "")
    sign = "" if ratio else "+"
    deciding = {"mean": value, "low": criterion.low, "high": criterion.high}[criterion.judged]
    # A figure that rounds to its bound would contradict the verdict beside it.
    while deciding is not None and deciding != criterion.bound and round(deciding - criterion.bound, digits) == 0:
        digits += 1
    if digits > 6:
        return f"{value:{sign}.3g}{unit}"
    return f"{value:{sign}.{digits}f}{interval(criterion.low, criterion.high, digits, sign)}{unit}"


def bound(criterion: Criterion) -> str:
    """The relation and the bound, and which end of the interval is held against it."""
    end = {"mean": "", "low": "lower end ", "high": "upper end "}[criterion.judged]
    limit = f"{criterion.bound:g} pt" if criterion.unit == "pt" else f"{criterion.bound:g}"
    return f"{end}{criterion.relation} {limit}"
