"""A trainer: training in one run folder from some start up to some step."""

from __future__ import annotations

from ppdgrow.checkpoint import RunFolder
from ppdgrow.config.schema import TrainConfig
from ppdgrow.engine.device import set_rng_state
from ppdgrow.engine.loop import Engine
from ppdgrow.errors import ConfigError, PPDGrowError
from ppdgrow.nn.cost import tokens_per_example, training_flops_per_token
from ppdgrow.nn.model import Model, build_model
from ppdgrow.nn.parts import NAMES
from ppdgrow.optim.optimizer import NamedOptimizer
from ppdgrow.training.context import RunContext
from ppdgrow.training.display import Display, Header
from ppdgrow.training.recorder import Recorder
from ppdgrow.training.resume import Start


class Trainer:
    """A model in training in a run folder. `to` takes it to a later step, as often as wanted.

    Args:
        context: of the run.
        run: where metrics and checkpoints go.
        start: the state to go on from; it must be the newest one that `run` holds, or a new one.
        pair_lr: factor on the rate of the newest blocks, which rises to it over `train.pair_warmup_steps`.
        model: the start's model, if it is built already.
        label: what it is called on the progress display.
        span: first and last step of that display; those of the run if left out.
        header: what stands above the progress bar on a terminal.
    """

    def __init__(
        self,
        context: RunContext,
        run: RunFolder,
        start: Start,
        *,
        pair_lr: float,
        model: Model | None = None,
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
        self._recorder = Recorder(context, run, self.engine, start.shards)
        latest = self._recorder.recent[-1] if self._recorder.recent else None
        first, last = span or (context.first, context.last)
        self._display = Display(context.narrator, self.engine, label, first, last, latest, header)
        self.engine.listeners = [self._recorder, self._display]

    @property
    def step(self) -> int:
        """The step at which the model stands."""
        return self.engine.step

    def save(self) -> None:
        """Leave a checkpoint of the current step, if there is none yet."""
        if self.run.newest_valid() != self.run.checkpoint_path(self.step):
            self._recorder.on_save()

    def to(self, step: int) -> None:
        """Train up to and including `step`, which is not before the current one.

        Raises:
            DivergedError, InterruptedRunError, CheckFailedError: as `Engine.run`.
        """
        try:
            with self._display.shown():
                self.engine.run(step)
        except PPDGrowError:
            self._display.say_last()
            raise


def make_optimizer(model: Model, start: Start, config: TrainConfig) -> NamedOptimizer:
    """The optimizer with the start's state, the newest blocks in a group of their own (see `select_trained`)."""
    optimizer = NamedOptimizer(model, config, select_trained(model, config))
    optimizer.load_moments(start.moments)
    return optimizer


def select_trained(model: Model, config: TrainConfig) -> frozenset[str]:
    """The names of the newest blocks' parameters; where only they are to be trained, the others are frozen.

    Raises:
        ConfigError: only pairs are to be trained and there are none.
    """
    newest = model.architecture.newest_ids
    names = frozenset(name for name, _ in model.named_parameters() if NAMES.block_of(name) in newest)
    if config.only == "pairs":
        if not names:
            raise ConfigError(
                "train.only is pairs, but the model has no grown blocks yet: grow it with ppdgrow grow, or train all"
            )
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name in names)
    return names
