"""`compare --accept`: whether a trial is kept, by the parent rule or the twin rule, and what deciding cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ppdgrow.comparison.comparability import (
    check_evaluated,
    check_trial,
    group_warnings,
    refuse_incomparable,
    warnings_between,
    warnings_of_trial,
)
from ppdgrow.comparison.compare import Comparison, Decided
from ppdgrow.comparison.criteria import ONE_SEED, Criterion, parent_rule, twin_rule
from ppdgrow.comparison.evaluation import EvaluationOptions
from ppdgrow.comparison.figures import ComparedArm, compared
from ppdgrow.comparison.history import RunHistory, name_histories
from ppdgrow.comparison.reading import read_history
from ppdgrow.comparison.twin import (
    check_twin,
    difference_to_twin,
    warnings_of_twin,
)
from ppdgrow.config.growth import JudgingRule, TrialConfig
from ppdgrow.config.state import Cost
from ppdgrow.console import Narrator
from ppdgrow.errors import ConfigError
from ppdgrow.training.acceptance import PARENT_RULE_NOTE, Decision


@dataclass(frozen=True)
class DecisionRequest:
    """What a user asks of `compare --accept`; None: not given.

    Args:
        paths: PARENT and TRIAL, run folders or checkpoints in them.
        epsilon: nats that the trial may lose against the parent; negative demands a gain.
        twin: the ungrown model, trained from PARENT on the same batches for the same budget.
        rule: the one that decides; without it the twin rule where there is a twin.
        margin: nats that the trial may lose against the twin; negative demands a gain.
        evaluation: where trial and twin are evaluated.
    """

    paths: Sequence[Path]
    epsilon: float | None = None
    twin: Path | None = None
    rule: JudgingRule | None = None
    margin: float | None = None
    evaluation: EvaluationOptions = field(default_factory=EvaluationOptions)


def decide(request: DecisionRequest, narrator: Narrator) -> Comparison:
    """Hold a trial against its parent and, if one is given, its twin.

    Raises:
        ConfigError: a wrong request, runs whose losses are not comparable, or a twin that is none.
        InvalidInputError: a path is no run, its files are broken, or it was not evaluated at its step.
    """
    check_request(request)
    paths = [*request.paths, *([] if request.twin is None else [request.twin])]
    histories = name_histories([read_history(path) for path in paths])
    parent, trial = histories[:2]
    twin = histories[2] if request.twin is not None else None
    for other in histories[1:]:
        refuse_incomparable(parent, other)
    check_evaluated(histories)
    check_trial(parent, trial)
    between = [(trial.name, warning) for warning in warnings_between(parent, trial, parent.name)]
    warnings = [
        *group_warnings(between, {history.name: [history.name] for history in histories}),
        *warnings_of_trial(parent, trial),
    ]
    difference = None
    if twin is not None:
        check_twin(parent, trial, twin)
        warnings += warnings_of_twin(parent, trial, twin)
        difference, changed = difference_to_twin(trial, twin, request.evaluation, narrator)
        warnings += changed
    decision = Decision(
        rule=request.rule or ("parent" if twin is None else "twin"),
        loss_before=parent.final.validation.loss,
        loss_after=trial.final.validation.loss,
        epsilon=_given(request.epsilon, "epsilon"),
        twin=difference,
        margin=_given(request.margin, "margin"),
    )
    return Comparison(
        arms=tuple(
            ComparedArm(history.name, (compared(history, parent),), is_baseline=history is parent)
            for history in histories
        ),
        criteria=_criteria(parent, trial, twin, decision),
        decided=Decided(decision, _cost(parent, trial), None if twin is None else _cost(parent, twin)),
        warnings=tuple(warnings),
        notes=tuple(dict.fromkeys((*_cautions(decision), ONE_SEED))),
    )


def _cautions(decision: Decision) -> list[str]:
    """What its figures do not say; of the parent rule also where a twin stands beside it and does not decide."""
    return [*([PARENT_RULE_NOTE] if decision.rule == "parent" else []), decision.caution()]


def _given(value: float | None, key: str) -> float:
    return float(getattr(TrialConfig(), key)) if value is None else value


def _criteria(
    parent: RunHistory, trial: RunHistory, twin: RunHistory | None, decision: Decision
) -> tuple[Criterion, ...]:
    """One for each rule whose figure is known, the one that decides first."""
    rules = [parent_rule(parent, trial, decision)]
    if twin is not None:
        rules.insert(0 if decision.rule == "twin" else 1, twin_rule(trial, twin, decision))
    return tuple(rules)


def _cost(parent: RunHistory, child: RunHistory) -> Cost | None:
    """What a run cost since the parent; None where it cost less than the parent, so does not descend from it."""
    before, after = parent.state.ledger, child.state.ledger
    if after.tokens < before.tokens or after.flops < before.flops:
        return None
    return after.since(before)


def check_request(request: DecisionRequest) -> None:
    """The request can be decided, and nothing in it does nothing.

    Raises:
        ConfigError: it cannot, or something does.
    """
    if len(request.paths) != 2:
        raise ConfigError(
            f"--accept decides between two runs, PARENT and TRIAL, found {len(request.paths)}: give these two"
        )
    for flag, value in (("--epsilon", request.epsilon), ("--margin", request.margin)):
        if value is not None and (type(value) not in (int, float) or not math.isfinite(value)):
            raise ConfigError(f"{flag} is {value!r}, expected a finite number of nats, such as 0.01")
    if request.twin is not None:
        return
    if request.rule == "twin":
        raise ConfigError("--rule twin found no twin to compare the trial with: add --twin RUN, or use --rule parent")
    refuse_without("--twin RUN", {"--margin": request.margin, **evaluation_flags(request.evaluation)})


def evaluation_flags(options: EvaluationOptions) -> dict[str, Any]:
    """The flags of the evaluation of trial and twin, with what was given."""
    return {"--device": options.device, "--precision": options.precision, "--data-dir": options.data_dir}


def refuse_without(needed: str, flags: dict[str, Any]) -> None:
    """Refuse flags that would do nothing without another one.

    Raises:
        ConfigError: one of them was given.
    """
    given = " and ".join(flag for flag, value in flags.items() if value is not None)
    if given:
        raise ConfigError(
            f"found {given} without {needed}, where it would do nothing: add {needed}, or leave out {given}"
        )
