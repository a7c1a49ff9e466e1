"""A trainer: training in one run folder from some start up to some step, with all that the trainers of a run share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ppdgrow.accounting import tokens_per_example, training_flops_per_token
from ppdgrow.checkpoint import RunFolder
from ppdgrow.config.schema import Recipe, TrainConfig
from ppdgrow.config.state import Environment
from ppdgrow.console import Narrator
from ppdgrow.engine.device import set_rng_state
from ppdgrow.engine.evaluate import BatchLike
from ppdgrow.engine.loop import Engine
from ppdgrow.engine.signals import StopFlag
from ppdgrow.errors import ConfigError, PPDGrowError
from ppdgrow.nn.model import Model, build_model
from ppdgrow.optim.optimizer import NamedOptimizer
from ppdgrow.optim.schedule import Schedule
from ppdgrow.training.context import Setting
from ppdgrow.training.recorder import Header, Recorder
from ppdgrow.training.start import Start, resume


@dataclass(frozen=True)
class RunContext:
    """What all trainers of a run share. `first` is the step before the run's first, `last` its last.

    `reported` are the environments of checkpoints whose differences were said: once, not again for each arm of a round.
    """

    setting: Setting
    schedule: Schedule
    environment: Environment
    evaluation: Sequence[BatchLike]
    stop: StopFlag
    narrator: Narrator
    first: int
    last: int
    assignment: dict[str, str]
    reported: set[Environment] = field(default_factory=set)

    @property
    def recipe(self) -> Recipe:
        """The run's resolved recipe."""
        return self.setting.recipe

    def resume(self, run: RunFolder, start: Start, *, first: int) -> tuple[Start, dict[str, Any] | None]:
        """Where a folder of this run, or of one of its arms from step `first`, goes on (see `start.resume`)."""
        return resume(
            run,
            start,
            first=first,
            last=self.last,
            eval_every=self.recipe.train.eval_every,
            dataset=self.setting.dataset,
            environment=self.environment,
            reported=self.reported,
            narrator=self.narrator,
        )


class Trainer:
    """A model in training in a run folder. `to` takes it to a later step, as often as wanted.

    Args:
        context: of the run.
        run: where metrics and checkpoints go.
        start: the state to go on from; it must be the newest one that `run` holds, or a new one.
        pair_lr: factor on the rate of the newest blocks.
        unfinished: the metrics line of the start's step, if its evaluation is still owed.
        span: first and last step of the trainer, for the progress display; those of the context if left out.
        label: what it is called on the progress display.
        model: the start's model, if it is built already.
    """

    def __init__(
        self,
        context: RunContext,
        run: RunFolder,
        start: Start,
        *,
        pair_lr: float,
        unfinished: dict[str, Any] | None = None,
        span: tuple[int, int] | None = None,
        label: str = "training",
        model: Model | None = None,
    ) -> None:
        self.context, self.run, self.label = context, run, label
        self.first, self.last = span or (context.first, context.last)
        self._unfinished = unfinished
        config, setting = context.recipe.train, context.setting
        model = model or build_model(start.architecture, start.tensors, setting.device)
        optimizer = make_optimizer(model, start, config)
        tokens = config.batch_size * tokens_per_example(start.architecture)
        born = max(block.born for block in start.architecture.blocks)

        def new_factor(step: int) -> float:
            warmup = config.pair_warmup_steps
            return pair_lr * (min(1.0, (step - born) / warmup) if warmup else 1.0)

        self.engine = Engine(
            model,
            optimizer,
            context.schedule,
            new_factor=new_factor,
            batches=setting.dataset.batches(
                "train", batch_size=config.batch_size, seed=config.seed, device=setting.device
            ),
            evaluation=context.evaluation,
            figures=setting.figures,
            config=config,
            device=setting.device,
            precision=setting.precision,
            step=start.step,
            ledger=start.ledger,
            tokens_per_step=tokens,
            flops_per_step=tokens * training_flops_per_token(start.architecture),
            stop=context.stop,
        )
        examples = sum(len(batch.targets) for batch in context.evaluation)
        self._recorder = Recorder(
            run=run,
            architecture=start.architecture,
            environment=context.environment,
            identity=lambda: setting.dataset.identity(examples),
            tokenizer=setting.dataset.tokenizer_json,
            keep=config.keep,
            first=self.first,
            last=self.last,
            label=label,
            assignment=context.assignment,
            narrator=context.narrator,
            engine=self.engine,
            owed=None if unfinished is None else start.step,
        )
        set_rng_state(start.rng, setting.device, config.seed)

    @property
    def step(self) -> int:
        """The step at which the model stands."""
        return self.engine.step

    def finish_evaluation(self) -> None:
        """Make up for an evaluation of the current step that was interrupted, in the step's checkpoint too."""
        if self._unfinished is not None:
            self.to(self.step)
            if self.step != self.context.last:  # there the engine saves by itself
                self._recorder.save()

    def save(self) -> None:
        """Leave a checkpoint of the current step, if there is none yet."""
        if self.run.newest_valid() != self.run.checkpoint_path(self.step):
            self._recorder.save()

    def to(self, step: int, *, header: Header | None = None) -> None:
        """Train up to and including `step`; the run's last step is evaluated and saved.

        Args:
            step: not before the current one.
            header: what stands above the progress bar on a terminal, from the step and the ledger.

        Raises:
            DivergedError, InterruptedRunError, CheckFailedError: as `Engine.run`.
        """
        unfinished, self._unfinished = self._unfinished, None
        try:
            with self.context.narrator.progress(self.last - self.first, self.label) as bar:
                self._recorder.bar, self._recorder.header = bar, header
                self._recorder.show()
                self.engine.run(step, self._recorder, unfinished=unfinished, closing=step == self.context.last)
        except PPDGrowError:
            self._recorder.tell_last()
            raise


def make_optimizer(model: Model, start: Start, config: TrainConfig) -> NamedOptimizer:
    """The optimizer with the start's state, the newest blocks in a group of their own.

    Raises:
        ConfigError: only pairs are to be trained and there are none.
    """
    optimizer = NamedOptimizer(model, config, select_trained(model, config))
    optimizer.load_moments(start.moments)
    return optimizer


def select_trained(model: Model, config: TrainConfig) -> frozenset[str]:
    """The names of the newest blocks' parameters; where only they are to be trained, the others are frozen.

    Raises:
        ConfigError: only pairs are to be trained and there are none.
    """
    newest = model.architecture.newest_ids
    names = frozenset(
        name for name, _ in model.named_parameters() if name.startswith("blocks.") and name.split(".")[1] in newest
    )
    if config.only == "pairs":
        if not names:
            raise ConfigError(
                "train.only is pairs, but the model has no grown blocks yet: grow it with ppdgrow grow, or train all"
            )
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name in names)
    return names
