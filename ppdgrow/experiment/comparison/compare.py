"""`compare`: runs held against a baseline, with what each cost, and a verdict. Pure data; nothing is printed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ppdgrow.accounting import count_parameters, flops_per_token, half_steps
from ppdgrow.config.state import Cost
from ppdgrow.errors import ConfigError
from ppdgrow.experiment.acceptance import Decision
from ppdgrow.experiment.comparison.comparability import doubts_between, doubts_of, refuse_incomparable
from ppdgrow.experiment.comparison.criteria import (
    ONE_SEED,
    Criterion,
    Verdict,
    success_criteria,
    verdict_of,
)
from ppdgrow.experiment.comparison.curves import EqualFigures, EqualPoint, equal_figures
from ppdgrow.experiment.comparison.history import RunHistory, name_histories, read_history
from ppdgrow.experiment.comparison.insertions import Insertion, insertions_of
from ppdgrow.experiment.comparison.spikes import SpikeCounts, find_spikes

EQUAL_BUDGET_NOTE = (
    "at equal FLOPs or wall-clock the run that costs more is read in mid-course, before its learning rate has "
    "decayed: train a baseline of that budget before you believe such a figure"
)

TRIALS_NOTE = (
    "FLOPs and wall-clock are those of the models themselves, also where two are held against each other at equal "
    "cost; what was spent on rejected trials and on twins comes on top and has rows of its own"
)


@dataclass(frozen=True)
class ComparedRun:
    """One run with everything that is said of it; `equal` is None for the baseline."""

    history: RunHistory
    parameters: int
    flops_per_token: int
    half_steps: int
    flops_ratio: float | None
    seconds_ratio: float | None
    insertions: tuple[Insertion, ...]
    gradient_spikes: SpikeCounts
    loss_spikes: int
    equal: EqualFigures | None

    @property
    def name(self) -> str:
        """The name under which it is shown."""
        return self.history.name

    @property
    def has_trials(self) -> bool:
        """Whether growths were tried in its making, or something was spent on that."""
        history = self.history
        return history.state.ledger.trials != Cost() or history.trials_kept + history.trials_rejected > 0

    def document(self) -> dict[str, Any]:
        """The run's entry in the JSON of `compare`."""
        history, state = self.history, self.history.state
        return {
            "name": history.name,
            "run": history.run.path.as_posix(),
            "checkpoint": history.checkpoint.as_posix(),
            "checkpoint_sha256": history.digest,
            "seeds": list(history.seeds),
            "layers": history.architecture.num_layers,
            "parameters": self.parameters,
            "flops_per_token": self.flops_per_token,
            "half_steps": self.half_steps,
            "steps": state.step,
            "tokens": state.ledger.tokens,
            "flops": state.ledger.flops,
            "flops_ratio": self.flops_ratio,
            "seconds": state.ledger.seconds,
            "seconds_ratio": self.seconds_ratio,
            "trials": state.ledger.trials.model_dump(),
            "trials_kept": history.trials_kept,
            "trials_rejected": history.trials_rejected,
            "lr_factor": state.lr_factor,
            "train_loss": state.train_loss,
            "validation": history.final.validation.model_dump(),
            "validation_step": history.final.step,
            "test": None,
            "insertions": [_insertion_document(insertion) for insertion in self.insertions],
            "gradient_spikes": asdict(self.gradient_spikes),
            "loss_spikes": self.loss_spikes,
            "equal": None if self.equal is None else _equal_document(self.equal),
            "curve": [
                {"step": p.step, "loss": p.validation.loss, "flops": p.flops, "seconds": p.seconds}
                for p in history.metrics.evaluations
            ],
        }


@dataclass(frozen=True)
class Decided:
    """A decision on a trial, and what trial and twin cost since the parent (None: no twin, or not known)."""

    decision: Decision
    trial_cost: Cost | None
    twin_cost: Cost | None

    def document(self) -> dict[str, Any]:
        """The JSON of the decision."""
        costs = {"trial": self.trial_cost, "twin": self.twin_cost}
        plain = {name: None if cost is None else cost.model_dump() for name, cost in costs.items()}
        return {**self.decision.document(), "cost": plain}


@dataclass(frozen=True)
class Comparison:
    """Runs, baseline first. `decided` is set by `--accept` only: the runs are then parent, trial and twin."""

    runs: tuple[ComparedRun, ...]
    criteria: tuple[Criterion, ...]
    decided: Decided | None
    warnings: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def baseline(self) -> ComparedRun:
        """The run that the others are held against; with `--accept` the parent."""
        return self.runs[0]

    @property
    def others(self) -> tuple[ComparedRun, ...]:
        """All runs but the baseline."""
        return self.runs[1:]

    @property
    def verdict(self) -> Verdict:
        """That of the rule that decides; else `accept` iff a criterion was judged and all that were passed."""
        if self.decided is not None:
            return "accept" if self.decided.decision.accepted else "reject"
        return verdict_of(self.criteria)

    def document(self) -> dict[str, Any]:
        """The JSON of `compare` (DESIGN section 4)."""
        return {
            "schema": 1,
            "baseline": self.baseline.name,
            "runs": [run.document() for run in self.runs],
            "criteria": [asdict(criterion) for criterion in self.criteria],
            "decision": None if self.decided is None else self.decided.document(),
            "verdict": self.verdict,
            "warnings": list(self.warnings),
            "notes": list(self.notes),
        }


def compare_runs(paths: Sequence[Path]) -> Comparison:
    """Hold every run against the first one.

    Args:
        paths: run folders, or checkpoints in them; the baseline first.

    Raises:
        ConfigError: too few paths, or runs whose losses are not comparable.
        InvalidInputError: a path is no run, its files are broken, or it was never evaluated.
    """
    if len(paths) < 2:
        raise ConfigError(f"found {len(paths)} runs, expected a baseline and at least one other run to compare")
    histories = name_histories([read_history(path) for path in paths])
    baseline, others = histories[0], histories[1:]
    for other in others:
        refuse_incomparable(baseline, other)
    warnings = [
        *(doubt for history in histories for doubt in doubts_of(history)),
        *(doubt for other in others for doubt in doubts_between(baseline, other)),
    ]
    runs = tuple(compared(history, baseline) for history in histories)
    criteria = tuple(
        criterion
        for run in runs[1:]
        if run.equal is not None
        for criterion in success_criteria(baseline, run.history, run.insertions, run.equal)
    )
    return Comparison(runs, criteria, None, tuple(warnings), _notes(runs))


def compared(history: RunHistory, baseline: RunHistory) -> ComparedRun:
    """A run with its figures against the baseline, which may be the run itself."""
    spikes = find_spikes(history.metrics, history.changes)
    ledger, reference = history.state.ledger, baseline.state.ledger
    return ComparedRun(
        history=history,
        parameters=count_parameters(history.architecture),
        flops_per_token=flops_per_token(history.architecture),
        half_steps=half_steps(history.architecture),
        flops_ratio=ledger.flops / reference.flops if reference.flops else None,
        seconds_ratio=ledger.seconds / reference.seconds if reference.seconds else None,
        insertions=insertions_of(history, spikes),
        gradient_spikes=spikes.gradients(0, history.step),
        loss_spikes=spikes.losses(0, history.step),
        equal=None if history is baseline else equal_figures(baseline, history),
    )


def _notes(runs: Sequence[ComparedRun]) -> tuple[str, ...]:
    budgets = any(run.equal is not None and (run.equal.flops or run.equal.seconds) for run in runs)
    trials = any(run.has_trials for run in runs)
    return (ONE_SEED, *((EQUAL_BUDGET_NOTE,) if budgets else ()), *((TRIALS_NOTE,) if trials else ()))


def _insertion_document(insertion: Insertion) -> dict[str, Any]:
    return asdict(insertion) | {"kinds": list(insertion.kinds), "ids": list(insertion.ids)}


def _equal_document(equal: EqualFigures) -> dict[str, Any]:
    return {
        "steps": _point_document(equal.steps, "step"),
        "flops": _point_document(equal.flops, "flops"),
        "seconds": _point_document(equal.seconds, "seconds"),
        "shared_steps": equal.shared_steps,
        "curve": [_point_document(point, "step") for point in equal.curve],
    }


def _point_document(point: EqualPoint | None, axis: str) -> dict[str, Any] | None:
    if point is None:
        return None
    return {
        axis: int(point.at) if axis == "step" else point.at,
        "loss": point.loss,
        "baseline_loss": point.baseline_loss,
        "difference": point.difference,
    }
