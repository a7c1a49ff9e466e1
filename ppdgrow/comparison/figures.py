"""The figures of a comparison: of one run against the baseline's run of its seed, and of an arm over its seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ppdgrow.comparison.arms import Arm
from ppdgrow.comparison.curves import (
    AXES,
    Axis,
    EqualFigures,
    EqualPoint,
    cost_ratio,
    equal_figures,
    recorded,
)
from ppdgrow.comparison.history import RunHistory
from ppdgrow.comparison.insertions import Insertion, insertions_of
from ppdgrow.comparison.spikes import SpikeCounts, find_spikes
from ppdgrow.config.state import Cost, Validation
from ppdgrow.nn.cost import count_parameters, flops_per_token, half_steps
from ppdgrow.statistics import Estimate, estimate


@dataclass(frozen=True)
class ComparedRun:
    """One run with everything that is said of it.

    `reference` is the baseline's run of the same seed, or where there is none its first (`paired` tells); for the
    runs of the baseline it is the run itself. `equal` is None for these.
    """

    history: RunHistory
    reference: RunHistory
    paired: bool
    insertions: tuple[Insertion, ...]
    gradient_spikes: SpikeCounts
    loss_spikes: int
    equal: EqualFigures | None
    test: Validation | None = None

    @property
    def name(self) -> str:
        """The name under which it is shown."""
        return self.history.name

    @property
    def parameters(self) -> int:
        """Parameters of the model."""
        return count_parameters(self.history.architecture)

    @property
    def flops_per_token(self) -> int:
        """Forward FLOPs per token."""
        return flops_per_token(self.history.architecture)

    @property
    def half_steps(self) -> int:
        """Sequential half-steps of the model."""
        return half_steps(self.history.architecture)

    @property
    def flops_ratio(self) -> float | None:
        """FLOPs of the model, over those of the reference."""
        reference = self.reference.state.ledger.flops
        return self.history.state.ledger.flops / reference if reference else None

    @property
    def seconds_ratio(self) -> float | None:
        """Seconds of training, over those of the reference."""
        reference = self.reference.state.ledger.seconds
        return self.history.state.ledger.seconds / reference if reference else None

    @property
    def has_trials(self) -> bool:
        """Whether growths were tried in its making, or something was spent on that."""
        history = self.history
        return history.state.ledger.trials != Cost() or history.trials_kept + history.trials_rejected > 0

    @property
    def loss_difference(self) -> float:
        """Final validation loss minus that of the reference."""
        return self.history.final.validation.loss - self.reference.final.validation.loss

    @property
    def accuracy_difference(self) -> float:
        """Final accuracy in percentage points minus that of the reference."""
        return 100.0 * (self.history.final.validation.accuracy - self.reference.final.validation.accuracy)

    def cost_to_loss(self, axis: Axis) -> float | None:
        """What it cost to reach the reference's final loss, over what it cost the reference; trials included."""
        return cost_ratio(self.reference, self.history, axis)

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
            "test": None if self.test is None else self.test.model_dump(),
            "insertions": [_insertion_document(insertion) for insertion in self.insertions],
            "gradient_spikes": asdict(self.gradient_spikes),
            "loss_spikes": self.loss_spikes,
            "cost_to_baseline_loss": None if self.equal is None else {axis: self.cost_to_loss(axis) for axis in AXES},
            "equal": None if self.equal is None else _equal_document(self.equal),
            "curve": [
                {"step": p.step, "loss": p.validation.loss, "flops": p.flops, "seconds": p.seconds}
                for p in history.metrics.evaluations
            ],
        }


@dataclass(frozen=True)
class ComparedArm:
    """The runs of one arm, with what they say together. A figure is None where a run lacks it.

    `left_out` names the runs of its folder that do not count.
    """

    name: str
    runs: tuple[ComparedRun, ...]
    is_baseline: bool = False
    left_out: tuple[str, ...] = ()

    @property
    def pairs(self) -> tuple[ComparedRun, ...]:
        """The runs that have a run of the baseline with the same seed."""
        return tuple(run for run in self.runs if run.paired)

    @property
    def first(self) -> ComparedRun:
        """The run of the lowest seed: what does not depend on the seed is read from it."""
        return self.runs[0]

    @property
    def loss(self) -> Estimate:
        """Final validation losses in nats."""
        return Estimate(tuple(run.history.final.validation.loss for run in self.runs))

    @property
    def accuracy(self) -> Estimate:
        """Final validation accuracies in percent."""
        return Estimate(tuple(100.0 * run.history.final.validation.accuracy for run in self.runs))

    @property
    def train_loss(self) -> Estimate | None:
        """Training losses at the end, as the checkpoints record them."""
        return estimate([run.history.state.train_loss for run in self.runs])

    @property
    def test_loss(self) -> Estimate | None:
        """Losses on the test split."""
        return estimate([None if run.test is None else run.test.loss for run in self.runs])

    @property
    def test_accuracy(self) -> Estimate | None:
        """Accuracies on the test split in percent."""
        return estimate([None if run.test is None else 100.0 * run.test.accuracy for run in self.runs])

    @property
    def flops_ratio(self) -> Estimate | None:
        """FLOPs over those of the baseline."""
        return estimate([run.flops_ratio for run in self.runs])

    @property
    def seconds_ratio(self) -> Estimate | None:
        """Seconds over those of the baseline."""
        return estimate([run.seconds_ratio for run in self.runs])

    @property
    def loss_difference(self) -> Estimate | None:
        """Paired differences of the final validation loss."""
        return None if self.is_baseline else estimate([run.loss_difference for run in self.pairs])

    @property
    def accuracy_difference(self) -> Estimate | None:
        """Paired differences of the final accuracy in percentage points."""
        return None if self.is_baseline else estimate([run.accuracy_difference for run in self.pairs])

    def cost_to_loss(self, axis: Axis) -> Estimate | None:
        """Cost to the baseline's final loss over the baseline's own; None where a seed never reached it."""
        return None if self.is_baseline else estimate([run.cost_to_loss(axis) for run in self.pairs])

    def recorded(self, axis: Axis) -> bool:
        """Whether every pair has the costs on this axis."""
        return all(recorded(history, axis) for run in self.pairs for history in (run.history, run.reference))

    def reached(self, axis: Axis) -> int:
        """How many of the pairs reached the baseline's final loss."""
        return sum(run.cost_to_loss(axis) is not None for run in self.pairs)

    def document(self) -> dict[str, Any]:
        """The arm's entry in the JSON of `compare`."""
        costs = None if self.is_baseline else {axis: _document(self.cost_to_loss(axis)) for axis in AXES}
        return {
            "name": self.name,
            "runs": [run.name for run in self.runs],
            "seeds": [list(run.history.seeds) for run in self.runs],
            "paired_seeds": [list(run.history.seeds) for run in self.pairs],
            "left_out": list(self.left_out),
            "loss": self.loss.document(),
            "accuracy": self.accuracy.document(),
            "train_loss": _document(self.train_loss),
            "test_loss": _document(self.test_loss),
            "test_accuracy": _document(self.test_accuracy),
            "flops_ratio": _document(self.flops_ratio),
            "seconds_ratio": _document(self.seconds_ratio),
            "loss_difference": _document(self.loss_difference),
            "accuracy_difference": _document(self.accuracy_difference),
            "cost_to_baseline_loss": costs,
        }


def compared_arms(arms: Sequence[Arm]) -> tuple[ComparedArm, ...]:
    """Every run of every arm against the runs of the first arm."""
    references = {history.seeds: history for history in reversed(arms[0].histories)}
    alone = len(arms[0].histories) == 1
    own = tuple(compared(history, history) for history in arms[0].histories)
    found = [ComparedArm(arms[0].name, own, is_baseline=True, left_out=arms[0].left_out)]
    for arm in arms[1:]:
        runs = []
        for history in arm.histories:
            reference = references.get(history.seeds)
            if reference is None and alone and len(arm.histories) == 1:
                reference = arms[0].histories[0]  # one run against one: the warning names their seeds
            runs.append(compared(history, reference or arms[0].histories[0], paired=reference is not None))
        found.append(ComparedArm(arm.name, tuple(runs), left_out=arm.left_out))
    return tuple(found)


def compared(history: RunHistory, reference: RunHistory, *, paired: bool = True) -> ComparedRun:
    """A run with its figures against a run of the baseline, which may be the run itself."""
    spikes = find_spikes(history.metrics, history.changes)
    return ComparedRun(
        history=history,
        reference=reference,
        paired=paired,
        insertions=insertions_of(history, spikes),
        gradient_spikes=spikes.gradients(0, history.step),
        loss_spikes=spikes.losses(0, history.step),
        equal=None if history is reference else equal_figures(reference, history),
    )


def _document(figure: Estimate | None) -> dict[str, Any] | None:
    return None if figure is None else figure.document()


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
