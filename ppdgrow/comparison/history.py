"""What a run left behind, read for comparison: its metrics as arrays, its evaluated points, its lineage.

A history ends at a checkpoint: lines of metrics and events after it are not part of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from ppdgrow.checkpoint import RunFolder
from ppdgrow.checkpoint.events import DecisionEvent, Event, GrowEvent, SurgeryEvent, TrainEvent, TrialEvent
from ppdgrow.checkpoint.lineage import by_hand, insertions
from ppdgrow.config.architecture import Architecture
from ppdgrow.config.schema import Recipe
from ppdgrow.config.state import TrainerState, Validation

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
Budget = Literal["flops", "seconds"]

# Of the peak: where the recipe cannot be read, a rate below it is taken for one at the end of a decay.
DECAYED_BELOW = 0.1


@dataclass(frozen=True)
class Evaluated:
    """Validation figures at a step, and what the run had cost by then (FLOPs and seconds since step 0)."""

    step: int
    validation: Validation
    flops: float
    seconds: float | None


@dataclass(frozen=True)
class Metrics:
    """Columns of `metrics.jsonl`, one entry per step; NaN where a line has no such figure.

    Losses are in nats, `grad_norm` (old parameters) and `grad_norm_new` are norms before clipping.
    """

    steps: IntArray
    train_loss: FloatArray
    grad_norm: FloatArray
    grad_norm_new: FloatArray
    evaluations: tuple[Evaluated, ...]


@dataclass(frozen=True)
class RunHistory:
    """A run up to a checkpoint. `recipe` is None where the run's recipe cannot be read.

    `events` are those of `growth.jsonl` that it has behind it; `skipped` says why newer checkpoints of the run were
    passed over; `diverged` is the step at which the run ended so.
    """

    name: str
    run: RunFolder
    checkpoint: Path
    digest: str
    architecture: Architecture
    state: TrainerState
    recipe: Recipe | None
    metrics: Metrics
    events: tuple[Event, ...]
    skipped: tuple[str, ...] = ()
    diverged: int | None = None

    @property
    def final(self) -> Evaluated:
        """The last evaluated point."""
        return self.metrics.evaluations[-1]

    @property
    def step(self) -> int:
        """Optimizer steps that the checkpoint has behind it."""
        return self.state.step

    @property
    def planned_step(self) -> int:
        """The last step that the run was started for; its own step where nobody trained it since it changed.

        The trials of a run are part of its training; a growth by hand ends it.
        """
        for event in reversed(self.events):
            if isinstance(event, TrainEvent) and event.steps is not None:
                return event.step + event.steps
            if isinstance(event, SurgeryEvent) and event.trial is None:
                break
        return self.step

    @property
    def cut_short(self) -> str | None:
        """That the run is not at its end, and why, in words; None where it is."""
        if self.diverged is not None:
            return f"diverged at step {self.diverged:,} of {self.planned_step:,}"
        if self.step < self.planned_step:
            return f"unfinished, at step {self.step:,} of {self.planned_step:,}"
        return None

    @property
    def untrained(self) -> bool:
        """Whether it was grown by hand and no step was made since."""
        changes = by_hand(self.events)
        return bool(changes) and isinstance(changes[-1], GrowEvent) and self.surgery[-1].step == self.step

    @property
    def decayed(self) -> bool:
        """Whether the learning rate went through its decay: the recipe has one, and its schedule is at its end."""
        if self.recipe is None:
            return self.state.lr_factor < DECAYED_BELOW
        trained = [event.step + event.steps for event in self.events if isinstance(event, TrainEvent) and event.steps]
        end = self.recipe.train.horizon or (trained[-1] if trained else self.step)
        return self.recipe.train.decay and self.step >= end and self.state.lr_factor < 1.0

    @property
    def surgery(self) -> tuple[SurgeryEvent, ...]:
        """The growths and removals that the model kept, oldest first."""
        return tuple(event for event in self.events if isinstance(event, SurgeryEvent) and event.is_kept)

    @property
    def insertions(self) -> tuple[GrowEvent, ...]:
        """The growths that the model kept, oldest first."""
        return tuple(insertions(self.events))

    @property
    def changes(self) -> tuple[int, ...]:
        """Steps at which blocks were put in or taken out, ascending."""
        return tuple(sorted({event.step for event in self.surgery}))

    def descends_from(self, parent: RunHistory) -> bool:
        """Whether the lineage shows that very checkpoint of `parent`."""
        made = [event for event in self.events if isinstance(event, TrainEvent | SurgeryEvent) and event.is_kept]
        return any(event.parent_sha256 == parent.digest for event in made)

    def beside(self, step: int, axis: Budget) -> float:
        """FLOPs or seconds that were spent beside the model on trials that were decided by a step."""
        trials = (event for event in self.events if isinstance(event, TrialEvent) and event.decided <= step)
        spent = [event for event in trials if not event.is_kept]
        return sum(event.cost.flops if axis == "flops" else event.timing.seconds for event in spent)

    @property
    def trials_kept(self) -> int:
        """Trials that were accepted, those of ancestors included."""
        return sum(isinstance(event, DecisionEvent) and event.decision == "accept" for event in self.events)

    @property
    def trials_rejected(self) -> int:
        """Trials that were rejected, those of ancestors included; each retry is one."""
        return sum(isinstance(event, DecisionEvent) and event.decision == "reject" for event in self.events)

    @property
    def seeds(self) -> tuple[int, ...]:
        """Training seeds of the run and its ancestors, each once."""
        trained = (event.seed for event in self.events if isinstance(event, TrainEvent) and event.seed is not None)
        seeds = tuple(dict.fromkeys(trained))
        return (self.recipe.train.seed,) if not seeds and self.recipe is not None else seeds


def join_seeds(histories: Iterable[RunHistory]) -> str:
    """The seeds of some runs and their ancestors, separated by commas."""
    return ", ".join(str(seed) for history in histories for seed in history.seeds)
