"""What a run left behind, read for comparison: its metrics as arrays, its evaluated points, its lineage.

A history ends at a checkpoint: lines of metrics and events after it are not part of it.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ppdgrow.checkpoint import RunFolder, locate_checkpoint, manifest_digest, read_config, read_jsonl, read_state
from ppdgrow.config.architecture import Architecture
from ppdgrow.config.load import Layer, read_yaml, resolve
from ppdgrow.config.schema import Recipe
from ppdgrow.config.state import Count, Finite, TrainerState, Validation
from ppdgrow.errors import ConfigError, InvalidInputError

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
Names = Annotated[tuple[str, ...], Field(strict=False)]

# The events of `growth.jsonl` that a comparison reads; the others say nothing that these do not.
SURGERY = ("grow", "remove")
READ = ("train", "decision", *SURGERY)


class GrowthEvent(BaseModel):
    """One line of `growth.jsonl`, as far as a comparison needs it; other keys are left alone."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    event: str
    step: Count
    until: Count | None = None
    trial: str | None = None
    decision: Literal["accept", "reject"] | None = None
    steps: Count | None = None
    parent_sha256: str | None = None
    seed: int | None = None
    method: str | None = None
    kinds: Names = ()
    ids: Names = ()
    layers_before: Count | None = None
    layers_after: Count | None = None
    loss_before: Finite | None = None
    loss_after: Finite | None = None
    bit_exact: bool | None = None

    @property
    def decided(self) -> int:
        """The first step at which a checkpoint has the event behind it: for a trial, that of its decision."""
        return self.step if self.until is None else max(self.step, self.until)

    @property
    def changed_the_model(self) -> bool:
        """Whether blocks came or went for good: not in a rejected trial."""
        return self.event in SURGERY and self.decision != "reject"


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
    """A run up to a checkpoint. `recipe` is None where the run's recipe cannot be read."""

    name: str
    run: RunFolder
    checkpoint: Path
    digest: str
    architecture: Architecture
    state: TrainerState
    recipe: Recipe | None
    metrics: Metrics
    events: tuple[GrowthEvent, ...]

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
            if event.event == "train" and event.steps is not None:
                return event.step + event.steps
            if event.event in SURGERY and event.trial is None:
                break
        return self.step

    @property
    def surgery(self) -> tuple[GrowthEvent, ...]:
        """The growths and removals that the model kept, oldest first."""
        return tuple(event for event in self.events if event.changed_the_model)

    @property
    def insertions(self) -> tuple[GrowthEvent, ...]:
        """The growths that the model kept, oldest first."""
        return tuple(event for event in self.surgery if event.event == "grow")

    @property
    def changes(self) -> tuple[int, ...]:
        """Steps at which blocks were put in or taken out, ascending."""
        return tuple(sorted({event.step for event in self.surgery}))

    def descends_from(self, parent: RunHistory) -> bool:
        """Whether the lineage shows that very checkpoint of `parent`."""
        return any(event.parent_sha256 == parent.digest and event.decision != "reject" for event in self.events)

    @property
    def trials_kept(self) -> int:
        """Trials that were accepted, those of ancestors included."""
        return self._decisions("accept")

    @property
    def trials_rejected(self) -> int:
        """Trials that were rejected, those of ancestors included; each retry is one."""
        return self._decisions("reject")

    def _decisions(self, outcome: str) -> int:
        return sum(event.event == "decision" and event.decision == outcome for event in self.events)

    @property
    def seeds(self) -> tuple[int, ...]:
        """Training seeds of the run and its ancestors, each once."""
        seeds = [event.seed for event in self.events if event.event == "train" and event.seed is not None]
        if not seeds and self.recipe is not None:
            seeds = [self.recipe.train.seed]
        return tuple(dict.fromkeys(seeds))


def read_history(path: Path) -> RunHistory:
    """Read the run folder or checkpoint at `path`, without its tensors.

    Raises:
        InvalidInputError: no valid checkpoint, broken metrics or lineage, no steps, or never evaluated.
    """
    run, folder = locate_checkpoint(path)
    state = read_state(folder)
    events = tuple(event for event in _read_events(run.growth_path) if event.decided <= state.step)
    metrics = _read_metrics(run.metrics_path, state.step)
    metrics = replace(metrics, evaluations=_closed(metrics.evaluations, state, events))
    if not metrics.evaluations:
        raise InvalidInputError(
            f"{str(path)!r} has no evaluated step up to step {state.step}, so there is no loss to compare: "
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
    )


def name_histories(histories: Sequence[RunHistory]) -> list[RunHistory]:
    """The same histories under names that differ: more of the path, then the step, then a number."""
    folders = [history.run.path.resolve() for history in histories]
    steps: dict[Path, set[int]] = {}
    for folder, history in zip(folders, histories, strict=True):
        steps.setdefault(folder, set()).add(history.step)
    named: list[RunHistory] = []
    taken: set[str] = set()
    for folder, history in zip(folders, histories, strict=True):
        name = _shortest_name(folder, set(folders) - {folder})
        if len(steps[folder]) > 1:
            name = f"{name}@{history.step}"
        unique, number = name, 1
        while unique in taken:
            number += 1
            unique = f"{name} ({number})"
        taken.add(unique)
        named.append(replace(history, name=unique))
    return named


def _shortest_name(folder: Path, others: set[Path]) -> str:
    for length in range(1, len(folder.parts) + 1):
        tail = folder.parts[-length:]
        if not any(other.parts[-length:] == tail for other in others):
            return "/".join(tail)
    return folder.as_posix()


def _closed(
    evaluations: Sequence[Evaluated], state: TrainerState, events: Sequence[GrowthEvent]
) -> tuple[Evaluated, ...]:
    """The evaluated points, the last as the checkpoint itself records it.

    A line of metrics at the step of a growth that changed the function speaks of the parent.
    """
    points = list(evaluations)
    surgery = [event for event in events if event.changed_the_model and event.step == state.step]
    stale = not all(event.bit_exact for event in surgery)
    if state.validation is not None or stale:
        points = [point for point in points if point.step < state.step]
    if state.validation is not None:
        points.append(Evaluated(state.step, state.validation, float(state.ledger.flops), state.ledger.seconds))
    return tuple(points)


def _check_costs(points: Sequence[Evaluated], path: Path) -> None:
    for axis in ("flops", "seconds"):
        known = [(point.step, getattr(point, axis)) for point in points if getattr(point, axis) is not None]
        for (_, before), (step, after) in pairwise(known):
            if after < before:
                raise InvalidInputError(
                    f"{str(path)!r}: the running count of {axis} falls from {before:.6g} to {after:.6g} by step "
                    f"{step}, expected it to grow: restore the file"
                )


def _read_events(path: Path) -> list[GrowthEvent]:
    events = []
    for number, line in enumerate(read_jsonl(path), start=1):
        if isinstance(line.get("event"), str) and line["event"] not in READ:
            continue
        try:
            events.append(GrowthEvent.model_validate(line))
        except ValidationError as error:
            raise _broken(path, number, error) from None
    return events


def _read_recipe(path: Path) -> Recipe | None:
    try:
        return resolve([Layer("run", read_yaml(path))]).recipe
    except ConfigError:
        return None


def _read_metrics(path: Path, last: int) -> Metrics:
    lines = read_jsonl(path)
    steps = _steps(lines, path)
    kept = int(np.searchsorted(steps, last, side="right"))
    lines, steps = lines[:kept], steps[:kept]
    if not lines:
        raise InvalidInputError(
            f"{str(path)!r} has no steps up to step {last}: expected one line per optimizer step; train the run first"
        )
    flops = _column(lines, "flops", path, required=True)
    evaluations = []
    for index, line in enumerate(lines):
        if line.get("validation") is None:
            continue
        try:
            figures = Validation.model_validate(line["validation"])
        except ValidationError as error:
            raise _broken(path, index + 1, error, "validation") from None
        seconds = _seconds(line, path, index + 1)
        evaluations.append(Evaluated(int(steps[index]), figures, float(flops[index]), seconds))
    return Metrics(
        steps=steps,
        train_loss=_column(lines, "train_loss", path, required=True),
        grad_norm=_column(lines, "grad_norm", path),
        grad_norm_new=_column(lines, "grad_norm_new", path),
        evaluations=tuple(evaluations),
    )


def _steps(lines: Sequence[dict[str, Any]], path: Path) -> IntArray:
    steps: list[int] = []
    for number, line in enumerate(lines, start=1):
        step = line.get("step")
        if type(step) is not int or not 0 <= step < 2**62:
            raise _bad_line(path, number, f"step is {reprlib.repr(step)}, expected a whole number")
        if steps and step <= steps[-1]:
            raise _bad_line(path, number, f"step {step} follows step {steps[-1]}, expected rising steps")
        steps.append(step)
    return np.array(steps, dtype=np.int64)


def _column(lines: Sequence[dict[str, Any]], key: str, path: Path, *, required: bool = False) -> FloatArray:
    values = []
    for number, line in enumerate(lines, start=1):
        value = line.get(key)
        if value is None and not required:
            values.append(math.nan)
            continue
        values.append(_finite(value, key, path, number))
    return np.array(values, dtype=np.float64)


def _seconds(line: dict[str, Any], path: Path, number: int) -> float | None:
    timing = line.get("timing")
    value = timing.get("seconds") if isinstance(timing, dict) else None
    return None if value is None else _finite(value, "timing.seconds", path, number)


def _finite(value: Any, key: str, path: Path, number: int) -> float:
    # type() and not isinstance(): True is no figure. A whole number may be too large for a float.
    if (type(value) is float and math.isfinite(value)) or (type(value) is int and abs(value) < 1 << 1000):
        return float(value)
    raise _bad_line(path, number, f"{key} is {reprlib.repr(value)}, expected a finite number")


def _broken(path: Path, number: int, error: ValidationError, prefix: str = "") -> InvalidInputError:
    first = error.errors(include_url=False)[0]
    where = ".".join(part for part in (prefix, *map(str, first["loc"])) if part)
    return _bad_line(path, number, f"{where}: {first['msg']}")


def _bad_line(path: Path, number: int, found: str) -> InvalidInputError:
    return InvalidInputError(f"{str(path)!r}, line {number}: {found}; restore the file from a copy of the run")
