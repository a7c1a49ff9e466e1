"""`train`: a run folder from a recipe, from scratch, on from a checkpoint, or on from where it stopped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from ppdgrow.accounting import count_parameters, flops_per_token, tokens_per_example, training_flops_per_token
from ppdgrow.atomic import new_folder, write_file
from ppdgrow.checkpoint import (
    RunFolder,
    append_jsonl,
    read_jsonl,
    read_state,
    weight_files,
)
from ppdgrow.config.architecture import Architecture
from ppdgrow.config.load import Layer, Resolved, dump, recipe_hash
from ppdgrow.config.state import Environment
from ppdgrow.console import Narrator, format_count, format_flops, format_seconds
from ppdgrow.data import Dataset, open_dataset
from ppdgrow.engine.device import (
    choose_precision,
    describe_environment,
    resolve_device,
    set_deterministic,
    set_rng_state,
)
from ppdgrow.engine.loop import Engine
from ppdgrow.engine.signals import StopFlag, stop_flag
from ppdgrow.errors import ConfigError
from ppdgrow.experiment.card import model_card
from ppdgrow.experiment.output import check_place, finished, holds_something, same_run
from ppdgrow.experiment.recipe import default_folder, resolve_training
from ppdgrow.experiment.recorder import Recorder, train_document
from ppdgrow.experiment.setting import (
    Parent,
    Setting,
    check_input,
    load_parent,
    task_of,
    warn_of_changes,
)
from ppdgrow.experiment.start import Start, first_start, resume
from ppdgrow.nn.model import Transformer, build_model
from ppdgrow.optim.adamw import NamedAdamW
from ppdgrow.optim.schedule import Schedule, make_schedule


@dataclass(frozen=True)
class TrainRequest:
    """What a user asks of `train`. `layers` are recipe values in rising precedence."""

    layers: Sequence[Layer] = ()
    checkpoint: Path | None = None
    out: Path | None = None
    device: str = "auto"
    resume: Literal["auto", "never"] = "auto"
    deterministic: bool = False


def train(request: TrainRequest, narrator: Narrator) -> dict[str, Any]:
    """Train as asked and return the document of `train --json`.

    Raises:
        PPDGrowError: by its subclass, with the exit code of the command.
    """
    device = resolve_device(request.device)
    set_deterministic(request.deterministic)
    parent = None if request.checkpoint is None else load_parent(request.checkpoint)
    resolved = resolve_training(parent, request.layers)
    run = RunFolder(request.out or default_folder(parent, resolved.recipe))
    first = 0 if parent is None else parent.step
    last = first + resolved.recipe.train.steps
    check_place(run, parent)
    if holds_something(run):
        recorded = same_run(run, resolved, parent, request.resume)
        final = finished(run, last)
        if final is not None:
            narrator.say(f"already finished: step {last} is in {run.path}")
            return train_document(run, final)
        directory = resolved.recipe.data.directory
        resolved = recorded.replace({"data.directory": directory}, resolved.sources["data.directory"])
    with stop_flag() as stop:
        return _Training(request, narrator, device, parent, resolved, run, first, last, stop).go()


class _Training:
    """One run: set up, train, finish. Each method is a stage, in the order of the file."""

    def __init__(
        self,
        request: TrainRequest,
        narrator: Narrator,
        device: torch.device,
        parent: Parent | None,
        resolved: Resolved,
        run: RunFolder,
        first: int,
        last: int,
        stop: StopFlag,
    ) -> None:
        self.request, self.narrator, self.device, self.parent = request, narrator, device, parent
        self.resolved, self.run, self.first, self.last, self.stop = resolved, run, first, last, stop

    def go(self) -> dict[str, Any]:
        """Run all stages."""
        config = self.resolved.recipe.train
        tokenizer = None if self.parent is None else self.parent.checkpoint.tokenizer
        recipe = self.resolved.recipe
        dataset = open_dataset(recipe.data, task_of(recipe), tokenizer)
        if self.parent is not None:
            check_input(dataset, self.parent)
        start = first_start(self.parent, recipe, dataset)
        schedule, notes = make_schedule(config, first=self.first, last=self.last, initial=start.lr_factor)
        for note in notes:
            self.narrator.say(note)
        model = build_model(start.architecture, start.tensors, self.device)
        optimizer = self._optimizer(model, start)
        self._resolve_precision(model, dataset)
        setting = Setting(self.device, self._precision(), dataset, self.resolved.recipe)
        self._introduce(start, setting)
        if self.parent is not None:
            warn_of_changes(dataset, self.parent, self.narrator)
        if not holds_something(self.run):
            self._create_folder(start)
        with self.run.lock():
            start, unfinished = resume(
                self.run,
                start,
                last=self.last,
                recipe=self.resolved.recipe,
                model=model,
                optimizer=optimizer,
                dataset=dataset,
                environment=self._environment(),
                narrator=self.narrator,
            )
            set_rng_state(start.rng, self.device, config.seed)
            return self._train(start, model, optimizer, schedule, setting, unfinished)

    def _optimizer(self, model: Transformer, start: Start) -> NamedAdamW:
        newest = start.architecture.newest_ids
        names = frozenset(
            name for name, _ in model.named_parameters() if name.startswith("blocks.") and name.split(".")[1] in newest
        )
        if self.resolved.recipe.train.only == "pairs":
            if not names:
                raise ConfigError("train.only is pairs, but the model was never grown: run ppdgrow grow first")
            for name, parameter in model.named_parameters():
                parameter.requires_grad_(name in names)
        optimizer = NamedAdamW(model, self.resolved.recipe.train, names)
        optimizer.load_moments(start.moments)
        return optimizer

    def _resolve_precision(self, model: Transformer, dataset: Dataset) -> None:
        if self.resolved.recipe.train.precision != "auto":
            return
        batches = dataset.batches("train", batch_size=2, seed=0, device=self.device)
        width = self.resolved.recipe.model.width
        precision, why = choose_precision(model, batches.at(1).inputs, width, self.device)
        self.resolved = self.resolved.replace({"train.precision": precision}, why)

    def _precision(self) -> Literal["fp32", "bf16"]:
        return "bf16" if self.resolved.recipe.train.precision == "bf16" else "fp32"

    def _introduce(self, start: Start, setting: Setting) -> None:
        architecture = start.architecture
        self.narrator.say(
            f"{architecture.family} ({architecture.stream}), {architecture.num_layers} layers, width "
            f"{architecture.width}, {format_count(count_parameters(architecture))} parameters, "
            f"{format_flops(flops_per_token(architecture))} per token"
        )
        why = self.resolved.sources["train.precision"]
        reason = f" ({why})" if why.startswith(("auto", "measured")) else ""
        self.narrator.say(
            f"{setting.dataset.describe()}; device {self.device.type}, {setting.precision}{reason}, "
            f"{torch.get_num_threads()} threads"
        )

    def _create_folder(self, start: Start) -> None:
        """The run folder with its recipe and its ancestors' record, at once or not at all."""
        event = {
            "event": "train",
            "step": start.step,
            "steps": self.resolved.recipe.train.steps,
            "parent": None if self.parent is None else self.parent.folder.as_posix(),
            "parent_sha256": None if self.parent is None else self.parent.digest,
            "recipe": recipe_hash(self.resolved.recipe),
            "seed": self.resolved.recipe.train.seed,
        }
        with new_folder(self.run.path) as folder:
            fresh = RunFolder(folder)
            write_file(fresh.recipe_path, dump(self.resolved))
            append_jsonl(fresh.metrics_path, [] if self.parent is None else self.parent.metrics())
            append_jsonl(fresh.growth_path, [*([] if self.parent is None else self.parent.lineage()), event])

    def _environment(self) -> Environment:
        return describe_environment(self.device, self._precision(), deterministic=self.request.deterministic)

    def _train(
        self,
        start: Start,
        model: Transformer,
        optimizer: NamedAdamW,
        schedule: Schedule,
        setting: Setting,
        unfinished: dict[str, Any] | None,
    ) -> dict[str, Any]:
        config = self.resolved.recipe.train
        born = max(block.born for block in start.architecture.blocks)
        tokens = config.batch_size * tokens_per_example(start.architecture)

        def new_factor(step: int) -> float:
            warmup = config.pair_warmup_steps
            return config.pair_lr * (min(1.0, (step - born) / warmup) if warmup else 1.0)

        evaluation = setting.evaluation()
        engine = Engine(
            model,
            optimizer,
            schedule,
            new_factor=new_factor,
            batches=setting.dataset.batches(
                "train", batch_size=config.batch_size, seed=config.seed, device=self.device
            ),
            evaluation=evaluation,
            figures=setting.figures,
            config=config,
            device=self.device,
            precision=setting.precision,
            step=start.step,
            ledger=start.ledger,
            tokens_per_step=tokens,
            flops_per_step=tokens * training_flops_per_token(start.architecture),
            stop=self.stop,
        )
        examples = sum(len(batch.targets) for batch in evaluation)
        with self.narrator.progress(total=self.last - self.first, description="training") as bar:
            recorder = Recorder(
                run=self.run,
                architecture=start.architecture,
                environment=self._environment(),
                identity=lambda: setting.dataset.identity(examples),
                tokenizer=setting.dataset.tokenizer_json,
                keep=config.keep,
                first=self.first,
                last=self.last,
                assignment={} if self.parent is None else weight_files(self.parent.folder),
                narrator=self.narrator,
                bar=bar,
                engine=engine,
            )
            engine.run(self.last, recorder, unfinished=unfinished)
        return self._finish(engine, start.architecture)

    def _finish(self, engine: Engine, architecture: Architecture) -> dict[str, Any]:
        folder = self.run.checkpoint_path(self.last)
        state = read_state(folder)
        lineage = read_jsonl(self.run.growth_path)
        card = model_card(self.run.path.name, architecture, state, lineage, dump(self.resolved))
        write_file(self.run.card_path, card)
        figures = state.validation
        if figures is not None:
            extra = f" (perplexity {figures.perplexity:.1f})" if figures.perplexity is not None else ""
            self.narrator.say(
                f"step {self.last}  val loss {figures.loss:.4f}{extra}, accuracy {figures.accuracy:.4f}  "
                f"{format_count(engine.ledger.tokens)} tokens  {format_flops(engine.ledger.flops)}  "
                f"{format_seconds(engine.ledger.seconds)}"
            )
        if engine.lr_factor == 1.0:
            self.narrator.say("the learning rate is at its peak: go on from here, or decay it before comparing")
        return train_document(self.run, folder)
