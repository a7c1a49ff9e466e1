"""What decides a comparison: the success criteria of the first experiment, or the rules of acceptance.

A criterion that cannot be judged has `passed` None and a note that says why; it never counts as passed.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from ppdgrow.comparison.curves import Axis
from ppdgrow.comparison.history import RunHistory
from ppdgrow.comparison.measures import ComparedArm
from ppdgrow.statistics import Estimate, estimate
from ppdgrow.training.acceptance import RULES, Decision

Verdict = Literal["accept", "reject"]
Relation = Literal["<", "<=", ">", ">="]
End = Literal["mean", "low", "high"]

INSERTION_BOUND = 0.0
LOSS_BOUND = 0.0
ACCURACY_BOUND = -0.5
COST_BOUND = 0.8

NO_INSERTION_SPIKE = "no insertion spike"
LOWER_LOSS = "lower loss at equal steps"
COMPARABLE_LOSS = "comparable final loss"
COMPARABLE_ACCURACY = "comparable final accuracy"
CHEAPER_FLOPS = "FLOPs to equal loss"
CHEAPER_SECONDS = "wall-clock to equal loss"
PARENT_RULE = "parent rule"
TWIN_RULE = "twin rule"

ONE_SEED = "one seed: no interval"
NOT_DECIDING = "does not decide"
UNTRAINED = "not judged: not trained since it was grown"
NO_COMMON_SEED = "not judged: no seed in common"

_HOLDS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


@dataclass(frozen=True)
class Criterion:
    """One figure held against its bound: passed if `value relation bound`.

    `value` is the mean over the seeds, `low` and `high` the ends of its 95 % interval; with several seeds `judged`
    says which of the three is held against the bound.
    """

    name: str
    run: str
    against: str
    passed: bool | None
    value: float | None
    bound: float
    relation: Relation
    unit: str
    note: str = ""
    low: float | None = None
    high: float | None = None
    judged: End = "mean"
    seeds: int = 1


def loss_unit(history: RunHistory) -> str:
    """What a loss of the run is measured in."""
    return {"lm": "nats per token", "mlm": "nats per masked token", "classify": "nats per image"}[
        history.architecture.task
    ]


def success_criteria(baseline: ComparedArm, arm: ComparedArm) -> tuple[Criterion, ...]:
    """The criteria of one arm against the baseline.

    With several seeds an end of the 95 % interval of the paired differences decides, with one the figure itself.
    Equal steps are the last step at which both were evaluated. The cost to equal loss is that until the validation loss
    first fell to the baseline's final loss, interpolated between evaluations, over the same cost of the baseline.
    """
    unit, ends, several = loss_unit(arm.first.history), _ends(baseline, arm), len(arm.pairs) > 1
    judge = partial(_judged, baseline, arm)
    # With several seeds: not below the baseline's beyond the interval. With one: at most half a point below.
    accuracy = partial(judge, COMPARABLE_ACCURACY, arm.accuracy_difference, unit="pt", notes=ends)
    of_training = [
        _lower_loss(baseline, arm),
        *([judge(COMPARABLE_LOSS, arm.loss_difference, LOSS_BOUND, "<=", "low", unit, ends)] if several else []),
        accuracy(0.0, ">=", "high") if several else accuracy(ACCURACY_BOUND, ">", "mean"),
        _cost(baseline, arm, "flops", CHEAPER_FLOPS),
        _cost(baseline, arm, "seconds", CHEAPER_SECONDS),
    ]
    if any(run.history.untrained for run in arm.runs):
        of_training = [replace(criterion, passed=None, note=UNTRAINED) for criterion in of_training]
    return (_no_insertion_spike(baseline, arm), *of_training)


def _no_insertion_spike(baseline: ComparedArm, arm: ComparedArm) -> Criterion:
    """No insertion changed the validation loss, in either direction, in any seed."""
    insertions = [insertion for run in arm.runs for insertion in run.insertions]
    value = max((abs(insertion.jump) for insertion in insertions if insertion.jump is not None), default=None)
    unmeasured = sorted({insertion.step for insertion in insertions if insertion.jump is None})
    passed = None if value is None else value <= INSERTION_BOUND
    note = "" if insertions else "not applicable: no insertion"
    if unmeasured:
        note = f"not measured at step {', '.join(f'{step:,}' for step in unmeasured)} (grow --no-eval)"
        passed = False if passed is False else None
    unit = loss_unit(arm.first.history)
    names = (NO_INSERTION_SPIKE, arm.name, baseline.name)
    return Criterion(*names, passed, value, INSERTION_BOUND, "<=", unit, note, seeds=len(arm.runs))


def _lower_loss(baseline: ComparedArm, arm: ComparedArm) -> Criterion:
    """The arm's validation loss is below the baseline's at the largest step that both evaluated."""
    points = [None if run.equal is None else run.equal.steps for run in arm.pairs]
    differences = estimate([None if point is None else point.difference for point in points])
    steps = sorted({int(point.at) for point in points if point is not None})
    notes, unfinished = ["the two were never evaluated at one and the same step"], []
    if differences is not None:
        notes = [f"at step {', '.join(f'{step:,}' for step in steps)}"]
        shared = min(run.equal.shared_steps for run in arm.pairs if run.equal is not None)
        if steps[-1] <= shared:
            notes.append(f"both are one and the same run up to step {shared:,}")
        unfinished = [one.name for one in (baseline, arm) if one.first.history.step > steps[-1]]
    unit = loss_unit(arm.first.history)
    criterion = _judged(baseline, arm, LOWER_LOSS, differences, LOSS_BOUND, "<", "high", unit, notes)
    if unfinished:  # one run has decayed its learning rate there, the other has not
        why = f"{' and '.join(unfinished)} not at the end of the schedule there: no fair comparison"
        return replace(criterion, passed=None, note=f"{criterion.note}; {why}")
    return criterion


def _cost(baseline: ComparedArm, arm: ComparedArm, axis: Axis, name: str) -> Criterion:
    """What the arm cost up to the baseline's final loss, over what the baseline did; mean over the seeds."""
    ratio, reached, of = arm.cost_to_loss(axis), arm.reached(axis), len(arm.pairs)
    criterion = _judged(baseline, arm, name, ratio, COST_BOUND, "<=", "mean", "ratio")
    if of and not arm.recorded(axis):
        return replace(criterion, note="its cost was not recorded")
    if reached < of:
        missed = "not reached" if of == 1 else f"reached by {reached} of {of} seeds"
        return replace(criterion, passed=False, note=f"{missed} within the run")
    return criterion


def _judged(
    baseline: ComparedArm,
    arm: ComparedArm,
    name: str,
    figure: Estimate | None,
    bound: float,
    relation: Relation,
    end: End,
    unit: str,
    notes: Sequence[str] = (),
) -> Criterion:
    """The mean held against its bound, or the end of its interval that is named, where there is one."""
    found = Criterion(name, arm.name, baseline.name, None, None, bound, relation, unit, "; ".join(notes), seeds=0)
    if figure is None:
        return found if arm.pairs else replace(found, note=NO_COMMON_SEED)
    judged: End = end if figure.number > 1 else "mean"
    return replace(
        found,
        passed=_HOLDS[relation](getattr(figure, judged), bound),
        value=figure.mean,
        note="; ".join([*notes, *([ONE_SEED] if judged != end else [])]),
        low=figure.low,
        high=figure.high,
        judged=judged,
        seeds=figure.number,
    )


def _ends(baseline: ComparedArm, arm: ComparedArm) -> list[str]:
    """The steps of both where they differ."""
    ends = (baseline.first.history.final.step, arm.first.history.final.step)
    return [] if ends[0] == ends[1] else [f"at step {ends[1]:,} against step {ends[0]:,}"]


def parent_rule(parent: RunHistory, trial: RunHistory, decision: Decision) -> Criterion:
    """The parent rule as a criterion: the change of the loss over the trial."""
    note = _note(f"step {trial.step:,} against step {parent.step:,}", decides=decision.rule == "parent")
    passed, change, bound = RULES["parent"].accepts(decision), decision.change, decision.epsilon
    return Criterion(PARENT_RULE, trial.name, parent.name, passed, change, bound, "<=", loss_unit(trial), note)


def twin_rule(trial: RunHistory, twin: RunHistory, decision: Decision) -> Criterion:
    """The twin rule as a criterion: the upper end of the interval of the paired difference."""
    note = _note(f"upper end of the 95 % interval at step {trial.step:,}", decides=decision.rule == "twin")
    high = None if decision.twin is None else decision.twin.high
    passed, bound = RULES["twin"].accepts(decision), decision.margin
    return Criterion(TWIN_RULE, trial.name, twin.name, passed, high, bound, "<", loss_unit(trial), note)


def _note(figure: str, *, decides: bool) -> str:
    return "; ".join([*([] if decides else [NOT_DECIDING]), figure, "one seed"])


def verdict_of(criteria: Sequence[Criterion]) -> Verdict:
    """`accept` iff all criteria that were judged passed, and one of them is more than the insertion's."""
    judged = [criterion for criterion in criteria if criterion.passed is not None]
    more = any(criterion.name != NO_INSERTION_SPIKE for criterion in judged)
    return "accept" if more and all(criterion.passed for criterion in judged) else "reject"
