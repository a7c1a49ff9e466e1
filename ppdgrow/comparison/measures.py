"""The figures of a comparison: of one run against the baseline's run of its seed, and of an arm over its seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ppdgrow.comparison.arms import Arm
from ppdgrow.comparison.curves import Axis, EqualFigures, cost_ratio, equal_figures, recorded
from ppdgrow.comparison.history import RunHistory
from ppdgrow.comparison.insertions import Insertion, insertions_of
from ppdgrow.comparison.spikes import SpikeCounts, find_spikes
from ppdgrow.config.state import Cost, Validation
from ppdgrow.statistics import Estimate, estimate


@dataclass(frozen=True)
class ComparedRun:
    """One run with everything that is said of it.

    `reference` is the baseline's run of the same seed, or where there is none its first (`paired` is then False); for
    the runs of the baseline it is the run itself. `equal` is None for these.
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
        return self.history.name

    @property
    def validation(self) -> Validation:
        return self.history.final.validation

    @property
    def has_trials(self) -> bool:
        """Whether growths were tried in its making, or something was spent on that."""
        history = self.history
        return history.state.ledger.trials != Cost() or history.trials_kept + history.trials_rejected > 0

    @property
    def loss_difference(self) -> float:
        """Final validation loss minus that of the reference."""
        return self.validation.loss - self.reference.final.validation.loss

    @property
    def accuracy_difference(self) -> float:
        """Final accuracy in percentage points minus that of the reference."""
        return 100.0 * (self.validation.accuracy - self.reference.final.validation.accuracy)

    def cost_to_loss(self, axis: Axis) -> float | None:
        """What it cost to reach the reference's final loss, over what it cost the reference; trials included."""
        return cost_ratio(self.reference, self.history, axis)


@dataclass(frozen=True)
class ComparedArm:
    """The runs of one arm, by rising seed, with what they say together. A figure is None where a run lacks it.

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
    def histories(self) -> list[RunHistory]:
        return [run.history for run in self.runs]

    @property
    def loss(self) -> Estimate:
        """Final validation losses in nats."""
        return Estimate(tuple(run.validation.loss for run in self.runs))

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


def compared_arms(arms: Sequence[Arm]) -> tuple[ComparedArm, ...]:
    """Every run of every arm against the runs of the first arm."""
    baseline = arms[0].histories
    references = {history.seeds: history for history in reversed(baseline)}
    own = tuple(compared_run(history, history) for history in baseline)
    found = [ComparedArm(arms[0].name, own, is_baseline=True, left_out=arms[0].left_out)]
    for arm in arms[1:]:
        runs = []
        for history in arm.histories:
            reference = references.get(history.seeds)
            if reference is None and len(baseline) == len(arm.histories) == 1:
                reference = baseline[0]  # one run against one: the warning names their seeds
            runs.append(compared_run(history, reference or baseline[0], paired=reference is not None))
        found.append(ComparedArm(arm.name, tuple(runs), left_out=arm.left_out))
    return tuple(found)


def compared_run(history: RunHistory, reference: RunHistory, *, paired: bool = True) -> ComparedRun:
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
