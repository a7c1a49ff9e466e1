"""A comparison as rows of text for a terminal: the figures side by side, then the criteria, then the verdict.

Few arms stand beside each other with all their figures; many stand below each other with those that decide.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from ppdgrow.config.state import Cost
from ppdgrow.console import format_count, format_flops, format_seconds
from ppdgrow.experiment.comparison.cells import (
    NOTHING,
    before_after,
    bound,
    bump,
    cost_cell,
    exact,
    figure,
    gradient_spikes,
    largest_jump,
    layers,
    number,
    outcome,
    seeds,
    spread,
    spread_if_known,
    with_interval,
)
from ppdgrow.experiment.comparison.compare import Comparison
from ppdgrow.experiment.comparison.criteria import (
    NO_INSERTION_SPIKE,
    ONE_SEED,
    Criterion,
)
from ppdgrow.experiment.comparison.curves import AXES, Axis, EqualPoint
from ppdgrow.experiment.comparison.figures import ComparedArm, ComparedRun
from ppdgrow.experiment.comparison.insertions import Insertion
from ppdgrow.experiment.statistics import Estimate

SIDE_BY_SIDE = 4
ONE_SEED_EACH = "one seed each: run more seeds before you believe this (see --help)"
NAMES: dict[Axis, str] = {"steps": "steps", "flops": "FLOPs", "seconds": "wall-clock"}
PLACES: dict[Axis, Callable[[float], str]] = {
    "steps": lambda at: f"step {at:,.0f}",
    "flops": format_flops,
    "seconds": format_seconds,
}


@dataclass(frozen=True)
class TextTable:
    """A header and rows of cells, all of one width."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def comparison_rows(comparison: Comparison) -> TextTable:
    """The arms beside each other, the baseline first; many of them below each other."""
    return beside(comparison) if len(comparison.arms) <= SIDE_BY_SIDE else below(comparison)


def below(comparison: Comparison) -> TextTable:
    """One row per arm with the figures that decide."""
    tested = any(arm.test_loss is not None for arm in comparison.arms)
    names = ("arm", "seeds", "layers", "parameters", "validation loss", "against baseline", "accuracy")
    header = [*names, "FLOPs", "wall-clock", "FLOPs to equal loss", "insertion", "verdict"]
    tried = any(run.has_trials for run in comparison.runs)
    header += [*(["FLOPs of trials"] if tried else []), *(["test loss"] if tested else [])]
    rows = []
    for arm in comparison.arms:
        insertion = largest_jump(arm)
        row = [
            arm.name,
            number(arm),
            str(arm.first.history.architecture.num_layers),
            format_count(arm.first.parameters),
            spread(arm.loss, 4),
            NOTHING if arm.loss_difference is None else with_interval(arm.loss_difference, 4),
            f"{spread(arm.accuracy, 2)} %",
            NOTHING if arm.flops_ratio is None else f"{arm.flops_ratio.mean:.2f}",
            NOTHING if arm.seconds_ratio is None else f"{arm.seconds_ratio.mean:.2f}",
            cost_cell(arm, "flops"),
            NOTHING if insertion is None else exact(insertion),
            comparison.verdict_on(arm) or "baseline",
        ]
        row += [_trial_cost(comparison, arm, lambda cost: cost.flops, format_flops)] if tried else []
        row += [spread_if_known(arm.test_loss, 4)] if tested else []
        rows.append(tuple(row))
    return TextTable(tuple(header), tuple(rows))


def beside(comparison: Comparison) -> TextTable:
    """One column per arm with all figures."""
    arms, baseline = comparison.arms, comparison.baseline

    def row(label: str, cell: Callable[[ComparedArm], str]) -> tuple[str, ...]:
        return (label, *(cell(arm) for arm in arms))

    def once(label: str, cell: Callable[[ComparedRun], str]) -> tuple[str, ...]:
        return row(label, lambda arm: cell(arm.first))

    def loss(arm: ComparedArm) -> str:
        difference = "" if arm is baseline or arm.loss_difference is None else with_interval(arm.loss_difference, 4)
        return spread(arm.loss, 4) + (difference and f" ({difference})")

    def accuracy(arm: ComparedArm) -> str:
        paired = arm.accuracy_difference
        difference = "" if arm is baseline or paired is None else with_interval(paired, 2)
        return f"{spread(arm.accuracy, 2)} %" + (difference and f" ({difference} pt)")

    rows = [
        *([row("seeds", seeds)] if comparison.several_seeds else []),
        once("layers", layers),
        once("parameters", lambda run: format_count(run.parameters)),
        once("FLOP per token", lambda run: format_flops(run.flops_per_token)),
        once("half-steps", lambda run: str(run.half_steps)),
        once("steps", lambda run: f"{run.history.step:,}"),
        row("validation loss", loss),
        row("accuracy", accuracy),
        *_test_rows(comparison),
        *_equal_rows(comparison),
        row("FLOPs", lambda arm: _ratio(arm.flops_ratio, format_flops(_mean(arm, lambda c: c.flops)))),
        row("wall-clock", lambda arm: _ratio(arm.seconds_ratio, format_seconds(_mean(arm, lambda c: c.seconds)))),
        *_cost_rows(comparison),
        *_trial_rows(comparison),
        *_insertion_rows(comparison),
        row(f"gradient spikes{_all_seeds(comparison)} (old / new)", gradient_spikes),
        row(f"loss spikes{_all_seeds(comparison)}", lambda arm: str(sum(run.loss_spikes for run in arm.runs))),
    ]
    return TextTable(("", *(arm.name for arm in arms)), tuple(rows))


def criteria_rows(comparison: Comparison) -> TextTable:
    """One row per criterion: its figure, its bound, how it came out, and what to know of it."""
    several = len({criterion.run for criterion in comparison.criteria}) > 1
    rows = tuple((_criterion_label(c, several), figure(c), bound(c), outcome(c), c.note) for c in comparison.criteria)
    return TextTable(("criterion", "figure", "bound", "", ""), rows)


def criteria_matrix(comparison: Comparison) -> TextTable:
    """One row per arm, one column per criterion, how each came out."""
    names = tuple(dict.fromkeys(criterion.name for criterion in comparison.criteria))
    outcomes = {(criterion.run, criterion.name): outcome(criterion) for criterion in comparison.criteria}
    rows = tuple(
        (arm.name, *(outcomes.get((arm.name, name), NOTHING) for name in names)) for arm in comparison.arms[1:]
    )
    return TextTable((f"against {comparison.baseline.name}", *names), rows)


def closing_lines(comparison: Comparison) -> list[str]:
    """The verdict, and what it is worth."""
    decided = comparison.decided
    if decided is None:
        judged = [criterion for criterion in comparison.criteria if criterion.passed is not None]
        passed = sum(criterion.passed is True for criterion in judged)
        more = any(criterion.name != NO_INSERTION_SPIKE for criterion in judged)
        worth = f"{passed} of {len(judged)} judged criteria passed" if more else "nothing that training does was judged"
        return [
            f"verdict: {comparison.verdict} ({worth}, against {comparison.baseline.name})",
            *(note for note in comparison.notes if note != ONE_SEED),
            *([ONE_SEED_EACH] if ONE_SEED in comparison.notes else []),
        ]
    return [
        f"verdict: {comparison.verdict} by the {decided.decision.rule} rule",
        *decided.decision.lines(),
        *_cost_line("trial", decided.trial_cost),
        *_cost_line("twin", decided.twin_cost),
        *(note for note in comparison.notes if note != ONE_SEED),
    ]


def _cost_line(name: str, cost: Cost | None) -> list[str]:
    if cost is None:
        return []
    return [
        f"cost of the {name} since the parent: {format_count(cost.tokens)} tokens, {format_flops(cost.flops)}, "
        f"{format_seconds(cost.seconds)}"
    ]


def _mean(arm: ComparedArm, read: Callable[[Cost], float]) -> float:
    return fmean(read(run.history.state.ledger) for run in arm.runs)


def _ratio(ratio: Estimate | None, amount: str) -> str:
    return f"{NOTHING} ({amount})" if ratio is None else f"{ratio.mean:.2f} ({amount})"


def _test_rows(comparison: Comparison) -> list[tuple[str, ...]]:
    if all(arm.test_loss is None for arm in comparison.arms):
        return []
    return [
        ("test loss", *(spread_if_known(arm.test_loss, 4) for arm in comparison.arms)),
        ("test accuracy", *(spread_if_known(arm.test_accuracy, 2, " %") for arm in comparison.arms)),
    ]


def _cost_rows(comparison: Comparison) -> list[tuple[str, ...]]:
    """The cost to the baseline's final loss as a ratio; not where a decision is about the runs."""
    if comparison.decided is not None:
        return []
    return [(f"{NAMES[axis]} to equal loss", *(cost_cell(arm, axis) for arm in comparison.arms)) for axis in AXES]


def _trial_rows(comparison: Comparison) -> list[tuple[str, ...]]:
    """What the trials of progressive runs cost beside the models, held against the baseline's own cost."""
    arms = comparison.arms
    if not any(run.has_trials for run in comparison.runs):
        return []

    def counts(arm: ComparedArm) -> str:
        kept = sum(run.history.trials_kept for run in arm.runs)
        rejected = sum(run.history.trials_rejected for run in arm.runs)
        return f"{kept} / {rejected}" if any(run.has_trials for run in arm.runs) else NOTHING

    return [
        (f"trials{_all_seeds(comparison)} (kept / rejected)", *map(counts, arms)),
        ("FLOPs of trials", *(_trial_cost(comparison, arm, lambda cost: cost.flops, format_flops) for arm in arms)),
        (
            "wall-clock of trials",
            *(_trial_cost(comparison, arm, lambda cost: cost.seconds, format_seconds) for arm in arms),
        ),
    ]


def _trial_cost(
    comparison: Comparison, arm: ComparedArm, read: Callable[[Cost], float], form: Callable[[float], str]
) -> str:
    if not any(run.has_trials for run in arm.runs):
        return NOTHING
    own = _mean(comparison.baseline, read)
    cost = fmean(read(run.history.state.ledger.trials) for run in arm.runs)
    return f"{cost / own:.2f} ({form(cost)})" if own else f"{NOTHING} ({form(cost)})"


def _all_seeds(comparison: Comparison) -> str:
    """Counts are of all seeds of an arm together, other figures are means."""
    return " in all seeds" if comparison.several_seeds else ""


def _equal_rows(comparison: Comparison) -> list[tuple[str, ...]]:
    """Losses at equal cost; at equal steps only where the last losses are not already that."""
    last = {run.history.final.step for run in comparison.runs}
    return equal_rows(comparison, AXES if len(last) > 1 else AXES[1:])


def equal_rows(comparison: Comparison, axes: Sequence[Axis] = AXES) -> list[tuple[str, ...]]:
    """Losses at the largest cost that an arm and the baseline both reached, one row per axis."""
    return [_equal_row(comparison, f"loss at equal {NAMES[axis]}", axis) for axis in axes]


def _equal_row(comparison: Comparison, label: str, axis: Axis) -> tuple[str, ...]:
    def cell(arm: ComparedArm) -> str:
        points: list[EqualPoint | None] = [None if run.equal is None else getattr(run.equal, axis) for run in arm.pairs]
        known = [point for point in points if point is not None]
        if not known or len(known) < len(points):
            return NOTHING
        difference = Estimate(tuple(point.difference for point in known))
        loss, at = fmean(point.loss for point in known), fmean(point.at for point in known)
        return f"{loss:.4f} ({with_interval(difference, 4)}) at {PLACES[axis](at)}"

    return (label, *(cell(arm) for arm in comparison.arms))


def _insertion_rows(comparison: Comparison) -> list[tuple[str, ...]]:
    most = max(len(run.insertions) for run in comparison.runs)
    rows: list[tuple[str, ...]] = []
    for index in range(most):
        row = [[r.insertions[index] for r in arm.runs if index < len(r.insertions)] for arm in comparison.arms]
        which = f" {index + 1}" if most > 1 else ""
        updates = {insertion.updates for cell in row for insertion in cell if insertion.updates is not None}
        same = updates.pop() if len(updates) == 1 else None
        rows.append((f"loss before / after insertion{which}", *map(before_after, row)))
        label = "loss some updates after" if same is None else f"loss {same:,} updates after"
        rows.append((f"{label}{which and f' insertion{which}'}", *(_later(cell, same is None) for cell in row)))
        rows.append((f"growth bump, steps to recover{which}", *map(bump, row)))
    return rows


def _later(insertions: Sequence[Insertion], tell_updates: bool) -> str:
    losses = [(i.loss_after_updates, i.updates) for i in insertions]
    known = [(loss, updates) for loss, updates in losses if loss is not None and updates is not None]
    if not known or len(known) < len(losses):
        return NOTHING
    told = f" ({', '.join(f'{updates:,}' for updates in sorted({u for _, u in known}))})" if tell_updates else ""
    return f"{fmean(loss for loss, _ in known):.4f}{told}"


def _criterion_label(criterion: Criterion, several: bool) -> str:
    label = f"{criterion.run}: {criterion.name}" if several else criterion.name
    return label if criterion.name == NO_INSERTION_SPIKE else f"{label} (vs {criterion.against})"
