"""What decides a comparison: the success criteria of the first experiment, or the rules of acceptance.

A criterion that cannot be judged has `passed` None and a note that says why; it never counts as passed.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from ppdgrow.comparison.curves import Axis
from ppdgrow.comparison.front import PayOff
from ppdgrow.comparison.history import RunHistory
from ppdgrow.comparison.measures import ComparedArm
from ppdgrow.statistics import Estimate, estimate
from ppdgrow.training.acceptance import Decision

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
PAYS = "pays against ungrown training"

UNGROWN = "ungrown runs"
ONE_SEED = "one seed: no interval"
NOT_DECIDING = "does not decide"
UNTRAINED = "not judged: not trained since it was grown"
NO_COMMON_SEED = "not judged: no seed in common"
OTHER_EXAMPLES = "not judged: its losses are of other examples"

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
    units = {"lm": "nats per token", "mlm": "nats per masked token", "classify": "nats per image"}
    return units[history.architecture.task]


def success_criteria(baseline: ComparedArm, arm: ComparedArm) -> tuple[Criterion, ...]:
    """The criteria of one arm against the baseline.

    With several seeds an end of the 95 % interval of the paired differences decides, with one the figure itself.
    Equal steps are the last step at which both were evaluated. The cost to equal loss is that until the validation loss
    first fell to the baseline's final loss, interpolated between evaluations, over the same cost of the baseline.
    Growing pays if the final loss is below what the same FLOPs buy without it.
    """
    new = partial(Criterion, run=arm.name, against=baseline.name, passed=None, value=None, seeds=0)
    of_loss = partial(new, unit=loss_unit(arm.first.history))
    several = len(arm.pairs) > 1
    steps = [one.first.history.final.step for one in (arm, baseline)]
    ends = "" if steps[0] == steps[1] else f"at step {steps[0]:,} against step {steps[1]:,}"
    # With several seeds: not below the baseline's beyond the interval. With one: at most half a point below.
    held: dict[str, Any] = {"bound": 0.0, "relation": ">="} if several else {"bound": ACCURACY_BOUND, "relation": ">"}
    accuracy = new(COMPARABLE_ACCURACY, unit="pt", note=ends, **held)
    loss = of_loss(COMPARABLE_LOSS, bound=LOSS_BOUND, relation="<=", note=ends)
    of_training = [
        _lower_loss(of_loss(LOWER_LOSS, bound=LOSS_BOUND, relation="<"), baseline, arm),
        *([_judged(loss, arm.loss_difference, "low")] if several else []),
        _judged(accuracy, arm.accuracy_difference, "high" if several else "mean"),
        _cost(new(CHEAPER_FLOPS, bound=COST_BOUND, relation="<=", unit="ratio"), arm, "flops"),
        _cost(new(CHEAPER_SECONDS, bound=COST_BOUND, relation="<=", unit="ratio"), arm, "seconds"),
    ]
    pays = [] if arm.pay_off is None else [_pays(of_loss(PAYS, bound=LOSS_BOUND, relation="<"), arm.pay_off)]
    if any(run.beside_folder for run in arm.runs):  # what was not trained here has no course to be judged by
        return tuple(pays)
    if not arm.comparable:
        of_training = [replace(criterion, passed=None, note=OTHER_EXAMPLES) for criterion in of_training]
    elif any(run.history.untrained for run in arm.runs):
        of_training = [replace(criterion, passed=None, note=UNTRAINED) for criterion in of_training]
    elif not arm.pairs:
        of_training = [replace(criterion, note=NO_COMMON_SEED) for criterion in of_training]
    spike = _no_insertion_spike(of_loss(NO_INSERTION_SPIKE, bound=INSERTION_BOUND, relation="<="), arm)
    return (spike, *of_training, *pays)


def _no_insertion_spike(criterion: Criterion, arm: ComparedArm) -> Criterion:
    """No insertion changed the validation loss, in either direction, in any seed."""
    insertions = [insertion for run in arm.runs for insertion in run.insertions]
    value = max((abs(insertion.jump) for insertion in insertions if insertion.jump is not None), default=None)
    unmeasured = sorted({insertion.step for insertion in insertions if insertion.jump is None})
    passed = None if value is None else value <= criterion.bound
    note = "" if insertions else "not applicable: no insertion"
    if unmeasured:
        note = f"not measured at step {', '.join(f'{step:,}' for step in unmeasured)} (grow --no-eval)"
        passed = False if passed is False else None
    return replace(criterion, passed=passed, value=value, note=note, seeds=len(arm.runs))


def _lower_loss(criterion: Criterion, baseline: ComparedArm, arm: ComparedArm) -> Criterion:
    """The arm's validation loss is below the baseline's at the largest step that both evaluated."""
    points = [None if run.equal is None else run.equal.steps for run in arm.pairs]
    differences = estimate([None if point is None else point.difference for point in points])
    if differences is None:
        return replace(criterion, note="the two were never evaluated at one and the same step")
    steps = sorted({int(point.at) for point in points if point is not None})
    note = f"at step {', '.join(f'{step:,}' for step in steps)}"
    shared = min(run.equal.shared_steps for run in arm.pairs if run.equal is not None)
    if steps[-1] <= shared:
        note += f"; both are one and the same run up to step {shared:,}"
    criterion = _judged(replace(criterion, note=note), differences, "high")
    unfinished = [one.name for one in (baseline, arm) if one.first.history.step > steps[-1]]
    if unfinished:  # one run has decayed its learning rate there, the other has not
        why = f"{' and '.join(unfinished)} not at the end of the schedule there: no fair comparison"
        return replace(criterion, passed=None, note=f"{criterion.note}; {why}")
    return criterion


def _cost(criterion: Criterion, arm: ComparedArm, axis: Axis) -> Criterion:
    """What the arm cost up to the baseline's final loss, over what the baseline did."""
    reached, of = arm.reached(axis), len(arm.pairs)
    criterion = _judged(criterion, arm.cost_to_loss(axis), "high")
    if of and not arm.recorded(axis):
        return replace(criterion, note="its cost was not recorded")
    if reached < of:
        missed = "not reached" if of == 1 else f"reached by {reached} of {of} seeds"
        return replace(criterion, passed=False, note=f"{missed} within the run")
    return criterion


def _pays(criterion: Criterion, pay_off: PayOff) -> Criterion:
    """The arm's final loss is below that of the front of ungrown runs at its FLOPs."""
    if pay_off.doubt:
        return replace(criterion, against=UNGROWN, note=pay_off.doubt)
    note = "; ".join(filter(None, (pay_off.rejected, pay_off.note)))
    return _judged(replace(criterion, against=UNGROWN, note=note), pay_off.difference, "high")


def _judged(criterion: Criterion, figure: Estimate | None, end: End) -> Criterion:
    """The criterion with the mean held against its bound, or with several seeds the end of its interval."""
    if figure is None:
        return criterion
    judged: End = end if figure.number > 1 else "mean"
    return replace(
        criterion,
        passed=_HOLDS[criterion.relation](getattr(figure, judged), criterion.bound),
        value=figure.mean,
        note="; ".join(note for note in (criterion.note, "" if judged == end else ONE_SEED) if note),
        low=figure.low,
        high=figure.high,
        judged=judged,
        seeds=figure.number,
    )


def rule_criteria(
    decision: Decision, parent: RunHistory, trial: RunHistory, twin: RunHistory | None
) -> Iterator[Criterion]:
    """The rules of acceptance as criteria, that of the rule that decides first; the twin's only with a twin."""
    against = {"parent": parent, "twin": twin}
    for rule in decision.rules:
        other = against.get(rule.name)
        if other is not None:
            value, bound = rule.judged(decision)
            judged_at = rule.judged_at.format(parent=parent.step, trial=trial.step)
            note = "; ".join([*([] if rule.name == decision.rule else [NOT_DECIDING]), judged_at, "one seed"])
            names, passed = (f"{rule.name} rule", trial.name, other.name), rule.accepts(decision)
            yield Criterion(*names, passed, value, bound, rule.relation, loss_unit(trial), note)


def verdict_of(criteria: Sequence[Criterion]) -> Verdict:
    """`accept` iff all criteria that were judged passed, and one of them is more than the insertion's."""
    judged = [criterion for criterion in criteria if criterion.passed is not None]
    more = any(criterion.name != NO_INSERTION_SPIKE for criterion in judged)
    return "accept" if more and all(criterion.passed for criterion in judged) else "reject"
