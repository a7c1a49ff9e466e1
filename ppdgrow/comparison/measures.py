"""The figures of a comparison: of one run against the baseline's run of its seed, and of an arm over its seeds."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from ppdgrow.comparison.curves import Axis, EqualFigures, cost_ratio, equal_figures, recorded
from ppdgrow.comparison.front import PayOff, grew_in_vain, pay_off
from ppdgrow.comparison.history import RunHistory
from ppdgrow.comparison.identity import are_comparable
from ppdgrow.comparison.insertions import Insertion, SpikeCounts, SpikeSteps, find_spikes, insertions_of
from ppdgrow.config.state import Cost, Validation
from ppdgrow.statistics import Estimate, estimate
from ppdgrow.training.control import Words


@dataclass(frozen=True)
class FiguresOn:
    """Figures of a run on examples of another data set: so many, of a validation split with this sha256.

    `reference` are those of the run's reference on the same examples, None where it has others; where their tokenizers
    differ (`same_tokens` is False) the losses, which are per token, do not compare.
    """

    figures: Validation
    examples: int
    sha256: str
    reference: Validation | None
    same_tokens: bool = True

    @property
    def loss_difference(self) -> float | None:
        """Loss minus that of the reference."""
        return self.figures.loss - self.reference.loss if self.reference is not None and self.same_tokens else None

    @property
    def bits_difference(self) -> float | None:
        """Bits per byte minus those of the reference."""
        own, other = (None if one is None else one.bits_per_byte for one in (self.figures, self.reference))
        return None if own is None or other is None else own - other


@dataclass(frozen=True)
class ComparedRun:
    """One run with everything that is said of it.

    `reference` is the baseline's run of the same seed, or where there is none its first (`paired` is then False); for
    the runs of the baseline it is the run itself. Where their own examples differ (`comparable` is then False) none
    of their losses is held against the other. `on` are its figures on other data sets, by what these were called.
    """

    history: RunHistory
    reference: RunHistory
    paired: bool = True
    comparable: bool = True
    test: Validation | None = None
    on: Mapping[str, FiguresOn] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.history.name

    @property
    def validation(self) -> Validation:
        return self.history.final.validation

    @property
    def beside_folder(self) -> bool:
        """Whether it or its reference is a folder of Transformers, which has no curve and cost nothing here."""
        return self.history.is_folder or self.reference.is_folder

    @cached_property
    def equal(self) -> EqualFigures | None:
        """The run against its reference; None for the runs of the baseline, and where they do not compare."""
        alone = self.history is self.reference or not self.comparable or self.beside_folder
        return None if alone else equal_figures(self.reference, self.history)

    @cached_property
    def _spikes(self) -> SpikeSteps:
        return find_spikes(self.history.metrics, self.history.changes)

    @property
    def gradient_spikes(self) -> SpikeCounts:
        return self._spikes.gradients(0, self.history.step)

    @property
    def loss_spikes(self) -> int:
        return self._spikes.losses(0, self.history.step)

    @cached_property
    def insertions(self) -> tuple[Insertion, ...]:
        """Every growth in the run's lineage, oldest first."""
        return insertions_of(self.history, self._spikes)

    @property
    def loss_difference(self) -> float | None:
        """Final validation loss minus that of the reference."""
        return self.validation.loss - self.reference.final.validation.loss if self.comparable else None

    @property
    def accuracy_difference(self) -> float | None:
        """Final accuracy in percentage points minus that of the reference."""
        difference = self.validation.accuracy - self.reference.final.validation.accuracy
        return 100.0 * difference if self.comparable else None

    def cost_to_loss(self, axis: Axis) -> float | None:
        """What it cost to reach the reference's final loss, over what it cost the reference; trials included."""
        comparable = self.comparable and not self.beside_folder
        return cost_ratio(self.reference, self.history, axis) if comparable else None


@dataclass(frozen=True)
class ComparedArm:
    """Runs that differ in nothing but their seeds, by rising seed, with what they say together.

    A figure is None where a run lacks it, or for the baseline. `left_out` names runs of its folder that do not count;
    `pay_off` is that of an arm that was grown, or whose growths were all rejected.
    """

    name: str
    runs: tuple[ComparedRun, ...]
    left_out: tuple[str, ...] = ()
    pay_off: PayOff | None = None

    @classmethod
    def of(cls, name: str, histories: Sequence[RunHistory], left_out: Sequence[str] = ()) -> ComparedArm:
        """An arm that is held against nothing, as the baseline is."""
        return cls(name, tuple(ComparedRun(history, history) for history in histories), tuple(left_out))

    def against(self, baseline: ComparedArm) -> ComparedArm:
        """The arm with each of its runs held against the baseline's run of the same seed.

        One that was trained from a run of the baseline, on other examples, is held against that one.
        """
        first = baseline.first.history
        references = {history.seeds: history for history in reversed(baseline.histories)}
        if len(baseline.runs) == len(self.runs) == 1:
            references = {self.first.history.seeds: first}  # one run against one: the warning names their seeds
        runs = []
        for history in self.histories:
            found = (
                first if first.is_folder else _parent_of(history, baseline.histories) or references.get(history.seeds)
            )
            comparable = are_comparable(found or first, history)
            runs.append(ComparedRun(history, found or first, paired=found is not None, comparable=comparable))
        return replace(self, runs=tuple(runs))

    def judged_beside(self, histories: Sequence[RunHistory]) -> ComparedArm:
        """The arm, if it grew or tried to, with its figures against the ungrown ones of all these runs."""
        tried = [history for history in self.histories if history.insertions or grew_in_vain(history)]
        grown = [history for history in tried if not history.is_folder]
        others = [history for history in histories if are_comparable(self.first.history, history)]
        return replace(self, pay_off=pay_off(grown, others)) if grown else self

    def missing_controls(self, folders: Collection[Path] = ()) -> Iterator[Words]:
        """The commands that train what is missing to judge whether growing paid; `folders` hold the runs of an arm."""
        for run in self.runs if self.pay_off is not None and self.pay_off.needs_control else ():
            words = run.history.control(of_arm=run.history.run.path.parent.resolve() in folders)
            if words is not None:
                yield words

    @property
    def is_baseline(self) -> bool:
        return self.first.history is self.first.reference

    @property
    def comparable(self) -> bool:
        """Whether its own figures are of the same examples as those of the baseline."""
        return all(run.comparable for run in self.runs)

    @property
    def pairs(self) -> tuple[ComparedRun, ...]:
        """The runs that have a run of the baseline with the same seed."""
        return tuple(run for run in self.runs if run.paired)

    @property
    def first(self) -> ComparedRun:
        """The run of the lowest seed: what does not depend on the seed is read from it."""
        return self.runs[0]

    @property
    def has_trials(self) -> bool:
        """Whether growths were tried in the making of a run, or something was spent on that."""
        spent = any(history.state.ledger.trials != Cost() for history in self.histories)
        return spent or any(history.trials_kept + history.trials_rejected for history in self.histories)

    @property
    def histories(self) -> list[RunHistory]:
        return [run.history for run in self.runs]

    @property
    def loss_difference(self) -> Estimate | None:
        """Paired differences of the final validation loss."""
        return None if self.is_baseline else estimate([run.loss_difference for run in self.pairs])

    @property
    def accuracy_difference(self) -> Estimate | None:
        """Paired differences of the final accuracy in percentage points."""
        return None if self.is_baseline else estimate([run.accuracy_difference for run in self.pairs])

    def loss_difference_on(self, data: str) -> Estimate | None:
        """Paired differences of the loss on another data set."""
        return None if self.is_baseline else estimate([run.on[data].loss_difference for run in self.pairs])

    def bits_difference_on(self, data: str) -> Estimate | None:
        """Paired differences of the bits per byte on another data set."""
        return None if self.is_baseline else estimate([run.on[data].bits_difference for run in self.pairs])

    def cost_to_loss(self, axis: Axis) -> Estimate | None:
        """Cost to the baseline's final loss over the baseline's own; None where a seed never reached it."""
        return None if self.is_baseline else estimate([run.cost_to_loss(axis) for run in self.pairs], ratio=True)

    def recorded(self, axis: Axis) -> bool:
        """Whether every pair has the costs on this axis."""
        if any(run.beside_folder for run in self.pairs):
            return False
        return all(recorded(history, axis) for run in self.pairs for history in (run.history, run.reference))

    def reached(self, axis: Axis) -> int:
        """How many of the pairs reached the baseline's final loss."""
        return sum(run.cost_to_loss(axis) is not None for run in self.pairs)


def _parent_of(history: RunHistory, others: Sequence[RunHistory]) -> RunHistory | None:
    """The one of these from whose checkpoint a run was trained on, on other examples."""
    found = (other for other in others if history.descends_from(other) and not are_comparable(other, history))
    return next(found, None)


def several_seeds(arms: Sequence[ComparedArm]) -> bool:
    return any(len(arm.runs) > 1 for arm in arms)


def single_runs(arm: ComparedArm) -> list[ComparedArm]:
    """Each run of an arm as an arm of its own."""
    return [replace(arm, runs=(run,), left_out=(), pay_off=None) for run in arm.runs]
