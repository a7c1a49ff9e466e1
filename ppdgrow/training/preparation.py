"""What happens between a `train` command and its first step, for a run and for its dry run: nothing is written here.

Each refusal of a run before its first step is made here, so that the dry run makes it too.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from ppdgrow.checkpoint import RunFolder, read_state
from ppdgrow.config.load import Layer, Resolved
from ppdgrow.config.schema import Recipe
from ppdgrow.console import Narrator, format_count, format_flops
from ppdgrow.data import Dataset, open_dataset
from ppdgrow.engine.device import AUTO_MIN_WIDTH, Precision, choose_precision
from ppdgrow.engine.evaluate import BatchLike
from ppdgrow.errors import ConfigError
from ppdgrow.nn.cost import count_parameters, flops_per_token
from ppdgrow.nn.model import Model, build_model
from ppdgrow.optim.adamw import NamedAdamW
from ppdgrow.optim.schedule import Schedule, make_schedule
from ppdgrow.training.context import (
    Parent,
    Setting,
    check_input,
    input_spec_of,
    load_parent,
    task_of,
    warn_of_changes,
)
from ppdgrow.training.disk_space import Space, space_of
from ppdgrow.training.growth_schedule import GrowthSchedule, check_examples, check_growth_schedule
from ppdgrow.training.outlook import phases
from ppdgrow.training.output_folder import WAY_OUT, check_place, finished, holds_something, same_run
from ppdgrow.training.recipe import default_folder, differing_keys, resolve_training, unused_keys
from ppdgrow.training.start import Start, first_start
from ppdgrow.training.trainer import make_optimizer

if TYPE_CHECKING:
    from torch._subclasses.fake_tensor import FakeTensorMode

CPU = torch.device("cpu")


@dataclass(frozen=True)
class TrainRequest:
    """What a user asks of `train`. `layers` are recipe values in rising precedence."""

    layers: Sequence[Layer] = ()
    checkpoint: Path | None = None
    out: Path | None = None
    device: str = "auto"
    resume: Literal["auto", "never"] = "auto"
    deterministic: bool = False


@dataclass(frozen=True)
class Job:
    """One run, resolved but for its data: steps `first + 1 .. last` in a folder.

    `held` is the recipe by which the folder holds this run already, `final` its last checkpoint if it is finished.
    """

    parent: Parent | None
    resolved: Resolved
    run: RunFolder
    first: int
    last: int
    held: Recipe | None
    final: Path | None

    @property
    def recipe(self) -> Recipe:
        """The run's recipe."""
        return self.resolved.recipe

    @property
    def precision(self) -> Precision:
        """The working precision; fp32 where it is still to be measured."""
        return "bf16" if self.recipe.train.precision == "bf16" else "fp32"


def plan_run(request: TrainRequest) -> Job:
    """The run that is asked for, with its recipe and its folder.

    Raises:
        ConfigError: the recipe, or the folder holds something else.
        InvalidInputError: the checkpoint.
    """
    parent = None if request.checkpoint is None else load_parent(request.checkpoint)
    resolved = resolve_training(parent, request.layers)
    run = RunFolder(request.out or default_folder(parent, resolved.recipe))
    first = 0 if parent is None else parent.step
    last = first + resolved.recipe.train.steps
    check_place(run, parent)
    if not holds_something(run):
        return Job(parent, resolved, run, first, last, held=None, final=None)
    held = same_run(run, resolved.recipe, parent, request.resume)
    if resolved.recipe.train.precision == "auto":
        resolved = resolved.replace({"train.precision": held.train.precision}, "run")
    job = Job(parent, resolved, run, first, last, held, final=None)
    return job if check_length(job) else replace(job, final=finished(run, last))


def check_length(job: Job) -> list[str]:
    """In what the run differs from the one that its folder holds: it may be longer or shorter from where it stands.

    Raises:
        ConfigError: then it would not be, to the bit, the run that is asked for.
    """
    assert job.held is not None
    changes = differing_keys(job.held, job.recipe, job.parent)
    if not changes:
        return []
    planned = job.first + job.held.train.steps
    newest = job.run.newest_valid()
    step = job.first if newest is None else read_state(newest).step
    initial = 0.0 if job.parent is None else job.parent.checkpoint.state.lr_factor
    before, _ = make_schedule(job.held.train, first=job.first, last=planned, initial=initial)
    after, _ = make_schedule(job.recipe.train, first=job.first, last=job.last, initial=initial)
    other = next((past for past in range(job.first + 1, step + 1) if before.factor(past) != after.factor(past)), None)
    command = f"ppdgrow train {shlex.quote(str(job.run.path))} --steps"
    way_out = f"finish it as it was begun and go on with {command} N, or {WAY_OUT}"
    if finished(job.run, planned) is not None:
        reason = f"is finished at step {planned}"
        way_out = f"go on from it with {command} {job.last - planned}, or {WAY_OUT}" if job.last > planned else WAY_OUT
    elif step > job.last:
        reason, way_out = f"stands at step {step} already", f"ask for at least --steps {step - job.first}, or {WAY_OUT}"
    elif job.recipe.growth:
        reason = "may have grown at other steps"
    elif other is not None:
        reason = f"stands at step {step}, and had another learning rate from step {other} on"
    else:
        return [line for lines in changes.values() for line in lines]
    told = "; ".join(line for lines in changes.values() for line in lines)
    raise ConfigError(f"the output folder {str(job.run.path)!r} holds this run ({told}), which {reason}: {way_out}")


@dataclass(frozen=True)
class Prepared:
    """All that a run's first step needs. The precision of `job` is resolved, unless this is a dry run that cannot."""

    job: Job
    start: Start
    model: Model
    growth_schedule: GrowthSchedule
    schedule: Schedule
    setting: Setting
    evaluation: Sequence[BatchLike]
    space: Space


def prepare(job: Job, device: torch.device, narrator: Narrator, *, fake: FakeTensorMode | None = None) -> Prepared:
    """Open the data, build the model, and say what they are.

    Args:
        job: from `plan_run`.
        device: of the model.
        narrator: for what was adjusted, model and data.
        fake: makes it a dry run: the model has no memory, its precision is not measured, the data stays on the CPU.

    Raises:
        PPDGrowError: whatever stands in the way of the first step.
    """
    recipe, parent = job.recipe, job.parent
    dataset = open_dataset(recipe.data, task_of(recipe), None if parent is None else parent.checkpoint.tokenizer)
    dataset.report = narrator.now
    if parent is not None:
        check_input(dataset, parent)
    start = _start(job, dataset, fake)
    growth_schedule = GrowthSchedule(recipe.growth, job.first, job.last, recipe.train.eval_every)
    check_growth_schedule(growth_schedule, start.architecture)
    schedule, notes = make_schedule(recipe.train, first=job.first, last=job.last, initial=start.lr_factor)
    notes = [*unused_keys(job.resolved, dataset), *notes, *_rewarming(job, schedule)]
    model, _ = build(start, recipe, device, fake)  # each trainer makes an optimizer of its own, with a state of its own
    data_device = device if fake is None else CPU
    dataset.batches("train", batch_size=recipe.train.batch_size, seed=recipe.train.seed, device=data_device)
    narrator.now("measuring the precision" if measures_precision(job, device) else "preparing the first step")
    job = _resolve_precision(job, model, dataset, device, fake)
    setting = Setting(data_device, job.precision, dataset, job.recipe)
    evaluation = setting.evaluation()
    examples = sum(len(batch.targets) for batch in evaluation)
    check_examples(growth_schedule, examples)
    space = space_of(job.run, job.recipe, start, growth_schedule, dataset, examples, device)
    if fake is None:
        space.check()
    # Said when nothing stands in the way any more: what is refused is refused in one line.
    place = [] if fake is not None else [f"run folder {job.run.path.as_posix()}, steps {job.first + 1} to {job.last}"]
    for note in (*place, *notes, *_introduction(job, start, setting, device)):
        narrator.say(note)
    warn_of_changes(dataset, parent, narrator)
    return Prepared(job, start, model, growth_schedule, schedule, setting, evaluation, space)


def build(start: Start, recipe: Recipe, device: torch.device, fake: FakeTensorMode | None) -> tuple[Model, NamedAdamW]:
    """The model of a start and its optimizer; without memory if `fake`.

    Raises:
        ConfigError: only pairs are to be trained and there are none.
        InvalidInputError: weights or optimizer state do not fit.
    """
    if fake is None:
        model = build_model(start.architecture, start.tensors, device)
        return model, make_optimizer(model, start, recipe.train)
    with fake:
        model = build_model(start.architecture, start.tensors, device)
        return model, make_optimizer(model, start, recipe.train)


def _start(job: Job, dataset: Dataset, fake: FakeTensorMode | None) -> Start:
    """The first start; if `fake`, of tensors that have a shape and no memory."""
    if fake is None:
        return first_start(job.parent, job.recipe, dataset)
    input_spec_of(dataset, job.recipe.model)  # what the data reads for it must not become fake
    parent = job.parent
    if parent is not None:
        with fake:
            old = parent.checkpoint
            tensors: dict[str, Tensor] = {name: fake.from_tensor(tensor) for name, tensor in old.tensors.items()}
            moments: dict[str, dict[str, Tensor]] = {
                name: {key: fake.from_tensor(tensor) for key, tensor in state.items()}
                for name, state in old.moments.items()
            }
        parent = replace(parent, checkpoint=replace(old, tensors=tensors, moments=moments))
    with fake:
        return first_start(parent, job.recipe, dataset)


def _rewarming(job: Job, schedule: Schedule) -> Iterator[str]:
    """A run that goes on from a rate below its peak rises to it again."""
    rise = next(iter(phases(schedule, job.recipe.train.lr, first=job.first, last=job.last)))
    if job.parent is not None and rise.name == "warm-up":
        ended = job.parent.checkpoint.state.lr_factor
        yield (
            f"the learning rate of {job.parent.folder.as_posix()} ended at {ended:.2g} of its peak: {rise} again "
            "(--no-decay is for a run that will be continued)"
        )


def measures_precision(job: Job, device: torch.device) -> bool:
    """Whether a run's precision is decided by a measurement at its start."""
    return job.recipe.train.precision == "auto" and device.type == "cpu" and job.recipe.model.width >= AUTO_MIN_WIDTH


def _resolve_precision(
    job: Job, model: Model, dataset: Dataset, device: torch.device, fake: FakeTensorMode | None
) -> Job:
    if job.recipe.train.precision != "auto" or (fake is not None and measures_precision(job, device)):
        return job
    batches = dataset.batches("train", batch_size=2, seed=0, device=device if fake is None else CPU)
    precision, why = choose_precision(model, batches.at(1).inputs, job.recipe.model.width, device)
    return replace(job, resolved=job.resolved.replace({"train.precision": precision}, why))


def _introduction(job: Job, start: Start, setting: Setting, device: torch.device) -> tuple[str, str]:
    """The model in one line, and data, device and precision in another."""
    architecture = start.architecture
    model = (
        f"{architecture.family} ({architecture.stream}), {architecture.num_layers} layers, width "
        f"{architecture.width}, {format_count(count_parameters(architecture))} parameters, "
        f"{format_flops(flops_per_token(architecture))} per token"
    )
    why = job.resolved.sources["train.precision"]
    reason = f" ({why})" if why.startswith(("auto", "measured")) else ""
    unmeasured = job.recipe.train.precision == "auto"
    precision = "precision measured at the start of the run" if unmeasured else f"{setting.precision}{reason}"
    data = setting.dataset.describe()
    return model, f"{data}; device {device.type}, {precision}, {torch.get_num_threads()} threads"
