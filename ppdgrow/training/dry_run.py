"""`train --dry-run`: what a run would do, cost and hold, with all of its refusals and without its first step.

No run is written (a cache of tokens may be). No memory is taken for the model: its tensors have a shape and no content.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
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
from ppdgrow.nn.cost import count_parameters, tokens_per_example, training_flops_per_token
from ppdgrow.nn.model import tensor_shapes
from ppdgrow.optim.schedule import phases, schedule_line
from ppdgrow.surgery import METHODS, describe_positions
from ppdgrow.surgery.positions import resolve_positions
from ppdgrow.training.acceptance import RULES
from ppdgrow.training.context import refuse_changed_data
from ppdgrow.training.growth_schedule import PlannedGrowth
from ppdgrow.training.preparation import Job, Prepared, measures_precision, plan_run, prepare
from ppdgrow.training.resource_estimate import held_tensors, memory_estimate, microbatch_size, storage_bytes
from ppdgrow.training.resume import newest_checkpoint
from ppdgrow.units import format_bytes

LEFT_OUT = "temporary buffers, the allocator's reserve, evaluation"


@dataclass(frozen=True)
class Preview:
    """A run before it is run: the JSON of `train --dry-run`, and what it was worked out from."""

    document: dict[str, Any]
    prepared: Prepared


def make_preview(request: TrainRequest, narrator: Narrator) -> Preview:
    """Prepare the run, with all refusals of `train`, and work out its figures; of a disk that is too small it warns."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    device = resolve_device(request.device)
    set_deterministic(request.deterministic)
    fake = FakeTensorMode()
    prepared = prepare(plan_run(request), device, narrator, fake=fake)
    job, setting, start, space = prepared.job, prepared.setting, prepared.start, prepared.space
    resumes_at = _resumes_at(job, setting.dataset)
    _check_writable(job.run.path)
    before, after = prepared.architectures
    batch, data_bytes = setting.training().at(job.first + 1), storage_bytes(held_tensors(setting))
    estimate = partial(memory_estimate, setting=setting, batch=batch, device=device, data_bytes=data_bytes, fake=fake)
    memory = memory_after_growth = estimate(start)
    if prepared.planned:
        with fake:
            tensors = {name: torch.empty(shape) for name, shape in tensor_shapes(after).items()}
        memory_after_growth = estimate(replace(start, architecture=after, tensors=tensors))
    if space.shortage is not None and job.finished is None:
        narrator.warn(space.shortage)
    recipe, steps = job.recipe, job.last - job.first
    tokens = recipe.train.batch_size * tokens_per_example(before)
    rates = phases(prepared.schedule, recipe.train.lr, first=job.first, last=job.last)
    document = {
        "schema": 1,
        "dry_run": True,
        "run": job.run.path.as_posix(),
        "state": "finished" if job.finished is not None else "new" if resumes_at is None else "resumes",
        "resumes_at_step": resumes_at,
        "first_step": job.first + 1,
        "last_step": job.last,
        "device": device.type,
        "precision": job.precision,
        "precision_is_measured_at_start": measures_precision(job, device),
        "layers": before.num_layers,
        "layers_after_growth": after.num_layers,
        "parameters": count_parameters(before),
        "parameters_after_growth": count_parameters(after),
        "tokens_per_step": tokens,
        "tokens": tokens * steps,
        "flops_per_step": tokens * training_flops_per_token(before),
        "flops_per_step_after_growth": tokens * training_flops_per_token(after),
        "flops": tokens * _run_flops_per_token(prepared),
        "trial_flops": tokens * _trial_flops_per_token(prepared.planned),
        "piece_examples": microbatch_size(recipe),
        "memory": memory,
        "memory_after_growth": memory_after_growth,
        "memory_leaves_out": LEFT_OUT,
        "checkpoint_bytes": space.checkpoints[0],
        "checkpoint_bytes_after_growth": space.checkpoints[1],
        "checkpoints_at_once": space.kept_at_once,
        "disk_bytes": space.total,
        "free_bytes": space.free,
        "learning_rate": [vars(phase) for phase in rates],
        "growth": list(map(_growth_document, prepared.planned)),
        "recipe": recipe.model_dump(mode="json"),
        "sources": dict(job.resolved.sources),
    }
    return Preview(document, prepared)


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


def _run_flops_per_token(prepared: Prepared) -> int:
    """FLOPs of all steps of the run, each growth being kept from its first step on."""
    job, architecture = prepared.job, prepared.start.architecture
    total, first = 0, job.first
    for growth in prepared.planned:
        total += (growth.start - first) * training_flops_per_token(growth.before)
        first, architecture = growth.start, growth.kept
    return total + (job.last - first) * training_flops_per_token(architecture)


def _trial_flops_per_token(planned: Sequence[PlannedGrowth]) -> int:
    """FLOPs beside the run: the twin of each trial whose rule needs one, and candidates that are not kept."""
    total = 0
    for growth in planned:
        twin = [growth.before] if RULES[growth.entry.trial.rule].trains_twin else []
        total += growth.entry.trial.steps * sum(map(training_flops_per_token, (*twin, *growth.after[1:])))
    return total


def facts(preview: Preview) -> Iterator[tuple[str, str]]:
    """Names and words: where, how long, how fast, on what, with which keys."""
    document, prepared = preview.document, preview.prepared
    job, space, first = prepared.job, prepared.space, document["resumes_at_step"]
    state = {
        "new": "new",
        "resumes": f"holds this run, which would go on from step {first}",
        "finished": f"already finished: holds step {job.last}",
    }
    yield "dry run", "nothing is trained, no run is written"
    yield "run folder", f"{document['run']}, {state[document['state']]}"
    yield "steps", f"{job.first + 1}-{job.last}"
    yield (
        "tokens",
        f"{format_count(document['tokens_per_step'])} per step, {format_count(document['tokens'])} in the run",
    )
    kept = trials = beside = ""
    if prepared.planned:
        kept = ", if every growth is kept from its earliest step on"
        trials = f"; its trials {format_flops(document['trial_flops'])} in addition"
        beside = ", those of a trial beside them"
    yield "FLOPs", f"{format_flops(document['flops'])} in the run{kept}{trials}"
    measured = "measured at the start of the run, counted as fp32 below"
    yield "precision", measured if document["precision_is_measured_at_start"] else job.precision
    yield "learning rate", schedule_line(prepared.schedule, job.recipe.train.lr, first=job.first, last=job.last)
    for number, growth in enumerate(prepared.planned, start=1):
        yield f"growth {number}", _growth_line(growth)
    room = f"{format_bytes(space.total)} for {space.counted} at once{beside}"
    yield "disk", f"{room}; {format_bytes(space.free)} free"
    for number, (source, values) in enumerate(_set_keys(job.resolved).items()):
        yield "" if number else "recipe", f"{', '.join(values)} ({source})"
    yield "memory leaves out", LEFT_OUT


def _growth_line(growth: PlannedGrowth) -> str:
    entry, num_blocks = growth.entry, len(growth.before.blocks)
    when = f"at step {entry.at}"
    if entry.at == "plateau":
        when = f"when {entry.patience} evaluations bring no new best, from step {growth.start} on"
    depths = " or ".join(dict.fromkeys(str(grown.num_layers) for grown in growth.after))
    tried = []
    for request in growth.requests:
        places = resolve_positions(request.position, num_blocks, request.pairs)
        tried.append(METHODS[request.method].in_words(request, describe_positions(places, num_blocks)))
    several = f"{len(tried)} candidates: " if len(tried) > 1 else ""
    return (
        f"{when}: {growth.before.num_layers} -> {depths} layers, {several}{' | '.join(tried)}; "
        f"{RULES[entry.trial.rule].plan(entry)}"
    )


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
    document = preview.document
    moments = ("", "_after_growth") if preview.prepared.planned else ("",)
    for name, key, style in (
        ("layers", "layers", str),
        ("parameters", "parameters", format_count),
        ("FLOP per step", "flops_per_step", format_flops),
    ):
        yield [name, *(style(document[key + moment]) for moment in moments)]
    examples = document["piece_examples"]
    for name, key in {
        "weights": "weights_bytes",
        "gradients": "gradients_bytes",
        "optimizer state": "optimizer_bytes",
        f"activations of {examples} example{'' if examples == 1 else 's'}": "activations_bytes",
        "data": "data_bytes",
        f"memory on {document['device']}, at least": "total_bytes",
    }.items():
        yield [name, *(format_bytes(document[f"memory{moment}"][key]) for moment in moments)]
    yield ["checkpoint", *(format_bytes(document[f"checkpoint_bytes{moment}"]) for moment in moments)]


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
