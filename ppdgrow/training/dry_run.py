"""`train --dry-run`: what a run would do, cost and hold, with all of its refusals and without its first step.

No run is written (a cache of tokens may be). No memory is taken for the model: its tensors have a shape and no content.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ppdgrow.checkpoint import read_state
from ppdgrow.config.load import Resolved
from ppdgrow.config.schema import flatten, recipe_keys
from ppdgrow.config.state import Ledger
from ppdgrow.config.yaml12 import format_value
from ppdgrow.console import Narrator, format_count, format_flops
from ppdgrow.engine.device import resolve_device, set_deterministic
from ppdgrow.errors import StorageError
from ppdgrow.nn.model import tensor_shapes
from ppdgrow.training.context import refuse_changed_data
from ppdgrow.training.disk_space import Space
from ppdgrow.training.footprint import Footprint, footprint, held_tensors, microbatch_size, storage_bytes
from ppdgrow.training.outlook import Stage, phases, run_flops, schedule_line, stages, trial_flops
from ppdgrow.training.preparation import Job, Prepared, TrainRequest, measures_precision, plan_run, prepare
from ppdgrow.training.start import Start, newest_checkpoint
from ppdgrow.units import format_bytes

LEFT_OUT = "temporary buffers, the allocator's reserve, evaluation"


@dataclass(frozen=True)
class Preview:
    """A run before it is run. `before` and `after` are its model at the start and once all growths were kept."""

    prepared: Prepared
    device: torch.device
    measured: bool
    resumes_at: int | None
    planned: list[Stage]
    before: Footprint
    after: Footprint

    @property
    def job(self) -> Job:
        """The run."""
        return self.prepared.job

    @property
    def space(self) -> Space:
        """What it takes on the disk."""
        return self.prepared.space

    @property
    def flops(self) -> int:
        """FLOPs of the run's steps, all growths being kept."""
        architecture = self.before.architecture
        return run_flops(self.planned, self.prepared.growth_schedule, architecture, self.before.tokens_per_step)

    @property
    def trial_flops(self) -> int:
        """FLOPs of its trials beside it."""
        return trial_flops(self.planned, self.before.tokens_per_step)


def make_preview(request: TrainRequest, narrator: Narrator) -> Preview:
    """Prepare the run and work out its figures; of a disk that is too small it warns.

    Raises:
        PPDGrowError: as `train` before its first step.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    device = resolve_device(request.device)
    set_deterministic(request.deterministic)
    job = plan_run(request)
    fake = FakeTensorMode()
    prepared = prepare(job, device, narrator, fake=fake)
    resumes_at = _resumes_at(job, prepared)
    _check_writable(job)
    job, recipe, setting = prepared.job, prepared.job.recipe, prepared.setting
    batch = setting.dataset.batches(
        "train", batch_size=recipe.train.batch_size, seed=recipe.train.seed, device=setting.device
    ).at(job.first + 1)
    data_bytes = storage_bytes(held_tensors([setting.dataset, list(prepared.evaluation)]))

    def take(start: Start) -> Footprint:
        return footprint(start, recipe, batch, device=device, precision=job.precision, data_bytes=data_bytes, fake=fake)

    before = after = take(prepared.start)
    planned = stages(prepared.growth_schedule, before.architecture)
    if planned:
        architecture = planned[-1].kept
        with fake:
            tensors = {name: torch.empty(shape) for name, shape in tensor_shapes(architecture).items()}
        after = take(Start(architecture, tensors, before.moments, {}, planned[-1].start, 1.0, Ledger()))
    preview = Preview(
        prepared=prepared,
        device=device,
        measured=measures_precision(job, device),
        resumes_at=resumes_at,
        planned=planned,
        before=before,
        after=after,
    )
    if preview.space.shortage is not None and job.final is None:
        narrator.warn(preview.space.shortage)
    return preview


def _resumes_at(job: Job, prepared: Prepared) -> int | None:
    """The step from which a run that is in the folder already would go on; None for a new one."""
    if job.held is None:
        return None
    if (job.run.path / ".lock").exists():
        with job.run.lock():  # refuses if another process trains there
            pass
    newest = newest_checkpoint(job.run, [])
    if newest is None:
        return job.first
    state = read_state(newest)
    refuse_changed_data(prepared.setting.dataset, state, job.run.path)
    return state.step


def _existing(job: Job) -> Path:
    path = job.run.path.absolute()
    return next(place for place in (path, *path.parents) if place.exists())


def _check_writable(job: Job) -> None:
    place = _existing(job)
    if not os.access(place, os.W_OK | os.X_OK):
        raise StorageError(
            f"cannot write {str(job.run.path)!r}: {str(place)!r} is read-only; choose another folder with --out"
        )


def facts(preview: Preview) -> Iterator[tuple[str, str]]:
    """Names and words: where, how long, how fast, on what, with which keys."""
    job, schedule = preview.job, preview.prepared.schedule
    train = job.recipe.train
    yield "dry run", "nothing is trained, no run is written"
    yield "run folder", f"{job.run.path.as_posix()}, {_state(preview)}"
    yield "steps", f"{job.first + 1}-{job.last}"
    tokens = preview.before.tokens_per_step
    yield "tokens", f"{format_count(tokens)} per step, {format_count(tokens * (job.last - job.first))} in the run"
    kept = ", if every growth is kept from its earliest step on" if preview.planned else ""
    trials = f"; its trials {format_flops(preview.trial_flops)} in addition" if preview.planned else ""
    yield "FLOPs", f"{format_flops(preview.flops)} in the run{kept}{trials}"
    measured = "measured at the start of the run, counted as fp32 below"
    yield "precision", measured if preview.measured else job.precision
    yield "learning rate", schedule_line(schedule, train.lr, first=job.first, last=job.last)
    for number, stage in enumerate(preview.planned, start=1):
        yield f"growth {number}", stage.line()
    beside = ", those of a trial beside them" if preview.planned else ""
    yield (
        "disk",
        f"{format_bytes(preview.space.total)} for {preview.space.counted} at once{beside}; "
        f"{format_bytes(preview.space.free)} free",
    )
    for number, (source, values) in enumerate(_set_keys(job.resolved).items()):
        yield "" if number else "recipe", f"{', '.join(values)} ({source})"
    yield "memory leaves out", LEFT_OUT


def _state(preview: Preview) -> str:
    if preview.job.final is not None:
        return f"already finished: holds step {preview.job.last}"
    if preview.resumes_at is None:
        return "new"
    return f"holds this run, which would go on from step {preview.resumes_at}"


def _set_keys(resolved: Resolved) -> dict[str, list[str]]:
    """The keys whose values are not the defaults, by source."""
    defaults = recipe_keys()
    found: dict[str, list[str]] = {}
    for key, value in flatten(resolved.recipe.model_dump()).items():
        if value != defaults[key]:
            shown = f"{len(value)} entries" if key == "growth" else format_value(value)
            found.setdefault(resolved.sources[key], []).append(f"{key} {shown}")
    return found


def figures(preview: Preview) -> Iterator[list[str]]:
    """Rows of name, figure at the start and, if the run grows, figure afterwards."""
    models = [preview.before, *([preview.after] if preview.planned else [])]
    examples = microbatch_size(preview.job.recipe)
    yield ["layers", *(str(model.architecture.num_layers) for model in models)]
    yield ["parameters", *(format_count(model.parameters) for model in models)]
    yield ["FLOP per step", *(format_flops(model.flops_per_step) for model in models)]
    for name, key in {
        "weights": "weights_bytes",
        "gradients": "gradients_bytes",
        "optimizer state": "optimizer_bytes",
        f"activations of {examples} example{'' if examples == 1 else 's'}": "activations_bytes",
        "data": "data_bytes",
        f"memory on {preview.device.type}, at least": "total_bytes",
    }.items():
        yield [name, *(format_bytes(model.memory.document()[key]) for model in models)]
    yield ["checkpoint", *(format_bytes(size) for size in preview.space.checkpoints[: len(models)])]


def preview_document(preview: Preview) -> dict[str, Any]:
    """The JSON of `train --dry-run`."""
    job, before, after = preview.job, preview.before, preview.after
    steps, train = job.last - job.first, job.recipe.train
    states = {True: "finished", False: "new" if preview.resumes_at is None else "resumes"}
    rates = phases(preview.prepared.schedule, train.lr, first=job.first, last=job.last)
    return {
        "schema": 1,
        "dry_run": True,
        "run": job.run.path.as_posix(),
        "state": states[job.final is not None],
        "resumes_at_step": preview.resumes_at,
        "first_step": job.first + 1,
        "last_step": job.last,
        "device": preview.device.type,
        "precision": job.precision,
        "precision_is_measured_at_start": preview.measured,
        "layers": before.architecture.num_layers,
        "layers_after_growth": after.architecture.num_layers,
        "parameters": before.parameters,
        "parameters_after_growth": after.parameters,
        "tokens_per_step": before.tokens_per_step,
        "tokens": before.tokens_per_step * steps,
        "flops_per_step": before.flops_per_step,
        "flops_per_step_after_growth": after.flops_per_step,
        "flops": preview.flops,
        "trial_flops": preview.trial_flops,
        "piece_examples": microbatch_size(job.recipe),
        "memory": before.memory.document(),
        "memory_after_growth": after.memory.document(),
        "memory_leaves_out": LEFT_OUT,
        "checkpoint_bytes": preview.space.checkpoints[0],
        "checkpoint_bytes_after_growth": preview.space.checkpoints[1],
        "checkpoints_at_once": preview.space.kept_at_once,
        "disk_bytes": preview.space.total,
        "free_bytes": preview.space.free,
        "learning_rate": [vars(phase) for phase in rates],
        "growth": [stage.document() for stage in preview.planned],
        "recipe": job.recipe.model_dump(mode="json"),
        "sources": dict(job.resolved.sources),
    }
