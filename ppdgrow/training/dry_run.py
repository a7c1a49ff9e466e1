"""`train --dry-run`: what a run would do, cost and hold, with all of its refusals and without its first step.

No run is written (a cache of tokens may be). No memory is taken for the model: its tensors have a shape and no content.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ppdgrow.checkpoint import read_state
from ppdgrow.config.load import Resolved
from ppdgrow.config.requests import TrainRequest
from ppdgrow.config.schema import flatten, recipe_keys
from ppdgrow.config.yaml12 import format_value
from ppdgrow.console import Narrator, format_count, format_flops
from ppdgrow.data import Dataset
from ppdgrow.engine.device import resolve_device, set_deterministic
from ppdgrow.errors import StorageError
from ppdgrow.nn.cost import training_flops_per_token
from ppdgrow.nn.model import tensor_shapes
from ppdgrow.optim.schedule import phases, schedule_line
from ppdgrow.surgery import GrowthRequest, describe_positions
from ppdgrow.surgery.positions import resolve_positions
from ppdgrow.training.acceptance import RULES
from ppdgrow.training.context import refuse_changed_data
from ppdgrow.training.growth_schedule import PlannedGrowth
from ppdgrow.training.preparation import Job, Prepared, measures_precision, plan_run, prepare
from ppdgrow.training.resource_estimate import Footprint, footprint, held_tensors, microbatch_size, storage_bytes
from ppdgrow.training.resume import Start, newest_checkpoint
from ppdgrow.units import format_bytes

LEFT_OUT = "temporary buffers, the allocator's reserve, evaluation"


@dataclass(frozen=True)
class Preview:
    """A run before it is run. `before` and `after` are its model at the start and once all growths were kept."""

    prepared: Prepared
    device: torch.device
    measured: bool
    resumes_at: int | None
    before: Footprint
    after: Footprint

    @property
    def planned(self) -> list[PlannedGrowth]:
        return self.prepared.planned


def make_preview(request: TrainRequest, narrator: Narrator) -> Preview:
    """Prepare the run and work out its figures; of a disk that is too small it warns.

    Raises:
        PPDGrowError: as `train` before its first step.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    device = resolve_device(request.device)
    set_deterministic(request.deterministic)
    fake = FakeTensorMode()
    prepared = prepare(plan_run(request), device, narrator, fake=fake)
    job, recipe, setting, start = prepared.job, prepared.job.recipe, prepared.setting, prepared.start
    resumes_at = _resumes_at(job, setting.dataset)
    _check_writable(job.run.path)
    batch = setting.dataset.batches(
        "train", batch_size=recipe.train.batch_size, seed=recipe.train.seed, device=setting.device
    ).at(job.first + 1)
    data_bytes = storage_bytes(held_tensors([setting.dataset, list(prepared.evaluation)]))

    def take(start: Start) -> Footprint:
        return footprint(start, recipe, batch, device=device, precision=job.precision, data_bytes=data_bytes, fake=fake)

    before = after = take(start)
    if prepared.planned:
        architecture = prepared.planned[-1].kept
        with fake:
            tensors = {name: torch.empty(shape) for name, shape in tensor_shapes(architecture).items()}
        after = take(replace(start, architecture=architecture, tensors=tensors))
    if prepared.space.shortage is not None and job.finished is None:
        narrator.warn(prepared.space.shortage)
    return Preview(prepared, device, measures_precision(job, device), resumes_at, before, after)


def _resumes_at(job: Job, dataset: Dataset) -> int | None:
    """The step from which a run that is in the folder already would go on; None for a new one."""
    if job.recorded is None:
        return None
    if (job.run.path / ".lock").exists():
        with job.run.lock():  # refuses if another process trains there
            pass
    newest = newest_checkpoint(job.run, [])
    if newest is None:
        return job.first
    state = read_state(newest)
    refuse_changed_data(dataset, state, job.run.path)
    return state.step


def _check_writable(path: Path) -> None:
    place = next(place for place in (path.absolute(), *path.absolute().parents) if place.exists())
    if not os.access(place, os.W_OK | os.X_OK):
        raise StorageError(f"cannot write {str(path)!r}: {str(place)!r} is read-only; choose another folder with --out")


def _run_flops(preview: Preview) -> int:
    """FLOPs of all steps of the run, each growth being kept from its first step on."""
    job, architecture = preview.prepared.job, preview.before.architecture
    total, first = 0, job.first
    for growth in preview.planned:
        total += (growth.start - first) * training_flops_per_token(growth.before)
        first, architecture = growth.start, growth.kept
    return preview.before.tokens_per_step * (total + (job.last - first) * training_flops_per_token(architecture))


def _trial_flops(preview: Preview) -> int:
    """FLOPs beside the run: the ungrown twin of each trial whose rule needs one, and candidates that are not kept."""
    total = 0
    for growth in preview.planned:
        twin = [growth.before] if RULES[growth.entry.trial.rule].trains_twin else []
        total += growth.entry.trial.steps * sum(map(training_flops_per_token, (*twin, *growth.after[1:])))
    return preview.before.tokens_per_step * total


def facts(preview: Preview) -> Iterator[tuple[str, str]]:
    """Names and words: where, how long, how fast, on what, with which keys."""
    job, space, tokens = preview.prepared.job, preview.prepared.space, preview.before.tokens_per_step
    state = "new" if preview.resumes_at is None else f"holds this run, which would go on from step {preview.resumes_at}"
    if job.finished is not None:
        state = f"already finished: holds step {job.last}"
    yield "dry run", "nothing is trained, no run is written"
    yield "run folder", f"{job.run.path.as_posix()}, {state}"
    yield "steps", f"{job.first + 1}-{job.last}"
    yield "tokens", f"{format_count(tokens)} per step, {format_count(tokens * (job.last - job.first))} in the run"
    kept = ", if every growth is kept from its earliest step on" if preview.planned else ""
    trials = f"; its trials {format_flops(_trial_flops(preview))} in addition" if preview.planned else ""
    yield "FLOPs", f"{format_flops(_run_flops(preview))} in the run{kept}{trials}"
    measured = "measured at the start of the run, counted as fp32 below"
    yield "precision", measured if preview.measured else job.precision
    yield "learning rate", schedule_line(preview.prepared.schedule, job.recipe.train.lr, first=job.first, last=job.last)
    for number, growth in enumerate(preview.planned, start=1):
        yield f"growth {number}", _growth_line(growth)
    beside = ", those of a trial beside them" if preview.planned else ""
    yield (
        "disk",
        f"{format_bytes(space.total)} for {space.counted} at once{beside}; {format_bytes(space.free)} free",
    )
    for number, (source, values) in enumerate(_set_keys(job.resolved).items()):
        yield "" if number else "recipe", f"{', '.join(values)} ({source})"
    yield "memory leaves out", LEFT_OUT


def _growth_line(growth: PlannedGrowth) -> str:
    entry = growth.entry
    when = (
        f"when {entry.patience} evaluations bring no new best, from step {growth.start} on"
        if entry.at == "plateau"
        else f"at step {entry.at}"
    )
    depths = dict.fromkeys(grown.num_layers for grown in growth.after)
    tried = " | ".join(_in_words(request, len(growth.before.blocks)) for request in growth.requests)
    several = f"{len(growth.requests)} candidates: " if len(growth.requests) > 1 else ""
    return (
        f"{when}: {growth.before.num_layers} -> {' or '.join(map(str, depths))} layers, {several}{tried}; "
        f"{RULES[entry.trial.rule].plan(entry)}"
    )


def _in_words(request: GrowthRequest, num_blocks: int) -> str:
    places = resolve_positions(request.position, num_blocks, request.pairs)
    position = f"{request.position} ({describe_positions(places, num_blocks)})"
    if request.method != "pair":
        return f"{2 * request.pairs} layers by method {request.method}, {position}"
    kinds = "/".join(dict.fromkeys(request.kinds))
    plural = "" if request.pairs == 1 else "s"
    scale = "" if request.scale == 1.0 else f", scale {request.scale:g}"
    return f"{request.pairs} {kinds} pair{plural}, {position}, source {request.source or 'auto'}{scale}"


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
    examples = microbatch_size(preview.prepared.job.recipe)
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
        yield [name, *(format_bytes(model.memory[key]) for model in models)]
    yield ["checkpoint", *(format_bytes(size) for size in preview.prepared.space.checkpoints[: len(models)])]


def preview_document(preview: Preview) -> dict[str, Any]:
    """The JSON of `train --dry-run`."""
    prepared, before, after = preview.prepared, preview.before, preview.after
    job, space = prepared.job, prepared.space
    steps, train = job.last - job.first, job.recipe.train
    rates = phases(prepared.schedule, train.lr, first=job.first, last=job.last)
    return {
        "schema": 1,
        "dry_run": True,
        "run": job.run.path.as_posix(),
        "state": "finished" if job.finished is not None else "new" if preview.resumes_at is None else "resumes",
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
        "flops": _run_flops(preview),
        "trial_flops": _trial_flops(preview),
        "piece_examples": microbatch_size(job.recipe),
        "memory": before.memory,
        "memory_after_growth": after.memory,
        "memory_leaves_out": LEFT_OUT,
        "checkpoint_bytes": space.checkpoints[0],
        "checkpoint_bytes_after_growth": space.checkpoints[1],
        "checkpoints_at_once": space.kept_at_once,
        "disk_bytes": space.total,
        "free_bytes": space.free,
        "learning_rate": [vars(phase) for phase in rates],
        "growth": list(map(_growth_document, preview.planned)),
        "recipe": job.recipe.model_dump(mode="json"),
        "sources": dict(job.resolved.sources),
    }


def _growth_document(growth: PlannedGrowth) -> dict[str, Any]:
    return {
        "at": growth.entry.at,
        "earliest_step": growth.start,
        "patience_evaluations": growth.entry.patience if growth.entry.at == "plateau" else None,
        "trial_steps": growth.entry.trial.steps,
        "rule": growth.entry.trial.rule,
        "epsilon_nats": growth.entry.trial.epsilon,
        "margin_nats": growth.entry.trial.margin,
        "on_reject": growth.entry.as_written()["on_reject"],
        "layers_before": growth.before.num_layers,
        "candidates": [
            asdict(request) | {"kinds": list(request.kinds), "layers_after": grown.num_layers}
            for request, grown in zip(growth.requests, growth.after, strict=True)
        ],
    }
