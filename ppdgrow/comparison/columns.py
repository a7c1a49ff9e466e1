"""The figures of a comparison: one list of columns, from which every table, on a terminal and on a page, and the JSON
are made, with the names that the curves' axes have too.

A column is about an arm; a single run is an arm of one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Flag, auto
from functools import partial
from statistics import fmean
from typing import Any, Generic, NamedTuple, TypeVar

from ppdgrow.comparison.curves import AXES, Axis, EqualPoint
from ppdgrow.comparison.history import Budget, join_seeds
from ppdgrow.comparison.insertions import UPDATES_AFTER, Insertion
from ppdgrow.comparison.measures import ComparedArm, ComparedRun
from ppdgrow.comparison.spikes import SpikeCounts
from ppdgrow.console import format_count, format_flops, format_seconds
from ppdgrow.console.page import Table
from ppdgrow.nn.cost import count_parameters, flops_per_token, half_steps
from ppdgrow.statistics import Estimate, estimate

NOTHING = "-"
LOSS = "validation loss"
COSTS: tuple[Budget, ...] = ("flops", "seconds")
Subject = TypeVar("Subject")


class AxisText(NamedTuple):
    """An axis in a table's header and under a curve, and how a place on it is written."""

    name: str
    label: str
    place: Callable[[float], str]


AXIS_TEXT: dict[Axis, AxisText] = {
    "steps": AxisText("steps", "optimizer steps", lambda at: f"step {at:,.0f}"),
    "flops": AxisText("FLOPs", "training FLOPs", format_flops),
    "seconds": AxisText("wall-clock", "seconds of training steps", format_seconds),
}


class Layout(Flag):
    """The tables in which a column stands; NONE: in the JSON alone."""

    NONE = 0
    FEW = auto()  # few arms beside each other, on a terminal
    MANY = auto()  # one row per arm, on a terminal and at the head of the page
    COSTS = auto()  # tables of the page
    EQUAL = auto()
    SIZE = auto()
    RUNS = auto()


FEW, MANY, SIZE, RUNS = Layout.FEW, Layout.MANY, Layout.SIZE, Layout.RUNS


@dataclass(frozen=True)
class Column(Generic[Subject]):
    """A figure: its name, how to get it, how to show it, where it is shown, and its key in the JSON of arms and runs.

    A value of None is shown as a dash.
    """

    name: str
    value: Callable[[Subject], Any]
    show: Callable[[Any], str] = str
    layouts: Layout = Layout.NONE
    arm_key: str = ""
    run_key: str = ""

    def only(self, condition: bool) -> Column[Subject]:
        """The column, in no table unless the condition holds."""
        return self if condition else replace(self, layouts=Layout.NONE)

    def cell(self, subject: Subject) -> str:
        value = self.value(subject)
        return NOTHING if value is None else self.show(value)


def columns(arms: Sequence[ComparedArm], verdicts: Mapping[str, str] | None = None) -> list[Column[ComparedArm]]:
    """Every figure of an arm, those that say what it is first.

    Args:
        arms: the baseline first.
        verdicts: by name of the arm; None where nothing is judged, or a rule decides between the runs.
    """
    runs = [run for arm in arms for run in arm.runs]
    seeded = several_seeds(arms) or any(arm.left_out for arm in arms)
    in_all_seeds = " in all seeds" if several_seeds(arms) else ""  # counts are sums, other figures are means
    tested = any(run.test is not None for run in runs)
    # Where all runs end at one step, their last losses are those at equal steps.
    apart = len({run.history.final.step for run in runs}) > 1
    return [
        *([] if verdicts is None else [_verdict(arms, verdicts)]),
        Column("seeds", _seeds, layouts=(FEW if seeded else Layout.NONE) | MANY | RUNS),
        Column("layers", _layers, layouts=FEW | MANY | SIZE),
        _of_first("stream", lambda run: run.history.architecture.stream),
        _of_first("width", lambda run: run.history.architecture.width),
        _of_first("parameters", _parameters, format_count, FEW | MANY | SIZE, "parameters"),
        _of_first("FLOP per token", _flops_per_token, format_flops, FEW | SIZE, "flops_per_token"),
        _of_first("half-steps", lambda run: half_steps(run.history.architecture), str, FEW | SIZE, "half_steps"),
        _of_first("steps", lambda run: run.history.step, "{:,}".format, FEW | SIZE | RUNS, "steps"),
        _of_first("training tokens", lambda run: run.history.state.ledger.tokens, format_count, SIZE, "tokens"),
        _mean(LOSS, lambda run: run.validation.loss, 4, "", FEW | MANY | RUNS, "loss"),
        _against_baseline("loss", lambda arm: arm.loss_difference, 4, "", FEW | MANY | RUNS),
        _mean("accuracy", lambda run: 100.0 * run.validation.accuracy, 2, " %", FEW | MANY | RUNS, "accuracy"),
        _against_baseline("accuracy", lambda arm: arm.accuracy_difference, 2, " pt", FEW),
        *(_of_language(runs, name, digits) for name, digits in (("perplexity", 2), ("bits_per_byte", 4))),
        _mean("training loss", lambda run: run.history.state.train_loss, 4, "", RUNS, "train_loss", "train_loss"),
        _mean("test loss", _test_loss, 4, "", FEW | MANY | RUNS, "test_loss").only(tested),
        _mean("test accuracy", _test_accuracy, 2, " %", FEW | RUNS, "test_accuracy").only(tested),
        *(_at_equal(axis, terminal=apart or axis != "steps") for axis in AXES),
        *(column for axis in COSTS for column in _spent(axis)),
        *(_to_equal_loss(axis).only(verdicts is not None) for axis in AXES),
        Column("", _costs_to_equal_loss, arm_key="cost_to_baseline_loss"),
        *(_trials(arms, in_all_seeds) if any(run.has_trials for run in runs) else ()),
        Column("insertion", lambda arm: jump_of([i for run in arm.runs for i in run.insertions]), exact, MANY),
        *_insertions(arms),
        *_spikes(in_all_seeds),
    ]


def several_seeds(arms: Sequence[ComparedArm]) -> bool:
    return any(len(arm.runs) > 1 for arm in arms)


def single_runs(arm: ComparedArm) -> list[ComparedArm]:
    """Each run of an arm as an arm of its own."""
    return [replace(arm, runs=(run,), left_out=()) for run in arm.runs]


def arm_rows(
    arms: Sequence[ComparedArm], shown: Sequence[Column[ComparedArm]], names: Sequence[str] | None = None
) -> Table:
    named = zip(names or [arm.name for arm in arms], arms, strict=True)
    rows = tuple((name, *(column.cell(arm) for column in shown)) for name, arm in named)
    return Table(("arm", *(column.name for column in shown)), rows)


# How figures are written.


def interval(low: float | None, high: float | None, digits: int, sign: str = "+") -> str:
    """` [low, high]`, or nothing."""
    return "" if low is None or high is None else f" [{low:{sign}.{digits}f}, {high:{sign}.{digits}f}]"


def with_interval(difference: Estimate, digits: int, unit: str = "") -> str:
    """The mean of a difference with its sign, and the 95 % interval where there are several values."""
    return f"{difference.mean:+.{digits}f}{interval(difference.low, difference.high, digits)}{unit}"


def with_deviation(found: Estimate, digits: int, unit: str = "") -> str:
    """The mean, and the standard deviation where there are several values."""
    deviation = "" if found.deviation is None else f" sd {found.deviation:.{digits}f}"
    return f"{found.mean:.{digits}f}{deviation}{unit}"


def exact(jump: float) -> str:
    """A change of the loss; nothing but zero is written 0."""
    return "0" if jump == 0 else f"{jump:.3g}"


# What the models are.


def _of_first(
    name: str,
    value: Callable[[ComparedRun], Any],
    show: Callable[[Any], str] = str,
    layouts: Layout = SIZE,
    key: str = "",
) -> Column[ComparedArm]:
    """What does not depend on the seed."""
    return Column(name, lambda arm: value(arm.first), show, layouts, run_key=key)


def _parameters(run: ComparedRun) -> int:
    return count_parameters(run.history.architecture)


def _flops_per_token(run: ComparedRun) -> int:
    return flops_per_token(run.history.architecture)


def _verdict(arms: Sequence[ComparedArm], verdicts: Mapping[str, str]) -> Column[ComparedArm]:
    return Column("verdict", lambda arm: verdicts[arm.name], layouts=(FEW if len(arms) > 2 else Layout.NONE) | MANY)


def _seeds(arm: ComparedArm) -> str:
    left_out = f" ({len(arm.left_out)} left out)" if arm.left_out else ""
    return (join_seeds(arm.histories) or NOTHING) + left_out


def _layers(arm: ComparedArm) -> str:
    """The depth, `6 -> 12 at step 400` where it grew."""
    history = arm.first.history
    changes = [event for event in history.surgery if event.layers_after is not None]
    if not changes or changes[0].layers_before is None:
        return str(history.architecture.num_layers)
    return str(changes[0].layers_before) + "".join(f" -> {e.layers_after} at step {e.step:,}" for e in changes)


# Losses and accuracies.


def _mean(
    name: str,
    value: Callable[[ComparedRun], float | None],
    digits: int,
    unit: str = "",
    layouts: Layout = Layout.NONE,
    arm_key: str = "",
    run_key: str = "",
) -> Column[ComparedArm]:
    """A figure of every run, with its deviation over the seeds."""
    show = partial(with_deviation, digits=digits, unit=unit)
    return Column(name, lambda arm: estimate([value(run) for run in arm.runs]), show, layouts, arm_key, run_key)


def _against_baseline(
    what: str, value: Callable[[ComparedArm], Estimate | None], digits: int, unit: str, layouts: Layout
) -> Column[ComparedArm]:
    show = partial(with_interval, digits=digits, unit=unit)
    return Column(f"{what} against baseline", value, show, layouts, arm_key=f"{what}_difference")


def _of_language(runs: Sequence[ComparedRun], name: str, digits: int) -> Column[ComparedArm]:
    """A figure that only language models have."""
    known = any(getattr(run.validation, name) is not None for run in runs)
    column = _mean(name.replace("_", " "), lambda run: getattr(run.validation, name), digits, layouts=RUNS)
    return column.only(known)


def _test_loss(run: ComparedRun) -> float | None:
    return None if run.test is None else run.test.loss


def _test_accuracy(run: ComparedRun) -> float | None:
    return None if run.test is None else 100.0 * run.test.accuracy


def _at_equal(axis: Axis, *, terminal: bool) -> Column[ComparedArm]:
    """Loss at the largest cost that an arm and the baseline both reached, with its difference."""

    def value(arm: ComparedArm) -> list[EqualPoint] | None:
        points = [getattr(run.equal, axis, None) for run in arm.pairs]
        known = [point for point in points if point is not None]
        return known if known and len(known) == len(points) else None

    def show(points: Sequence[EqualPoint]) -> str:
        loss, at = fmean(point.loss for point in points), fmean(point.at for point in points)
        difference = Estimate(tuple(point.difference for point in points))
        return f"{loss:.4f} ({with_interval(difference, 4)}) at {AXIS_TEXT[axis].place(at)}"

    layouts = Layout.EQUAL | FEW if terminal else Layout.EQUAL
    return Column(f"loss at equal {AXIS_TEXT[axis].name}", value, show, layouts)


# Costs.


def _spent(axis: Axis) -> Iterator[Column[ComparedArm]]:
    """FLOPs or seconds of the models themselves, over those of the baseline; of a single run as such."""
    name, _, place = AXIS_TEXT[axis]

    def amount(arm: ComparedArm) -> float:
        return fmean(getattr(history.state.ledger, axis) for history in arm.histories)

    def ratio(arm: ComparedArm) -> Estimate | None:
        costs = [(getattr(h.state.ledger, axis) for h in (run.history, run.reference)) for run in arm.runs]
        return estimate([own / reference if reference else None for own, reference in costs])

    def ratio_and_amount(arm: ComparedArm) -> str:
        found = ratio(arm)
        return f"{NOTHING if found is None else f'{found.mean:.2f}'} ({place(amount(arm))})"

    yield Column(name, ratio_and_amount, layouts=FEW | MANY)
    yield Column(name, lambda arm: getattr(arm.first.history.state.ledger, axis), place, RUNS, run_key=axis)
    yield Column("", ratio, arm_key=f"{axis}_ratio", run_key=f"{axis}_ratio")


def _to_equal_loss(axis: Axis) -> Column[ComparedArm]:
    """Cost to the baseline's final loss over the baseline's own, or how many seeds reached it."""

    def cell(arm: ComparedArm) -> str:
        if arm.is_baseline or not arm.pairs or not arm.recorded(axis):
            return NOTHING
        ratio, reached = arm.cost_to_loss(axis), arm.reached(axis)
        if ratio is None:
            return "not reached" if not reached else f"reached by {reached} of {len(arm.pairs)}"
        return f"{ratio.mean:.2f}{interval(ratio.low, ratio.high, 2, '')}"

    layouts = FEW | MANY | Layout.COSTS if axis == "flops" else FEW | Layout.COSTS
    return Column(f"{AXIS_TEXT[axis].name} to equal loss", cell, layouts=layouts)


def _costs_to_equal_loss(arm: ComparedArm) -> dict[str, Estimate | None] | None:
    return None if arm.is_baseline else {axis: arm.cost_to_loss(axis) for axis in AXES}


def _trials(arms: Sequence[ComparedArm], in_all_seeds: str) -> Iterator[Column[ComparedArm]]:
    """What the trials of progressive runs cost beside the models, held against the baseline's own cost."""

    def counts(arm: ComparedArm) -> str:
        kept = sum(history.trials_kept for history in arm.histories)
        return f"{kept} / {sum(history.trials_rejected for history in arm.histories)}"

    def cost(arm: ComparedArm, axis: Axis) -> str:
        own = fmean(getattr(history.state.ledger, axis) for history in arms[0].histories)
        spent = fmean(getattr(history.state.ledger.trials, axis) for history in arm.histories)
        return f"{f'{spent / own:.2f}' if own else NOTHING} ({AXIS_TEXT[axis].place(spent)})"

    def where_tried(value: Callable[[ComparedArm], Any]) -> Callable[[ComparedArm], Any]:
        return lambda arm: value(arm) if any(run.has_trials for run in arm.runs) else None

    yield Column(f"trials{in_all_seeds} (kept / rejected)", where_tried(counts), layouts=FEW | RUNS)
    for axis in COSTS:
        name, _, place = AXIS_TEXT[axis]
        shown = FEW | MANY if axis == "flops" else FEW
        yield Column(f"{name} of trials", where_tried(partial(cost, axis=axis)), layouts=shown)
        spent = partial(lambda run, axis: getattr(run.history.state.ledger.trials, axis), axis=axis)
        yield _of_first(f"{name} of trials", spent, place, RUNS)


# Insertions and spikes.


def jump_of(insertions: Sequence[Insertion]) -> float | None:
    return max((i.jump for i in insertions if i.jump is not None), key=abs, default=None)


def _before_after(insertions: Sequence[Insertion]) -> str | None:
    """The losses right before and after an insertion, mean over the seeds, with as many digits as tell them apart."""
    known = [(i.loss_before, i.loss_after) for i in insertions if i.jump is not None]
    if not insertions:
        return None
    if len(known) < len(insertions):
        return "not measured"
    before, after = (fmean(losses) for losses in zip(*known, strict=True))
    shown = f"{before:.6f}", f"{after:.6f}"
    if shown[0] == shown[1] and any(insertion.jump for insertion in insertions):
        shown = repr(before), repr(after)
    return f"{shown[0]} / {shown[1]}"


def _loss_later(insertions: Sequence[Insertion], *, with_updates: bool) -> str | None:
    losses = estimate([insertion.loss_after_updates for insertion in insertions])
    if losses is None:
        return None
    return f"{losses.mean:.4f}{f' ({_numbers(i.updates for i in insertions)})' if with_updates else ''}"


def _bump(insertions: Sequence[Insertion]) -> str | None:
    """The growth bump, and the steps until the loss before it was reached again; means over the seeds."""
    bumps = estimate([insertion.growth_bump for insertion in insertions])
    steps = estimate([insertion.steps_to_recover for insertion in insertions])
    recovered = "not recovered" if steps is None else f"{steps.mean:,.0f}"
    return None if bumps is None else f"{bumps.mean:+.4f}, {recovered}"


def _spikes_after(insertions: Sequence[Insertion]) -> str:
    counts = [insertion.gradient_spike for insertion in insertions]
    old, new = sum(count.old or 0 for count in counts), sum(count.new or 0 for count in counts)
    return f"{old} / {new}, {sum(insertion.loss_spikes for insertion in insertions)}"


def _numbers(values: Iterable[int | None]) -> str:
    """Different numbers, rising."""
    return ", ".join(f"{value:,}" for value in sorted({value for value in values if value is not None}))


def _mean_later(insertions: Sequence[Insertion]) -> float | None:
    later = [i.loss_after_updates for i in insertions if i.loss_after_updates is not None]
    return fmean(later) if later else None


# One insertion of an arm, in all its seeds.
INSERTION_COLUMNS: tuple[Column[Sequence[Insertion]], ...] = (
    Column("step", lambda found: _numbers(i.step for i in found)),
    Column("kinds", lambda found: "/".join(dict.fromkeys(kind for i in found for kind in i.kinds)) or None),
    Column("loss before / after", _before_after),
    Column("largest change", jump_of, exact),
    Column("same bits", lambda found: "yes" if all(i.bit_exact for i in found) else "no"),
    Column(f"loss ~{UPDATES_AFTER:,} updates after", _mean_later, "{:.4f}".format),
    Column("updates", lambda found: _numbers(i.updates for i in found) or None),
    Column("bump, steps to recover", _bump),
    Column("spikes by then: gradient (old / new), loss", _spikes_after),
)


def insertion_rows(arms: Sequence[ComparedArm]) -> Table:
    rows = [
        (arm.name, *(column.cell(found) for column in INSERTION_COLUMNS))
        for arm in arms
        for index in range(max(len(run.insertions) for run in arm.runs))
        if (found := _insertion(arm, index))
    ]
    return Table(("arm", *(column.name for column in INSERTION_COLUMNS)), tuple(rows))


def _insertion(arm: ComparedArm, index: int) -> list[Insertion]:
    return [run.insertions[index] for run in arm.runs if index < len(run.insertions)]


def _of_insertion(arm: ComparedArm, index: int, write: Callable[[Sequence[Insertion]], str | None]) -> str | None:
    return write(_insertion(arm, index))


def _insertions(arms: Sequence[ComparedArm]) -> Iterator[Column[ComparedArm]]:
    most = max(len(run.insertions) for arm in arms for run in arm.runs)
    for index in range(most):
        which = f" {index + 1}" if most > 1 else ""
        updates = _numbers(i.updates for arm in arms for i in _insertion(arm, index))
        same = bool(updates) and ", " not in updates
        later = partial(_loss_later, with_updates=not same)
        figures: dict[str, Callable[[Sequence[Insertion]], str | None]] = {
            f"loss before / after insertion{which}": _before_after,
            f"loss {updates if same else 'some'} updates after{which and f' insertion{which}'}": later,
            f"growth bump, steps to recover{which}": _bump,
        }
        for name, write in figures.items():
            yield Column(name, partial(_of_insertion, index=index, write=write), layouts=FEW)


def _spikes(in_all_seeds: str) -> Iterator[Column[ComparedArm]]:
    """Gradient spikes of old and new parameters, and loss spikes, in all seeds together."""

    def gradients(arm: ComparedArm) -> SpikeCounts:
        counts = [run.gradient_spikes for run in arm.runs]
        old = [count.old for count in counts if count.old is not None]
        new = [count.new for count in counts if count.new is not None]
        return SpikeCounts(sum(old) if old else None, sum(new) if new else None)

    def old_and_new(spikes: SpikeCounts) -> str:
        old = NOTHING if spikes.old is None else str(spikes.old)
        return old if spikes.new is None else f"{old} / {spikes.new}"

    def losses(arm: ComparedArm) -> int:
        return sum(run.loss_spikes for run in arm.runs)

    name = f"gradient spikes{in_all_seeds} (old / new)"
    yield Column(name, gradients, old_and_new, FEW | RUNS, run_key="gradient_spikes")
    yield Column(f"loss spikes{in_all_seeds}", losses, str, FEW | RUNS, run_key="loss_spikes")
