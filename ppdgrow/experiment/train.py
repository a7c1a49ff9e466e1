"""`train`: a run folder from a recipe, from scratch, on from a checkpoint, or on from where it stopped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from ppdgrow.accounting import count_parameters, flops_per_token
from ppdgrow.atomic import new_folder, write_file
from ppdgrow.checkpoint import RunFolder, append_jsonl, read_config, read_jsonl, read_state, weight_files
from ppdgrow.config.load import Layer, Resolved, dump, recipe_hash
from ppdgrow.config.state import Ledger
from ppdgrow.console import Narrator, format_count, format_flops, format_seconds
from ppdgrow.data import Dataset, open_dataset
from ppdgrow.engine.device import choose_precision, describe_environment, resolve_device, set_deterministic
from ppdgrow.engine.signals import StopFlag, stop_flag
from ppdgrow.experiment.acceptance import CAUTION
from ppdgrow.experiment.card import model_card
from ppdgrow.experiment.leg import Course, make_optimizer
from ppdgrow.experiment.output import check_place, finished, holds_something, same_run
from ppdgrow.experiment.progressive.agenda import Agenda, check_agenda, check_examples
from ppdgrow.experiment.progressive.climb import Climb
from ppdgrow.experiment.progressive.ladder import ledger_line
from ppdgrow.experiment.recipe import default_folder, resolve_training, unused_keys
from ppdgrow.experiment.recorder import train_document
from ppdgrow.experiment.setting import Parent, Setting, check_input, load_parent, task_of, warn_of_changes
from ppdgrow.experiment.start import Start, first_start
from ppdgrow.nn.model import Model, build_model
from ppdgrow.optim.schedule import make_schedule
from ppdgrow.provenance import provenance


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
        recipe = self.resolved.recipe
        tokenizer = None if self.parent is None else self.parent.checkpoint.tokenizer
        dataset = open_dataset(recipe.data, task_of(recipe), tokenizer)
        if self.parent is not None:
            check_input(dataset, self.parent)
        for key in unused_keys(self.resolved):
            self.narrator.say(f"{key} does nothing in the family {recipe.model.family}")
        start = first_start(self.parent, recipe, dataset)
        agenda = Agenda(recipe.growth, self.first, self.last, recipe.train.eval_every)
        check_agenda(agenda, start.architecture)
        schedule, notes = make_schedule(recipe.train, first=self.first, last=self.last, initial=start.lr_factor)
        for note in notes:
            self.narrator.say(note)
        model = build_model(start.architecture, start.tensors, self.device)
        make_optimizer(model, start, recipe.train)  # what does not fit is refused before anything is written
        self._resolve_precision(model, dataset)
        setting = Setting(self.device, self._precision(), dataset, self.resolved.recipe)
        self._introduce(start, setting)
        if self.parent is not None:
            warn_of_changes(dataset, self.parent, self.narrator)
        course = Course(
            setting=setting,
            schedule=schedule,
            environment=describe_environment(self.device, self._precision(), deterministic=self.request.deterministic),
            evaluation=setting.evaluation(),
            stop=self.stop,
            narrator=self.narrator,
            first=self.first,
            last=self.last,
            assignment={} if self.parent is None else weight_files(self.parent.folder),
        )
        check_examples(agenda, sum(len(batch.targets) for batch in course.evaluation))
        if not holds_something(self.run):
            self._create_folder(start)
        with self.run.lock():
            return self._train(course, agenda, start, model)

    def _resolve_precision(self, model: Model, dataset: Dataset) -> None:
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
            "provenance": provenance(),
        }
        with new_folder(self.run.path) as folder:
            fresh = RunFolder(folder)
            write_file(fresh.recipe_path, dump(self.resolved))
            append_jsonl(fresh.metrics_path, [] if self.parent is None else self.parent.metrics())
            append_jsonl(fresh.growth_path, [*([] if self.parent is None else self.parent.lineage()), event])

    def _train(self, course: Course, agenda: Agenda, fresh: Start, model: Model) -> dict[str, Any]:
        start, unfinished = course.resume(self.run, fresh, first=self.first)
        climb = Climb(course, self.run, agenda, fresh.architecture.num_layers)
        ledger = climb.finish(start, model if start is fresh else None, unfinished)
        return self._finish(climb, ledger)

    def _finish(self, climb: Climb, ledger: Ledger) -> dict[str, Any]:
        folder = self.run.checkpoint_path(self.last)
        state = read_state(folder)
        lineage = read_jsonl(self.run.growth_path)
        card = model_card(self.run.path.name, read_config(folder), state, lineage, dump(self.resolved))
        write_file(self.run.card_path, card)
        if climb.agenda.entries:
            for line in (*climb.picture(self.last), ledger_line(state.ledger), CAUTION):
                self.narrator.say(line)
        figures = state.validation
        if figures is not None:
            extra = f" (perplexity {figures.perplexity:.1f})" if figures.perplexity is not None else ""
            self.narrator.say(
                f"step {self.last}  val loss {figures.loss:.4f}{extra}, accuracy {figures.accuracy:.4f}  "
                f"{format_count(ledger.tokens)} tokens  {format_flops(ledger.flops)}  {format_seconds(ledger.seconds)}"
            )
        if state.lr_factor == 1.0:
            self.narrator.say("the learning rate is at its peak: go on from here, or decay it before comparing")
        return train_document(self.run, folder)
