"""From a `train` command to its first step, in the order in which things happen, for a run and for its dry run.

`plan_run` loads the parent, resolves the recipe, and chooses and checks the folder; `prepare` opens the data, builds
the model, plans the growth and checks the space. Each refusal of a run before its first step is made here, so that the
dry run makes it too. Nothing is written.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch.utils._pytree import tree_map

from ppdgrow.checkpoint import RunFolder, read_state
from ppdgrow.config.architecture import Architecture
from ppdgrow.config.load import Resolved
from ppdgrow.config.requests import TrainRequest
from ppdgrow.config.schema import Recipe
from ppdgrow.console import Narrator, format_count, format_flops
from ppdgrow.engine.device import AUTO_MIN_WIDTH, Precision, choose_precision
from ppdgrow.errors import ConfigError, StorageError
from ppdgrow.nn.cost import count_parameters, flops_per_token
from ppdgrow.optim.optimizer import NamedOptimizer
from ppdgrow.optim.schedule import Schedule, make_schedule, phases
from ppdgrow.training.context import Parent, Setting, load_parent, open_data, warn_of_changes
from ppdgrow.training.growth_schedule import GrowthSchedule, PlannedGrowth, check_examples, planned_growths
from ppdgrow.training.models import AnyModel, build_model
from ppdgrow.training.output_folder import (
    WAY_OUT,
    check_place,
    default_folder,
    finished_checkpoint,
    is_occupied,
    recorded_recipe,
)
from ppdgrow.training.recipe import asked_task, differing_keys, resolve_training, unused_keys
from ppdgrow.training.resource_estimate import Space, disk_space
from ppdgrow.training.resume import Start, first_start
from ppdgrow.training.trainer import make_optimizer

if TYPE_CHECKING:
    from torch._subclasses.fake_tensor import FakeTensorMode

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Job:
    """One run, resolved but for its data: steps `first + 1 .. last` in a folder.

    `recorded` is the recipe by which the folder holds this run already, `finished` its last checkpoint if it is done.
    """

    parent: Parent | None
    resolved: Resolved
    run: RunFolder
    first: int
    last: int
    recorded: Recipe | None = None
    finished: Path | None = None

    @property
    def recipe(self) -> Recipe:
        return self.resolved.recipe

    @property
    def precision(self) -> Precision:
        """The working precision; fp32 where it is still to be measured."""
        return "bf16" if self.recipe.train.precision == "bf16" else "fp32"

    @property
    def growth_schedule(self) -> GrowthSchedule:
        return GrowthSchedule(self.recipe.growth, self.first, self.last, self.recipe.train.eval_every)


def plan_run(request: TrainRequest) -> Job:
    """The run that is asked for, with its recipe and its folder, which holds nothing else."""
    parent = None if request.checkpoint is None else load_parent(request.checkpoint, task=asked_task(request.layers))
    resolved = resolve_training(parent, request.layers, request.grow_to, request.grow_to_entry)
    run = RunFolder(request.out or default_folder(parent, resolved.recipe))
    first = 0 if parent is None else parent.step
    job = Job(parent, resolved, run, first, first + resolved.recipe.train.steps)
    check_place(run.path, None if parent is None else parent.run.path)
    if not is_occupied(run.path):
        return job
    recorded = recorded_recipe(run, resolved.recipe, parent, request.resume)
    if resolved.recipe.train.precision == "auto":
        resolved = resolved.replace({"train.precision": recorded.train.precision}, "run")
    job = replace(job, resolved=resolved, recorded=recorded)
    return job if check_length(job) else replace(job, finished=finished_checkpoint(run, job.last))


def check_length(job: Job) -> list[str]:
    """In what the run differs from the one that its folder holds: it may be longer or shorter from where it stands.

    Refused where it would then not be, to the bit, the run that is asked for.
    """
    assert job.recorded is not None
    changes = [line for lines in differing_keys(job.recorded, job.recipe, job.parent).values() for line in lines]
    if not changes:
        return []
    planned = job.first + job.recorded.train.steps
    newest = job.run.newest_valid()
    step = job.first if newest is None else read_state(newest).step
    initial = 0.0 if job.parent is None else job.parent.checkpoint.state.lr_factor
    before, _ = make_schedule(job.recorded.train, first=job.first, last=planned, initial=initial)
    after, _ = make_schedule(job.recipe.train, first=job.first, last=job.last, initial=initial)
    other = next((past for past in range(job.first + 1, step + 1) if before.factor(past) != after.factor(past)), None)
    command = f"ppdgrow train {shlex.quote(str(job.run.path))} --steps"
    way_out = f"finish it as it was begun and go on with {command} N, or {WAY_OUT}"
    if finished_checkpoint(job.run, planned) is not None:
        reason = f"is finished at step {planned}"
        way_out = f"go on from it with {command} {job.last - planned}, or {WAY_OUT}" if job.last > planned else WAY_OUT
    elif step > job.last:
        reason, way_out = f"stands at step {step} already", f"ask for at least --steps {step - job.first}, or {WAY_OUT}"
    elif job.recipe.growth:
        reason = "may have grown at other steps"
    elif other is not None:
        reason = f"stands at step {step}, and had another learning rate from step {other} on"
    else:
        return changes
    where = f"the output folder {str(job.run.path)!r}"
    raise ConfigError(f"{where} holds this run ({'; '.join(changes)}), which {reason}: {way_out}")


@dataclass(frozen=True)
class Prepared:
    """All that a run's first step needs. The precision of `job` is resolved, unless this is a dry run that cannot."""

    job: Job
    start: Start
    model: AnyModel
    planned: list[PlannedGrowth]
    schedule: Schedule
    setting: Setting
    space: Space

    @property
    def architectures(self) -> tuple[Architecture, Architecture]:
        """The model at the start, and once all growths were kept."""
        before = self.start.architecture
        return before, self.planned[-1].kept if self.planned else before


def prepare(job: Job, device: torch.device, narrator: Narrator, *, fake: FakeTensorMode | None = None) -> Prepared:
    """Open the data, build the model, plan the growth, check the space, and say what they are.

    `fake` makes it a dry run: the model has no memory, its precision is not measured, the data stays on the CPU.

    Raises:
        PPDGrowError: whatever stands in the way of the first step.
    """
    recipe, parent = job.recipe, job.parent
    data_device = device if fake is None else CPU
    dataset = open_data(recipe, parent, narrator.now)  # first: what it reads must not become fake
    with fake or nullcontext():
        start = first_start(parent if fake is None or parent is None else _faked(parent, fake), recipe, dataset)
        planned = planned_growths(job.growth_schedule, start.architecture, job.resolved.sources)
        schedule, notes = make_schedule(recipe.train, first=job.first, last=job.last, initial=start.lr_factor)
        model = build_model(start.architecture, start.tensors, device)
        optimizer = make_optimizer(model, start, recipe.train)  # each trainer makes one of its own
    notes = [
        *unused_keys(job.resolved, dataset),
        *(parent.notes if parent is not None else ()),
        *notes,
        *_new_starts(job, schedule, optimizer),
    ]
    dataset.batches("train", batch_size=recipe.train.batch_size, seed=recipe.train.seed, device=data_device)
    measured = measures_precision(job, device)
    narrator.now("measuring the precision" if measured else "preparing the first step")
    if recipe.train.precision == "auto" and not (measured and fake):
        batch = dataset.batches("train", batch_size=2, seed=0, device=data_device).at(1)
        precision, why = choose_precision(model, batch.inputs, recipe.model.width, device)
        job = replace(job, resolved=job.resolved.replace({"train.precision": precision}, why))
    setting = Setting(data_device, job.precision, dataset, job.recipe)
    check_examples(recipe.growth, setting.identity().validation_examples)
    space = disk_space(job.run, setting, start, planned, device)
    if fake is None and space.shortage is not None:
        raise StorageError(f"the run {str(job.run.path)!r} does not fit: {space.shortage}")
    # Said when nothing stands in the way any more: what is refused is refused in one line.
    place = [] if fake is not None else [f"run folder {job.run.path.as_posix()}, steps {job.first + 1} to {job.last}"]
    for note in (*place, *notes, *_introduction(job, start.architecture, setting, device)):
        narrator.say(note)
    warn_of_changes(dataset, parent, narrator)
    return Prepared(job, start, model, planned, schedule, setting, space)


def _faked(parent: Parent, fake: FakeTensorMode) -> Parent:
    """The parent with tensors that have a shape and no memory."""
    old = parent.checkpoint
    tensors, moments = tree_map(fake.from_tensor, (old.tensors, old.moments))
    return replace(parent, checkpoint=replace(old, tensors=tensors, moments=moments))


def _new_starts(job: Job, schedule: Schedule, optimizer: NamedOptimizer) -> Iterator[str]:
    """What a run that goes on begins anew: its rise from a rate below its peak, state of another optimizer."""
    rise = next(iter(phases(schedule, job.recipe.train.lr, first=job.first, last=job.last)))
    if job.parent is not None and job.parent.step and rise.name == "warm-up":
        ended = job.parent.checkpoint.state.lr_factor
        yield (
            f"the learning rate of {job.parent.folder.as_posix()} ended at {ended:.2g} of its peak: {rise} again "
            "(--no-decay is for a run that will be continued)"
        )
    if optimizer.restarted:
        yield (
            f"train.optimizer {optimizer.config.optimizer}: {len(optimizer.restarted)} of {len(optimizer.parameters)} "
            "parameters start with fresh optimizer state, as another optimizer kept that of the checkpoint"
        )


def measures_precision(job: Job, device: torch.device) -> bool:
    """Whether a run's precision is decided by a measurement at its start."""
    return job.recipe.train.precision == "auto" and device.type == "cpu" and job.recipe.model.width >= AUTO_MIN_WIDTH


def _introduction(job: Job, architecture: Architecture, setting: Setting, device: torch.device) -> tuple[str, str]:
    """The model in one line, and data, device and precision in another."""
    model = (
        f"{architecture.in_words}, {architecture.num_layers} layers, width "
        f"{architecture.width}, {format_count(count_parameters(architecture))} parameters, "
        f"{format_flops(flops_per_token(architecture))} per token"
    )
    why = job.resolved.sources["train.precision"]
    reason = f" ({why})" if why.startswith(("auto", "measured")) else ""
    unmeasured = job.recipe.train.precision == "auto"
    precision = "precision measured at the start of the run" if unmeasured else f"{setting.precision}{reason}"
    data = setting.dataset.describe()
    return model, f"{data}; device {device.type}, {precision}, {torch.get_num_threads()} threads"
