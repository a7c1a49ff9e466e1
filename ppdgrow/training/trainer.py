"""A trainer: training in one run folder up to some step, what it leaves there, and what people see of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import torch

from ppdgrow.checkpoint import Checkpoint, RunFolder, append_jsonl, read_jsonl, write_checkpoint
from ppdgrow.config.schema import TrainConfig
from ppdgrow.config.state import Ledger, TrainerState
from ppdgrow.console import Narrator, ProgressBar
from ppdgrow.engine.device import rng_state, set_rng_state
from ppdgrow.engine.loop import Engine, MetricsLine
from ppdgrow.errors import ConfigError, PPDGrowError
from ppdgrow.nn.cost import tokens_per_example, training_flops_per_token
from ppdgrow.optim.optimizer import NamedOptimizer
from ppdgrow.training.context import RunContext
from ppdgrow.training.models import AnyModel, block_of, build_model, drawn_names
from ppdgrow.training.resume import Start

TRAIN_LOSS_STEPS = 50
# What stands above the progress bar, from the step and the ledger.
Header = Callable[[int, Ledger], str]


class Trainer:
    """A model in training in a run folder, where it leaves metrics and checkpoints. `to` takes it to a later step.

    Args:
        context: of the run.
        run: its folder, or that of one of its arms.
        start: the state to go on from; it must be the newest one that `run` holds, or a new one.
        pair_lr: factor on the rate of the newest blocks, which rises to it over `train.pair_warmup_steps`.
        model: the start's model, if it is built already.
        label, span, header: name, first and last step (those of the run if left out) and top of the progress display.
    """

    def __init__(
        self,
        context: RunContext,
        run: RunFolder,
        start: Start,
        *,
        pair_lr: float,
        model: AnyModel | None = None,
        label: str = "training",
        span: tuple[int, int] | None = None,
        header: Header | None = None,
    ) -> None:
        config, setting, architecture = context.recipe.train, context.setting, start.architecture
        model = model or build_model(architecture, start.tensors, setting.device)
        tokens = config.batch_size * tokens_per_example(architecture)
        born, warmup = max(block.born for block in architecture.blocks), config.pair_warmup_steps
        self.run = run
        self.engine = Engine(
            model,
            make_optimizer(model, start, config),
            context.schedule,
            new_factor=lambda step: pair_lr * (min(1.0, (step - born) / warmup) if warmup else 1.0),
            batches=setting.training(),
            evaluation=context.evaluation,
            figures=setting.figures,
            config=config,
            device=setting.device,
            precision=setting.precision,
            first=context.first,
            step=start.step,
            ledger=start.ledger,
            evaluated=(start.step, start.validation),
            tokens_per_step=tokens,
            flops_per_step=tokens * training_flops_per_token(architecture),
            stop=context.stop,
        )
        set_rng_state(start.rng, setting.device, config.seed)
        self._setting, self._architecture, self._shards, self._files = setting, architecture, start.shards, start.files
        frozen = (name for name, parameter in model.named_parameters() if not parameter.requires_grad)
        self._frozen = {name: old for name in frozen if (old := start.tensors[name]).dtype != torch.float32}
        steps = (line for line in read_jsonl(run.metrics_path) if "train_loss" in line)
        self._recent = deque(steps, maxlen=TRAIN_LOSS_STEPS)
        latest = self._recent[-1] if self._recent else None
        first, last = span or (context.first, context.last)
        self._display = Display(context.narrator, self.engine, label, first, last, latest, header)

    @property
    def step(self) -> int:
        return self.engine.step

    def save(self) -> None:
        """Leave a checkpoint of the current step, if there is none yet."""
        if self.run.newest_valid() != self.run.checkpoint_path(self.step):
            self.on_save()

    def to(self, step: int) -> None:
        """Train up to and including `step`, which is not before the current one. See `Engine.run`."""
        self.engine.listeners = [self, self._display]
        try:
            with self._display.shown():
                self.engine.run(step)
        except PPDGrowError:
            self._display.say_last()
            raise
        finally:
            self.engine.listeners = ()  # no circle: the memory is free as soon as the trainer is let go

    def on_steps(self, lines: Sequence[MetricsLine]) -> None:
        append_jsonl(self.run.metrics_path, lines)
        self._recent += lines

    def on_evaluation(self, line: MetricsLine) -> None:
        append_jsonl(self.run.metrics_path, [line])

    def on_save(self) -> None:
        """Write a checkpoint of the current step and prune older ones."""
        engine, setting = self.engine, self._setting
        self.run.check_present()
        state = TrainerState(
            step=engine.step,
            lr_factor=engine.lr_factor,
            ledger=engine.ledger,
            validation=engine.validation,
            train_loss=sum(line["train_loss"] for line in self._recent) / len(self._recent) if self._recent else None,
            data=setting.identity(),
            environment=setting.environment,
        )
        checkpoint = Checkpoint(
            architecture=self._architecture,
            tensors={
                name: self._frozen[name] if name in self._frozen else tensor.detach().cpu()
                for name, tensor in engine.model.state_dict().items()
            },
            moments=engine.optimizer.moments(),
            rng=rng_state(engine.device),
            state=state,
            tokenizer=setting.dataset.tokenizer_json,
            shards=self._shards,
            files=self._files,
        )
        write_checkpoint(self.run.checkpoint_path(engine.step), checkpoint)
        self.run.prune(engine.config.keep)


def make_optimizer(model: AnyModel, start: Start, config: TrainConfig) -> NamedOptimizer:
    """The optimizer with the start's state, the newest blocks in a group of their own (see `select_trained`)."""
    optimizer = NamedOptimizer(model, config, select_trained(model, config))
    optimizer.load_moments(start.moments)
    return optimizer


def select_trained(model: AnyModel, config: TrainConfig) -> frozenset[str]:
    """The names of the newest blocks' parameters; all are frozen that `train.only` does not name.

    Raises:
        ConfigError: only pairs are to be trained and there are none, or blocks that the model does not have.
    """
    architecture = model.architecture
    newest, drawn = architecture.newest_ids, drawn_names(architecture)
    names = frozenset(
        name for name, _ in model.named_parameters() if block_of(architecture, name) in newest or name in drawn
    )
    if config.only == "all":
        return names
    trained = names
    if config.only == "pairs" and not names:
        raise ConfigError(
            "train.only is pairs, but the model has no grown blocks yet: grow it with ppdgrow grow, or train all"
        )
    if config.only != "pairs":
        asked, known = config.only.split(","), [block.id for block in architecture.blocks]
        if unknown := sorted(set(asked) - set(known)):
            raise ConfigError(
                f"train.only names {', '.join(unknown)}, but the blocks of the model are {', '.join(known)}: name some "
                "of these"
            )
        trained = frozenset(name for name, _ in model.named_parameters() if block_of(architecture, name) in asked)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in trained or name in drawn)
    return names


@dataclass
class Display:
    """The listener that speaks: a line per evaluation, and on a terminal a progress bar from `first` to `last`.

    `label` is that of the run or of one of its arms, `latest` the metrics of the engine's step, if there are any.
    """

    narrator: Narrator
    engine: Engine
    label: str
    first: int
    last: int
    latest: MetricsLine | None
    header: Header | None
    _bar: ProgressBar | None = field(default=None, init=False)
    _validation_loss: float | None = field(default=None, init=False)
    _is_said: bool = field(default=True, init=False)

    @contextmanager
    def shown(self) -> Iterator[None]:
        with self.narrator.progress(self.last - self.first, self.label) as self._bar:
            self._show_header()
            yield

    def on_steps(self, lines: Sequence[MetricsLine]) -> None:
        self.latest, self._is_said = lines[-1], False
        self._move()

    def on_evaluation(self, line: MetricsLine) -> None:
        self._validation_loss = line["validation"]["loss"]
        self._say(f"val loss {self._validation_loss:.4f}  ")
        self._move()

    def on_save(self) -> None:
        pass

    def say_last(self) -> None:
        """Say where a run stopped, if that step was not evaluated; the bar, which showed it, is gone."""
        if not self._is_said:
            self._say("")

    def _say(self, validation: str) -> None:
        self._is_said = True
        if self.latest is not None:
            prefix = "" if self.label == "training" else f"{self.label}: "
            self.narrator.say(
                f"{prefix}step {self.latest['step']}/{self.last}  train loss {self.latest['train_loss']:.4f}  "
                f"{validation}lr {self.latest['lr']:.1e}  {self.engine.ledger.seconds:.0f} s"
            )

    def _move(self) -> None:
        if self._bar is not None and self.latest is not None:
            self._show_header()
            self._bar.update(
                self.latest["step"] - self.first,
                loss=self.latest["train_loss"],
                val=self._validation_loss,
                lr=self.latest["lr"],
                tokens=self.engine.ledger.tokens,
            )

    def _show_header(self) -> None:
        if self._bar is not None and self.header is not None:
            self._bar.show(partial(self.header, self.engine.step, self.engine.ledger))
