"""What every operation on a checkpoint needs: the run it lies in, its recipe, its data, its model on a device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ppdgrow.checkpoint import Checkpoint, RunFolder, lines_up_to, manifest_digest, read_checkpoint, read_located
from ppdgrow.checkpoint.events import Event
from ppdgrow.checkpoint.lineage import lineage_up_to, used_ids
from ppdgrow.config.architecture import InputSpec, PretrainedArchitecture
from ppdgrow.config.kinds import FAMILIES, PRETRAINED, Task
from ppdgrow.config.load import Layer, Resolved, read_run_recipe, resolve
from ppdgrow.config.requests import PrecisionName
from ppdgrow.config.schema import DataConfig, ModelConfig, Recipe
from ppdgrow.config.state import DataIdentity, Environment, Ledger, TrainerState, Validation
from ppdgrow.console import Narrator
from ppdgrow.data import Batch, Batches, Dataset, Split, open_dataset
from ppdgrow.engine.device import Precision, describe_environment, resolve_device
from ppdgrow.engine.evaluate import Evaluation, evaluate
from ppdgrow.engine.stop_flag import StopFlag
from ppdgrow.errors import ConfigError, InvalidInputError
from ppdgrow.optim.optimizer import check_moments
from ppdgrow.optim.schedule import Schedule
from ppdgrow.pretrained.library import require_transformers
from ppdgrow.pretrained.recognition import is_pretrained
from ppdgrow.pretrained.text import refuse_other_text
from ppdgrow.training.models import build_model

SHORT_NAMES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float64: "fp64"}
FINE_TUNING_RATE = 1e-4  # the default for a model of Transformers
EVERYTHING = 10**9  # more batches than a split has: it gives all of its examples


@dataclass(frozen=True)
class Parent:
    """A checkpoint with the run that it lies in; `skipped` says why newer ones of the run were passed over."""

    run: RunFolder
    folder: Path
    checkpoint: Checkpoint
    resolved: Resolved
    digest: str
    skipped: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()  # of a folder of Transformers: what of it is not taken, or new

    @property
    def recipe(self) -> Recipe:
        return self.resolved.recipe

    @property
    def is_folder(self) -> bool:
        """Whether it is a folder of Transformers, and no checkpoint in a run."""
        return self.folder == self.run.path

    @property
    def step(self) -> int:
        return self.checkpoint.state.step

    def lineage(self) -> list[Event]:
        """The events of `growth.jsonl` that the checkpoint has behind it."""
        return lineage_up_to(self.run.growth_path, self.step)

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of `metrics.jsonl` up to the checkpoint's step."""
        return [] if self.is_folder else lines_up_to(self.run.metrics_path, self.step)

    def used_ids(self) -> frozenset[str]:
        """Block ids that some ancestor had, whether or not they are still there."""
        return used_ids(self.lineage())


def load_parent(path: Path, *, optimizer: bool = True, task: Task | None = None) -> Parent:
    """Read and verify the checkpoint that `path` names: a run folder, a checkpoint in one, a folder of Transformers.

    `task` is that of the head which such a folder gets if it has none.

    Raises:
        InvalidInputError: it is missing, cut off or altered, or the run's recipe is.
        ConfigError: it is a model of Transformers, which is not installed.
    """
    if is_pretrained(path):
        require_transformers(path)
        return _pretrained_parent(path, task)
    return read_located(path, partial(_load, optimizer))


def _load(optimizer: bool, run: RunFolder, folder: Path, skipped: tuple[str, ...]) -> Parent:
    if not run.recipe_path.is_file():
        raise InvalidInputError(
            f"{str(run.recipe_path)!r} is missing: a run folder has a recipe.yaml; copy the whole run folder"
        )
    try:
        resolved = resolved_recipe(run, "checkpoint")
    except ConfigError as error:
        raise InvalidInputError(f"{str(run.recipe_path)!r} is not a valid recipe: {error}") from None
    checkpoint = read_checkpoint(folder, optimizer=optimizer)
    if isinstance(checkpoint.architecture, PretrainedArchitecture):
        require_transformers(folder)
    try:
        check_moments(checkpoint.moments, checkpoint.tensors)
    except InvalidInputError as error:
        raise InvalidInputError(f"{str(folder)!r}: {error}") from None
    return Parent(run, folder, checkpoint, resolved, manifest_digest(folder), skipped)


def _pretrained_parent(path: Path, task: Task | None) -> Parent:
    """A folder of Transformers as a checkpoint at step 0 that was trained on nothing known."""
    from ppdgrow.pretrained.parent import read_pretrained, tokenizer_digest

    found = read_pretrained(path, task)
    state = TrainerState(
        step=0,
        lr_factor=0.0,
        ledger=Ledger(),
        validation=None,
        train_loss=None,
        data=DataIdentity(name="unknown", tokenizer=None, sequence_length=None, sha256={}, validation_examples=0),
        environment=describe_environment(torch.device("cpu"), "fp32", accumulate=1),
    )
    checkpoint = Checkpoint(
        found.architecture, found.tensors, {}, {}, state, found.tokenizer, found.stored, files=found.files
    )
    values = {
        "model.family": PRETRAINED,
        "model.stream": "residual",
        "model.task": found.architecture.task,
        "model.layers": found.architecture.num_layers,
        "model.width": found.architecture.width,
        "data.tokenizer": f"{PRETRAINED}:{tokenizer_digest(found.tokenizer)[:8]}",
        "train.lr": FINE_TUNING_RATE,
        "data.sequence_length": min(found.architecture.input.sequence_length, DataConfig().sequence_length),
    }
    folder = found.folder.path
    return Parent(
        RunFolder(folder), folder, checkpoint, resolve([Layer("checkpoint", values)]), found.digest, (), found.notes
    )


def resolved_recipe(run: RunFolder, source: str = "run") -> Resolved:
    """The recipe that a run folder holds."""
    return resolve([Layer(source, read_run_recipe(run.recipe_path))])


@dataclass(frozen=True)
class Setting:
    """Where and on what a model is run: device, precision, data."""

    device: torch.device
    precision: Precision
    dataset: Dataset
    recipe: Recipe

    @cached_property
    def validation(self) -> list[Batch]:
        """The fixed validation batches of the recipe."""
        return self.evaluation()

    def identity(self) -> DataIdentity:
        """Of the data that was read so far, and of the validation batches."""
        return self.dataset.identity(sum(len(batch.targets) for batch in self.validation))

    @cached_property
    def environment(self) -> Environment:
        return describe_environment(self.device, self.precision, accumulate=self.recipe.train.accumulate)

    def training(self) -> Batches:
        """The training batches of the recipe."""
        train = self.recipe.train
        return self.dataset.batches("train", batch_size=train.batch_size, seed=train.seed, device=self.device)

    def evaluation(self, split: Split = "validation", *, whole: bool = False) -> list[Batch]:
        """The fixed batches of a split, by the recipe's batch size, microbatches and `eval_batches`, or all of it."""
        train = self.recipe.train
        return self.dataset.evaluation(
            split,
            batch_size=train.batch_size,
            num_batches=EVERYTHING if whole else train.eval_batches,
            device=self.device,
            microbatches=train.accumulate,
        )

    def evaluate(self, model: nn.Module, batches: Sequence[Batch], *, stop: StopFlag | None = None) -> Evaluation:
        """Per-example losses on fixed batches; `StoppedError` if the stop flag is set meanwhile."""
        return evaluate(model, batches, device=self.device, precision=self.precision, stop=stop)

    def evaluate_checkpoint(
        self, checkpoint: Checkpoint, batches: Sequence[Batch], *, stop: StopFlag | None = None
    ) -> Evaluation:
        model = build_model(checkpoint.architecture, checkpoint.tensors, self.device).eval()
        return self.evaluate(model, batches, stop=stop)

    def figures(self, evaluation: Evaluation, split: Split = "validation") -> Validation:
        return evaluation.figures(
            self.dataset.bytes_per_token(split),
            tokens=self.recipe.model.task != "classify",
            class_names=self.dataset.class_names,
        )


@dataclass(frozen=True)
class RunContext:
    """What all trainers of a run share. `first` is the step before the run's first."""

    setting: Setting
    schedule: Schedule
    stop: StopFlag
    narrator: Narrator
    first: int

    @property
    def recipe(self) -> Recipe:
        return self.setting.recipe

    @property
    def evaluation(self) -> list[Batch]:
        return self.setting.validation

    @property
    def last(self) -> int:
        return self.first + self.recipe.train.steps


def input_spec_of(dataset: Dataset, model: ModelConfig) -> InputSpec:
    """What a model of this recipe reads; where whole images are embedded, no patch size matters."""
    return dataset.input_spec(1 if "model.patch_size" in FAMILIES[model.family].ignored else model.patch_size)


def task_of(recipe: Recipe) -> Task:
    """The task of a recipe whose defaults from the data are filled in."""
    if recipe.model.task is None:
        raise ConfigError("model.task is not set: expected one of lm, mlm, classify")
    return recipe.model.task


def checkpoint_setting(
    parent: Parent, *, device: str, precision: PrecisionName | None, data_dir: Path | None
) -> Setting:
    """The setting in which a checkpoint was trained, with the overrides of a command.

    Raises:
        ConfigError, InvalidInputError: device or data are not there, or not what the checkpoint was built for.
    """
    recipe = parent.recipe
    data = recipe.data if data_dir is None else recipe.data.model_copy(update={"directory": str(data_dir)})
    dataset = open_data(recipe.model_copy(update={"data": data}), parent)
    return Setting(resolve_device(device), chosen_precision(parent.checkpoint.state, precision), dataset, recipe)


def chosen_precision(state: TrainerState, asked: PrecisionName | None) -> Precision:
    """The precision that is asked for; with None or `auto` that in which a checkpoint was trained."""
    return state.environment.precision if asked is None or asked == "auto" else asked


def open_data(recipe: Recipe, parent: Parent | None, report: Callable[[str], object] | None = None) -> Dataset:
    """The data of a recipe, which says to `report` what it reads.

    Refused where its vocabulary, length or image size is not what the checkpoint was built for.
    """
    dataset = open_dataset(recipe.data, task_of(recipe), None if parent is None else parent.checkpoint.tokenizer)
    if report is not None:
        dataset.report = report
    if parent is not None and isinstance(parent.checkpoint.architecture, PretrainedArchitecture):
        refuse_other_text(dataset, parent.checkpoint.architecture, parent.folder)
        return dataset
    found = input_spec_of(dataset, recipe.model)
    if parent is not None and found != parent.checkpoint.architecture.input:
        specs = (found.model_dump(), parent.checkpoint.architecture.input.model_dump())
        gives, built_for = (", ".join(f"{key} {value}" for key, value in spec.items()) for spec in specs)
        raise ConfigError(
            f"the data gives {gives}, but {str(parent.folder)!r} was built for {built_for}: "
            "use the data and tokenizer of the checkpoint, or train a new model"
        )
    return dataset


def changed_splits(dataset: Dataset, state: TrainerState) -> str | None:
    """Which splits are not what a checkpoint was trained or judged on, of those read so far: `the train split of d`.

    Only content counts: the same files at another path are the same data.
    """
    recorded = state.data.sha256
    found = dataset.identity(state.data.validation_examples).sha256
    changed = [split for split, digest in found.items() if recorded.get(split, digest) != digest]
    plural = "s" if len(changed) > 1 else ""
    return f"the {' and '.join(changed)} split{plural} of {dataset.config.name}" if changed else None


def changed_data(dataset: Dataset, state: TrainerState, owner: object) -> list[str]:
    """That a checkpoint of `owner` was trained with other data, in words; nothing where it was not."""
    changed, then = changed_splits(dataset, state), state.data.name
    why = "another Python or another copy?" if then == dataset.name else f"its data was {then}"
    return [] if changed is None else [f"{changed} had other content when {owner} was trained ({why})"]


def refuse_changed_data(dataset: Dataset, state: TrainerState, run: Path) -> None:
    """A stopped run goes on with the data with which it began."""
    if (changed := changed_splits(dataset, state)) is not None:
        raise InvalidInputError(
            f"{changed} changed since step {state.step} of {str(run)!r} (another Python or another copy?): restore it, "
            "or train in a new --out"
        )


def say_stored_type(checkpoint: Checkpoint, folder: Path, narrator: Narrator) -> None:
    """Say it where weights are not stored as fp32, as which they are read."""
    if checkpoint.stored in SHORT_NAMES:
        narrator.say(f"the weights of {folder} are stored as {SHORT_NAMES[checkpoint.stored]}: read as fp32")


def report_parent(parent: Parent, narrator: Narrator) -> None:
    """Say what was skipped, and in which type the weights are stored."""
    for reason in parent.skipped:
        narrator.warn(f"skipped a damaged checkpoint: {reason}")
    say_stored_type(parent.checkpoint, parent.folder, narrator)


def warn_of_changes(dataset: Dataset, parent: Parent | None, narrator: Narrator) -> None:
    """Say what was skipped, and if figures on this data are not comparable with those that the checkpoint records."""
    if parent is not None:
        report_parent(parent, narrator)
    for warning in dataset.warnings:
        narrator.warn(warning)
    for change in [] if parent is None else changed_data(dataset, parent.checkpoint.state, parent.folder):
        narrator.warn(f"{change}: figures before and after do not compare")
