"""What a run left behind, read for comparison: its metrics as arrays, its evaluated points, its lineage.

A history ends at a checkpoint: lines of metrics and events after it are not part of it. Files are checked line by line,
and a fault names file and line.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal, cast

import numpy as np
import numpy.typing as npt
from pydantic import ValidationError

from ppdgrow.checkpoint import (
    RunFolder,
    lines_up_to,
    manifest_digest,
    read_config,
    read_jsonl,
    read_located,
    read_state,
)
from ppdgrow.checkpoint.events import (
    DecisionEvent,
    DivergedEvent,
    Event,
    GrowEvent,
    SurgeryEvent,
    TrainEvent,
    TrialEvent,
    read_events,
)
from ppdgrow.checkpoint.lineage import by_hand, insertions
from ppdgrow.config.architecture import Architecture
from ppdgrow.config.growth import Rule
from ppdgrow.config.load import Layer, read_run_recipe, resolve
from ppdgrow.config.schema import Recipe
from ppdgrow.config.state import TrainerState, Validation
from ppdgrow.errors import ConfigError, InvalidInputError
from ppdgrow.training.acceptance import RULES
from ppdgrow.training.control import Words, control_command

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
    def is_folder(self) -> bool:
        """Whether it is no run but a folder of Transformers: the model before its training."""
        return self.checkpoint == self.run.path

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
        return (
            not self.is_folder
            and bool(changes)
            and isinstance(changes[-1], GrowEvent)
            and self.surgery[-1].step == self.step
        )

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

    def control(self, *, of_arm: bool = False) -> Words | None:
        """The command that trains the ungrown control of a grown run; see `control_command`."""
        return control_command(self.run, self.architecture, self.state, self.events, self.recipe, of_arm=of_arm)

    @property
    def trials_kept(self) -> int:
        """Trials that were judged and accepted, those of ancestors included."""
        return self._judged("accept")

    @property
    def trials_rejected(self) -> int:
        """Trials that were rejected, those of ancestors included; each retry is one."""
        return self._judged("reject")

    def _judged(self, decision: str) -> int:
        made = (event for event in self.events if isinstance(event, DecisionEvent) and event.decision == decision)
        rules = [RULES.get(cast(Rule, event.rule)) for event in made]
        return sum(rule is None or rule.trains_twin for rule in rules)

    @property
    def seeds(self) -> tuple[int, ...]:
        """Training seeds of the run and its ancestors, each once; a folder of Transformers has none of its own."""
        if self.is_folder:
            return ()
        trained = (event.seed for event in self.events if isinstance(event, TrainEvent) and event.seed is not None)
        seeds = tuple(dict.fromkeys(trained))
        return (self.recipe.train.seed,) if not seeds and self.recipe is not None else seeds


def join_seeds(histories: Iterable[RunHistory]) -> str:
    """The seeds of some runs and their ancestors, separated by commas."""
    return ", ".join(str(seed) for history in histories for seed in history.seeds)


class DivergedRunError(InvalidInputError):
    """A run that diverged before its first evaluation: there is nothing to compare, nor to mend."""


def read_history(path: Path) -> RunHistory:
    """Read the run folder or checkpoint at `path`, without its tensors.

    Raises:
        DivergedRunError: it diverged before its first evaluation.
        InvalidInputError: no valid checkpoint, broken metrics or lineage, no steps, or never evaluated.
    """
    return read_located(path, _read)


def _read(run: RunFolder, folder: Path, skipped: tuple[str, ...]) -> RunHistory:
    state = read_state(folder)
    written = read_events(run.growth_path)
    events = tuple(event for event in written if event.decided <= state.step)
    ends = (event.step for event in written if isinstance(event, DivergedEvent) and event.decided > state.step)
    diverged = next(ends, None)
    if diverged is not None:
        _refuse_unevaluated(run, state.step, diverged, events)
    metrics = _read_metrics(run.metrics_path, state, events)
    if not metrics.evaluations:
        raise InvalidInputError(
            f"{str(run.path)!r} has no evaluated step up to step {state.step}, so there is no loss to compare: "
            "train it on, or grow without --no-eval"
        )
    _check_costs(metrics.evaluations, run.metrics_path)
    return RunHistory(
        name=run.path.resolve().name,
        run=run,
        checkpoint=folder,
        digest=manifest_digest(folder),
        architecture=read_config(folder),
        state=state,
        recipe=_read_recipe(run.recipe_path),
        metrics=metrics,
        events=events,
        skipped=skipped,
        diverged=diverged,
    )


def _refuse_unevaluated(run: RunFolder, step: int, diverged: int, events: Sequence[Event]) -> None:
    """A run that diverged has a loss of its own, not only that of its parent."""
    begun, steps = next(((e.step, e.steps) for e in reversed(events) if isinstance(e, TrainEvent)), (0, None))
    if not any(line["step"] > begun and line.get("validation") for line in lines_up_to(run.metrics_path, step)):
        of = "" if steps is None else f" of {begun + steps:,}"
        raise DivergedRunError(
            f"{str(run.path)!r} diverged at step {diverged:,}{of}, before its first evaluation, so there is no loss to "
            "compare: train anew with a lower train.lr"
        )


def _check_costs(points: Sequence[Evaluated], path: Path) -> None:
    for axis in ("flops", "seconds"):
        known = [(point.step, getattr(point, axis)) for point in points if getattr(point, axis) is not None]
        for (_, before), (step, after) in pairwise(known):
            if after < before:
                raise InvalidInputError(
                    f"{str(path)!r}: the running count of {axis} falls from {before:.6g} to {after:.6g} by step "
                    f"{step}, expected it to grow: restore the file"
                )


def _read_recipe(path: Path) -> Recipe | None:
    try:
        return resolve([Layer("run", read_run_recipe(path))]).recipe
    except ConfigError:
        return None


def _read_metrics(path: Path, state: TrainerState, events: Sequence[Event]) -> Metrics:
    columns: dict[str, list[float]] = {"step": [], "train_loss": [], "grad_norm": [], "grad_norm_new": []}
    evaluations = []
    flops = 0.0
    for number, line in enumerate(read_jsonl(path), start=1):
        if line["step"] > state.step:
            break
        if "train_loss" in line:
            if line.get("flops") is None:
                raise _bad_line(path, number, "flops is None, expected a finite number")
            flops = float(line["flops"])
            for key, column in columns.items():
                column.append(math.nan if line.get(key) is None else line[key])
        # The figures of a step whose own line is lost have no cost.
        if line.get("validation") is not None and columns["step"][-1:] == [line["step"]]:
            try:
                figures = Validation.model_validate(line["validation"])
            except ValidationError as error:
                first = error.errors(include_url=False)[0]
                where = ".".join(("validation", *map(str, first["loc"])))
                raise _bad_line(path, number, f"{where}: {first['msg']}") from None
            seconds = (line.get("timing") or {}).get("seconds")
            evaluations.append(Evaluated(line["step"], figures, flops, None if seconds is None else float(seconds)))
    if not columns["step"]:
        raise InvalidInputError(
            f"{str(path)!r} has no steps up to step {state.step}: expected one line per optimizer step; train the run "
            "first"
        )
    steps = np.array(columns.pop("step"), dtype=np.int64)
    arrays = {key: np.array(column, dtype=np.float64) for key, column in columns.items()}
    return Metrics(steps=steps, evaluations=_closed(evaluations, state, events), **arrays)


def _closed(evaluations: Sequence[Evaluated], state: TrainerState, events: Sequence[Event]) -> tuple[Evaluated, ...]:
    """The evaluated points, the last as the checkpoint itself records it.

    A line of metrics at the step of a growth that changed the function speaks of the parent.
    """
    points = list(evaluations)
    surgery = [event for event in events if isinstance(event, SurgeryEvent) and event.is_kept]
    stale = not all(event.bit_exact for event in surgery if event.step == state.step)
    if state.validation is not None or stale:
        points = [point for point in points if point.step < state.step]
    if state.validation is not None:
        points.append(Evaluated(state.step, state.validation, float(state.ledger.flops), state.ledger.seconds))
    return tuple(points)


def _bad_line(path: Path, number: int, found: str) -> InvalidInputError:
    return InvalidInputError(f"{str(path)!r}, line {number}: {found}; restore the file from a copy of the run")
