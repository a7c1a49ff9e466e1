"""The figures of a comparison: one list of columns, from which every table, on a terminal and on a page, and the JSON
are made, with the names that the curves' axes have too.

A column is about an arm; a single run is an arm of one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from statistics import fmean
from typing import Any, NamedTuple

from ppdgrow.comparison.column import FEW, MANY, RUNS, SIZE, Column, Layout, mean_column
from ppdgrow.comparison.curves import AXES, Axis, EqualPoint
from ppdgrow.comparison.figures import NOTHING, exact, format_gain, interval, with_deviation, with_interval
from ppdgrow.comparison.front import total_flops
from ppdgrow.comparison.history import Budget, RunHistory, join_seeds
from ppdgrow.comparison.insertion_columns import insertion_figures, jump_of
from ppdgrow.comparison.insertions import SpikeCounts
from ppdgrow.comparison.measures import ComparedArm, ComparedRun, several_seeds
from ppdgrow.comparison.on_columns import columns_on
from ppdgrow.console import format_count, format_flops, format_seconds
from ppdgrow.nn.cost import count_parameters, flops_per_token, half_steps
from ppdgrow.statistics import Estimate, estimate

LOSS = "validation loss"
COSTS: tuple[Budget, ...] = ("flops", "seconds")


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


def columns(arms: Sequence[ComparedArm], verdicts: Mapping[str, str] | None = None) -> list[Column]:
    """Every figure of an arm, those that say what it is first; of arms with the baseline first.

    `verdicts` are by name of the arm; None where nothing is judged, or a rule decides between the runs.
    """
    runs = [run for arm in arms for run in arm.runs]
    judged = verdicts or {}
    seeded = FEW if several_seeds(arms) or any(arm.left_out for arm in arms) else Layout.NONE
    in_all_seeds = " in all seeds" if several_seeds(arms) else ""  # counts are sums, other figures are means
    tested = any(run.test is not None for run in runs)
    # Where all runs end at one step, their last losses are those at equal steps.
    apart = len({run.history.final.step for run in runs}) > 1
    of_verdict = MANY | FEW if len(arms) > 2 else MANY
    has_curves = not all(run.beside_folder for arm in arms[1:] for run in arm.runs) or len(arms) == 1
    return [
        Column("verdict", lambda arm: judged[arm.name], layouts=of_verdict).only(bool(judged)),
        Column("seeds", _seeds, layouts=seeded | MANY | RUNS),
        Column("layers", _layers, layouts=FEW | MANY | SIZE),
        _of_first("stream", lambda history: history.architecture.stream),
        _of_first("width", lambda history: history.architecture.width),
        _of_first(
            "parameters", lambda h: count_parameters(h.architecture), format_count, FEW | MANY | SIZE, "parameters"
        ),
        _of_first(
            "FLOP per token", lambda h: flops_per_token(h.architecture), format_flops, FEW | SIZE, "flops_per_token"
        ),
        _of_first("half-steps", lambda h: half_steps(h.architecture), str, FEW | SIZE, "half_steps"),
        _of_first("steps", lambda history: history.step, "{:,}".format, FEW | SIZE | RUNS, "steps"),
        _of_first("training tokens", lambda history: history.state.ledger.tokens, format_count, SIZE, "tokens"),
        mean_column(LOSS, lambda run: run.validation.loss, 4, "", FEW | MANY | RUNS, "loss"),
        _against_baseline("loss", lambda arm: arm.loss_difference, 4, "", FEW | MANY | RUNS),
        mean_column("accuracy", lambda run: 100.0 * run.validation.accuracy, 2, " %", FEW | MANY | RUNS, "accuracy"),
        _against_baseline("accuracy", lambda arm: arm.accuracy_difference, 2, " pt", FEW),
        *(_of_language(runs, name, digits) for name, digits in (("perplexity", 2), ("bits_per_byte", 4))),
        mean_column("training loss", lambda run: run.history.state.train_loss, 4, "", RUNS, "train_loss", "train_loss"),
        mean_column("test loss", _test_loss, 4, "", FEW | MANY | RUNS, "test_loss").only(tested),
        mean_column("test accuracy", _test_accuracy, 2, " %", FEW | RUNS, "test_accuracy").only(tested),
        *columns_on(runs),
        *(_at_equal(axis, terminal=has_curves and (apart or axis != "steps")) for axis in AXES),
        *(column for axis in COSTS for column in _spent(axis)),
        *(_to_equal_loss(axis).only(verdicts is not None and has_curves) for axis in AXES),
        Column("", _costs_to_equal_loss, arm_key="cost_to_baseline_loss"),
        *_pay_offs(arms),
        *(_trials(arms[0], in_all_seeds) if any(arm.has_trials for arm in arms) else ()),
        Column("insertion", lambda arm: jump_of([i for run in arm.runs for i in run.insertions]), exact, MANY),
        *(Column(name, figure, layouts=FEW) for name, figure in insertion_figures(arms)),
        Column(
            f"gradient spikes{in_all_seeds} (old / new)",
            _gradient_spikes,
            _old_and_new,
            FEW | RUNS,
            run_key="gradient_spikes",
        ),
        Column(f"loss spikes{in_all_seeds}", _loss_spikes, str, FEW | RUNS, run_key="loss_spikes"),
    ]


# What the models are.


def _of_first(
    name: str,
    value: Callable[[RunHistory], Any],
    show: Callable[[Any], str] = str,
    layouts: Layout = SIZE,
    key: str = "",
) -> Column:
    """What does not depend on the seed."""
    return Column(name, lambda arm: value(arm.first.history), show, layouts, run_key=key)


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


def _against_baseline(
    what: str, value: Callable[[ComparedArm], Estimate | None], digits: int, unit: str, layouts: Layout
) -> Column:
    show = partial(with_interval, digits=digits, unit=unit)
    return Column(f"{what} against baseline", value, show, layouts, arm_key=f"{what}_difference")


def _of_language(runs: Sequence[ComparedRun], name: str, digits: int) -> Column:
    """A figure that only language models have."""
    known = any(getattr(run.validation, name) is not None for run in runs)
    return mean_column(name.replace("_", " "), lambda run: getattr(run.validation, name), digits).only(known)


def _test_loss(run: ComparedRun) -> float | None:
    return None if run.test is None else run.test.loss


def _test_accuracy(run: ComparedRun) -> float | None:
    return None if run.test is None else 100.0 * run.test.accuracy


def _at_equal(axis: Axis, *, terminal: bool) -> Column:
    """Loss at the largest cost that an arm and the baseline both reached, with its difference."""

    def value(arm: ComparedArm) -> list[EqualPoint] | None:
        points = [getattr(run.equal, axis, None) for run in arm.pairs]
        return [*filter(None, points)] if points and all(points) else None

    def show(points: Sequence[EqualPoint]) -> str:
        loss, at = fmean(point.loss for point in points), fmean(point.at for point in points)
        difference = Estimate(tuple(point.difference for point in points))
        return f"{loss:.4f} ({with_interval(difference, 4)}) at {AXIS_TEXT[axis].place(at)}"

    layouts = Layout.EQUAL | FEW if terminal else Layout.EQUAL
    return Column(f"loss at equal {AXIS_TEXT[axis].name}", value, show, layouts)


# Costs.


def _average(arm: ComparedArm, axis: Axis) -> float:
    """What its models cost themselves, mean over the seeds."""
    return fmean(getattr(history.state.ledger, axis) for history in arm.histories)


def _spent(axis: Axis) -> Iterator[Column]:
    """FLOPs or seconds of the models themselves, over those of the baseline; of a single run as such."""
    name, _, place = AXIS_TEXT[axis]

    def ratio(arm: ComparedArm) -> Estimate | None:
        costs = [(getattr(h.state.ledger, axis) for h in (run.history, run.reference)) for run in arm.runs]
        return estimate([own / reference if reference else None for own, reference in costs], ratio=True)

    def ratio_and_amount(arm: ComparedArm) -> str:
        found = ratio(arm)
        return f"{NOTHING if found is None else f'{found.mean:.2f}'} ({place(_average(arm, axis))})"

    yield Column(name, ratio_and_amount, layouts=FEW | MANY)
    yield _of_first(name, lambda history: getattr(history.state.ledger, axis), place, RUNS, axis)
    yield Column("", ratio, arm_key=f"{axis}_ratio", run_key=f"{axis}_ratio")


def _to_equal_loss(axis: Axis) -> Column:
    """Cost to the baseline's final loss over the baseline's own, or how many seeds reached it."""

    def cell(arm: ComparedArm) -> str:
        if arm.is_baseline or not arm.pairs or not arm.comparable or not arm.recorded(axis):
            return NOTHING
        ratio, reached = arm.cost_to_loss(axis), arm.reached(axis)
        if ratio is None:
            return "not reached" if not reached else f"reached by {reached} of {len(arm.pairs)}"
        return f"{ratio.mean:.2f}{interval(ratio.low, ratio.high, 2, '')}"

    layouts = FEW | MANY | Layout.COSTS if axis == "flops" else FEW | Layout.COSTS
    return Column(f"{AXIS_TEXT[axis].name} to equal loss", cell, layouts=layouts)


def _costs_to_equal_loss(arm: ComparedArm) -> dict[Axis, dict[str, Any] | None] | None:
    """As the JSON has them."""
    ratios = [(axis, arm.cost_to_loss(axis)) for axis in AXES]
    documents = {axis: None if ratio is None else ratio.document() for axis, ratio in ratios}
    return None if arm.is_baseline else documents


def _pay_offs(arms: Sequence[ComparedArm]) -> Iterator[Column]:
    """A grown arm against what its FLOPs buy without growing."""

    def of(key: str) -> Callable[[ComparedArm], Any]:
        return lambda arm: None if arm.pay_off is None else getattr(arm.pay_off, key)

    known = any(arm.pay_off is not None for arm in arms)
    judged = any(arm.pay_off is not None and arm.pay_off.difference is not None for arm in arms)
    gains = any(arm.pay_off is not None and arm.pay_off.compute_gain is not None for arm in arms)
    yield Column("FLOPs in all", _total_flops, layouts=Layout.PAYS).only(known)
    yield mean_column(LOSS, lambda run: run.validation.loss, 4, layouts=Layout.PAYS).only(known)
    bought = partial(with_deviation, digits=4)
    yield Column("ungrown at its FLOPs", of("front_loss"), bought, FEW | Layout.PAYS, "front_loss").only(judged)
    against = partial(with_interval, digits=4)
    yield Column("against ungrown", of("difference"), against, FEW | MANY | Layout.PAYS, "front_difference").only(
        judged
    )
    yield Column("compute gain", of("compute_gain"), format_gain, FEW | MANY | Layout.PAYS, "compute_gain").only(gains)
    yield Column("growing paid", of("pays"), layouts=Layout.PAYS, arm_key="pays").only(known)
    yield Column("why not known", of("doubt"), layouts=Layout.PAYS, arm_key="pays_doubt").only(known)


def _total_flops(arm: ComparedArm) -> str:
    return format_flops(fmean(total_flops(history) for history in arm.histories))


def _trials(baseline: ComparedArm, in_all_seeds: str) -> Iterator[Column]:
    """What the trials of progressive runs cost beside the models, held against the baseline's own cost."""

    def counts(arm: ComparedArm) -> str | None:
        kept = sum(history.trials_kept for history in arm.histories)
        rejected = sum(history.trials_rejected for history in arm.histories)
        return f"{kept} / {rejected}" if arm.has_trials else None

    def cost(arm: ComparedArm, axis: Axis) -> str | None:
        own = _average(baseline, axis)
        spent = fmean(getattr(history.state.ledger.trials, axis) for history in arm.histories)
        shown = f"{f'{spent / own:.2f}' if own else NOTHING} ({AXIS_TEXT[axis].place(spent)})"
        return shown if arm.has_trials else None

    yield Column(f"trials{in_all_seeds} (kept / rejected)", counts, layouts=FEW | RUNS)
    for axis in COSTS:
        name = f"{AXIS_TEXT[axis].name} of trials"
        yield Column(name, partial(cost, axis=axis), layouts=FEW | MANY if axis == "flops" else FEW)
        spent = partial(lambda history, axis: getattr(history.state.ledger.trials, axis), axis=axis)
        yield _of_first(name, spent, AXIS_TEXT[axis].place, RUNS)


# Spikes, in all seeds together.


def _gradient_spikes(arm: ComparedArm) -> SpikeCounts:
    """Of old and of new parameters."""
    counts = [run.gradient_spikes for run in arm.runs]
    old = [count.old for count in counts if count.old is not None]
    new = [count.new for count in counts if count.new is not None]
    return SpikeCounts(sum(old) if old else None, sum(new) if new else None)


def _old_and_new(spikes: SpikeCounts) -> str:
    old = NOTHING if spikes.old is None else str(spikes.old)
    return old if spikes.new is None else f"{old} / {spikes.new}"


def _loss_spikes(arm: ComparedArm) -> int:
    return sum(run.loss_spikes for run in arm.runs)
