"""Reading a run folder for comparison: its files are checked line by line, and a fault names file and line."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
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
from ppdgrow.checkpoint.events import DivergedEvent, Event, SurgeryEvent, TrainEvent, read_events
from ppdgrow.comparison.history import Evaluated, Metrics, RunHistory
from ppdgrow.config.load import Layer, read_run_recipe, resolve
from ppdgrow.config.schema import Recipe
from ppdgrow.config.state import TrainerState, Validation
from ppdgrow.errors import ConfigError, InvalidInputError


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
