"""What decides a comparison: the three success criteria of the first experiment, or the rules of acceptance.

A criterion that cannot be judged has `passed` None and a note that says why; it never counts as passed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ppdgrow.experiment.acceptance import Decision
from ppdgrow.experiment.comparison.curves import EqualFigures
from ppdgrow.experiment.comparison.history import RunHistory
from ppdgrow.experiment.comparison.insertions import Insertion

Verdict = Literal["accept", "reject"]

INSERTION_BOUND = 0.0
LOSS_BOUND = 0.0
ACCURACY_BOUND = -0.5

NO_INSERTION_SPIKE = "no insertion spike"
LOWER_LOSS = "lower loss at equal steps"
COMPARABLE_ACCURACY = "comparable final accuracy"
PARENT_RULE = "parent rule"
TWIN_RULE = "twin rule"

ONE_SEED = "one seed: no interval"
SEED = "one seed"
NOT_DECIDING = "does not decide"


@dataclass(frozen=True)
class Criterion:
    """One figure held against its bound: passed if `value relation bound`."""

    name: str
    run: str
    against: str
    passed: bool | None
    value: float | None
    bound: float
    relation: Literal["<", "<=", ">"]
    unit: str
    note: str = ""


def loss_unit(history: RunHistory) -> str:
    """What a loss of the run is measured in."""
    return {"lm": "nats per token", "mlm": "nats per masked token", "classify": "nats per image"}[
        history.architecture.task
    ]


def success_criteria(
    baseline: RunHistory, other: RunHistory, insertions: Sequence[Insertion], equal: EqualFigures
) -> tuple[Criterion, ...]:
    """The three criteria of one run against the baseline."""
    return (
        no_insertion_spike(baseline, other, insertions),
        lower_loss(baseline, other, equal),
        comparable_accuracy(baseline, other),
    )


def no_insertion_spike(baseline: RunHistory, other: RunHistory, insertions: Sequence[Insertion]) -> Criterion:
    """No insertion changed the validation loss, in either direction."""
    jumps = [abs(insertion.jump) for insertion in insertions if insertion.jump is not None]
    unmeasured = [insertion.step for insertion in insertions if insertion.jump is None]
    value = max(jumps, default=None)
    passed = None if value is None else value <= INSERTION_BOUND
    note = "" if insertions else "not applicable: no insertion"
    if unmeasured:
        note = f"not measured at step {', '.join(f'{step:,}' for step in unmeasured)} (grow --no-eval)"
        passed = False if passed is False else None
    return Criterion(
        name=NO_INSERTION_SPIKE,
        run=other.name,
        against=baseline.name,
        passed=passed,
        value=value,
        bound=INSERTION_BOUND,
        relation="<=",
        unit=loss_unit(other),
        note=note,
    )


def lower_loss(baseline: RunHistory, other: RunHistory, equal: EqualFigures) -> Criterion:
    """The run's validation loss is below the baseline's at the largest step that both evaluated."""
    point = equal.steps
    notes = ["the two were never evaluated at one and the same step"]
    if point is not None:
        step = int(point.at)
        notes = [f"at step {step:,}", ONE_SEED]
        if step <= equal.shared_steps:
            notes.insert(1, f"both are one and the same run up to step {equal.shared_steps:,}")
        going_on = [history.name for history in (baseline, other) if history.step > step]
        if going_on:
            notes.insert(1, f"{' and '.join(going_on)} not at the end there")
    return Criterion(
        name=LOWER_LOSS,
        run=other.name,
        against=baseline.name,
        passed=None if point is None else point.difference < LOSS_BOUND,
        value=None if point is None else point.difference,
        bound=LOSS_BOUND,
        relation="<",
        unit=loss_unit(other),
        note="; ".join(notes),
    )


def comparable_accuracy(baseline: RunHistory, other: RunHistory) -> Criterion:
    """The run's last accuracy is at most half a percentage point below the baseline's."""
    value = 100.0 * (other.final.validation.accuracy - baseline.final.validation.accuracy)
    steps = (baseline.final.step, other.final.step)
    note = "" if steps[0] == steps[1] else f"at step {steps[1]:,} against step {steps[0]:,}"
    return Criterion(
        name=COMPARABLE_ACCURACY,
        run=other.name,
        against=baseline.name,
        passed=value > ACCURACY_BOUND,
        value=value,
        bound=ACCURACY_BOUND,
        relation=">",
        unit="pt",
        note=note,
    )


def parent_rule(parent: RunHistory, trial: RunHistory, decision: Decision) -> Criterion:
    """The parent rule as a criterion: the change of the loss over the trial."""
    return Criterion(
        name=PARENT_RULE,
        run=trial.name,
        against=parent.name,
        passed=decision.parent_passes,
        value=decision.change,
        bound=decision.epsilon,
        relation="<=",
        unit=loss_unit(trial),
        note=_note(f"step {trial.step:,} against step {parent.step:,}", decides=decision.rule == "parent"),
    )


def twin_rule(trial: RunHistory, twin: RunHistory, decision: Decision) -> Criterion:
    """The twin rule as a criterion: the upper end of the interval of the paired difference."""
    difference = decision.twin
    return Criterion(
        name=TWIN_RULE,
        run=trial.name,
        against=twin.name,
        passed=decision.twin_passes,
        value=None if difference is None else difference.high,
        bound=decision.margin,
        relation="<",
        unit=loss_unit(trial),
        note=_note(f"upper end of the 95 % interval at step {trial.step:,}", decides=decision.rule == "twin"),
    )


def _note(figure: str, *, decides: bool) -> str:
    return f"{figure}; {SEED}" if decides else f"{NOT_DECIDING}; {figure}; {SEED}"


def verdict_of(criteria: Sequence[Criterion]) -> Verdict:
    """`accept` iff at least one criterion was judged, and all that were judged passed."""
    judged = [criterion.passed for criterion in criteria if criterion.passed is not None]
    return "accept" if judged and all(judged) else "reject"
