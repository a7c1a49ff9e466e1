"""What decides a comparison: the success criteria of the first experiment, or the rules of acceptance.

A criterion that cannot be judged has `passed` None and a note that says why; it never counts as passed.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ppdgrow.comparison.curves import Axis
from ppdgrow.comparison.figures import ComparedArm
from ppdgrow.comparison.history import RunHistory
from ppdgrow.statistics import Estimate, estimate
from ppdgrow.training.acceptance import Decision

Verdict = Literal["accept", "reject"]
Relation = Literal["<", "<=", ">", ">="]

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
SEED = "one seed"
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
    judged: Literal["mean", "low", "high"] = "mean"
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
    comparable_loss = (_comparable_loss(baseline, arm),) if len(arm.pairs) > 1 else ()
    of_training = (
        _lower_loss(baseline, arm),
        *comparable_loss,
        _comparable_accuracy(baseline, arm),
        _cost(baseline, arm, "flops", CHEAPER_FLOPS),
        _cost(baseline, arm, "seconds", CHEAPER_SECONDS),
    )
    if any(run.history.untrained for run in arm.runs):
        of_training = tuple(replace(criterion, passed=None, note=UNTRAINED) for criterion in of_training)
    return (_no_insertion_spike(baseline, arm), *of_training)


def _no_insertion_spike(baseline: ComparedArm, arm: ComparedArm) -> Criterion:
    """No insertion changed the validation loss, in either direction, in any seed."""
    insertions = [insertion for run in arm.runs for insertion in run.insertions]
    jumps = [abs(insertion.jump) for insertion in insertions if insertion.jump is not None]
    unmeasured = sorted({insertion.step for insertion in insertions if insertion.jump is None})
    value = max(jumps, default=None)
    passed = None if value is None else value <= INSERTION_BOUND
    note = "" if insertions else "not applicable: no insertion"
    if unmeasured:
        note = f"not measured at step {', '.join(f'{step:,}' for step in unmeasured)} (grow --no-eval)"
        passed = False if passed is False else None
    return Criterion(
        name=NO_INSERTION_SPIKE,
        run=arm.name,
        against=baseline.name,
        passed=passed,
        value=value,
        bound=INSERTION_BOUND,
        relation="<=",
        unit=loss_unit(arm.first.history),
        note=note,
        seeds=len(arm.runs),
    )


def _lower_loss(baseline: ComparedArm, arm: ComparedArm) -> Criterion:
    """The arm's validation loss is below the baseline's at the largest step that both evaluated."""
    points = [None if run.equal is None else run.equal.steps for run in arm.pairs]
    differences = estimate([None if point is None else point.difference for point in points])
    steps = sorted({int(point.at) for point in points if point is not None})
    notes: list[str] = []
    going_on: list[str] = []
    if not arm.pairs:
        notes = [NO_COMMON_SEED]
    elif differences is None:
        notes = ["the two were never evaluated at one and the same step"]
    else:
        notes = [f"at step {', '.join(f'{step:,}' for step in steps)}"]
        going_on = [one.name for one in (baseline, arm) if one.first.history.step > steps[-1]]
        shared = min(run.equal.shared_steps for run in arm.pairs if run.equal is not None)
        if steps[-1] <= shared:
            notes.append(f"both are one and the same run up to step {shared:,}")
    criterion = _judged(
        LOWER_LOSS, baseline, arm, differences, LOSS_BOUND, "<", "high", loss_unit(arm.first.history), notes
    )
    if going_on:
        # One run has decayed its learning rate there, the other has not.
        told = f"{' and '.join(going_on)} not at the end of the schedule there: no fair comparison"
        return replace(criterion, passed=None, note=f"{criterion.note}; {told}")
    return criterion


def _comparable_loss(baseline: ComparedArm, arm: ComparedArm) -> Criterion:
    """The arm's final loss is not above the baseline's beyond the interval."""
    unit = loss_unit(arm.first.history)
    return _judged(
        COMPARABLE_LOSS, baseline, arm, arm.loss_difference, LOSS_BOUND, "<=", "low", unit, _ends(baseline, arm)
    )


def _comparable_accuracy(baseline: ComparedArm, arm: ComparedArm) -> Criterion:
    """With several seeds: not below the baseline's beyond the interval. With one: at most half a point below."""
    difference, notes = arm.accuracy_difference, _ends(baseline, arm)
    if difference is not None and difference.number > 1:
        return _judged(COMPARABLE_ACCURACY, baseline, arm, difference, 0.0, ">=", "high", "pt", notes)
    return _judged(COMPARABLE_ACCURACY, baseline, arm, difference, ACCURACY_BOUND, ">", "mean", "pt", notes)


def _cost(baseline: ComparedArm, arm: ComparedArm, axis: Axis, name: str) -> Criterion:
    """What the arm cost up to the baseline's final loss, over what the baseline did; mean over the seeds."""
    ratio, reached, of = arm.cost_to_loss(axis), arm.reached(axis), len(arm.pairs)
    criterion = _judged(name, baseline, arm, ratio, COST_BOUND, "<=", "mean", "ratio", [])
    if of and not arm.recorded(axis):
        return replace(criterion, note="its cost was not recorded")
    if reached < of:
        missed = "not reached" if of == 1 else f"reached by {reached} of {of} seeds"
        return replace(criterion, passed=False, note=f"{missed} within the run")
    return criterion


def _judged(
    name: str,
    baseline: ComparedArm,
    arm: ComparedArm,
    figure: Estimate | None,
    bound: float,
    relation: Relation,
    end: Literal["mean", "low", "high"],
    unit: str,
    notes: Sequence[str],
) -> Criterion:
    """The mean held against its bound, or the end of its interval that is named, where there is one."""
    several = figure is not None and figure.number > 1
    deciding = None if figure is None else getattr(figure, end if several else "mean")
    told = list(notes)
    if figure is None and not arm.pairs:
        told = [NO_COMMON_SEED]
    elif figure is not None and not several and end != "mean":
        told.append(ONE_SEED)
    return Criterion(
        name=name,
        run=arm.name,
        against=baseline.name,
        passed=None if deciding is None else _HOLDS[relation](deciding, bound),
        value=None if figure is None else figure.mean,
        bound=bound,
        relation=relation,
        unit=unit,
        note="; ".join(told),
        low=None if figure is None else figure.low,
        high=None if figure is None else figure.high,
        judged=end if several else "mean",
        seeds=0 if figure is None else figure.number,
    )


def _ends(baseline: ComparedArm, arm: ComparedArm) -> list[str]:
    """The steps of both where they differ."""
    ends = (baseline.first.history.final.step, arm.first.history.final.step)
    return [] if ends[0] == ends[1] else [f"at step {ends[1]:,} against step {ends[0]:,}"]


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
    """`accept` iff all criteria that were judged passed, and one of them is more than the insertion's."""
    judged = [criterion for criterion in criteria if criterion.passed is not None]
    more = any(criterion.name != NO_INSERTION_SPIKE for criterion in judged)
    return "accept" if more and all(criterion.passed for criterion in judged) else "reject"
