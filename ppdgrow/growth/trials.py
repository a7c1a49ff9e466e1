"""The runs of a trial: the ungrown twin and each growth that is tried, trained on the same batches in folders of
their own, so that a killed run goes on in the midst of them.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ppdgrow.atomic import new_folder, sweep_leftovers
from ppdgrow.checkpoint import RunFolder, append_jsonl, read_state
from ppdgrow.checkpoint.events import CheckEvent, GrowEvent, TwinEvent, append_events, read_events
from ppdgrow.config.state import Cost, Ledger, Validation
from ppdgrow.engine.evaluate import Evaluation
from ppdgrow.engine.stop_flag import StoppedError
from ppdgrow.errors import DivergedError, InterruptedRunError, InvalidInputError
from ppdgrow.growth.expansion import Expansion, expand, measure, write_expansion
from ppdgrow.surgery import GrowthRequest
from ppdgrow.training.context import Parent, RunContext
from ppdgrow.training.resume import lost_lines, resume, start_from
from ppdgrow.training.trainer import Trainer


@dataclass(frozen=True)
class TrialRun:
    """One way on from the parent, trained for the trial's budget; if it diverged, the `error` and no figures."""

    run: RunFolder
    cost: Cost
    evaluation: Evaluation | None = None
    figures: Validation | None = None
    error: DivergedError | None = None

    @property
    def loss(self) -> float | None:
        """Validation loss at its end."""
        return None if self.figures is None else self.figures.loss


class TrialRuns:
    """Makes the runs of one trial, from the run's checkpoint `parent` up to the step `end`."""

    def __init__(self, context: RunContext, parent: Parent, end: int, header: str) -> None:
        self.context, self.parent, self.end, self.header = context, parent, end, header
        self.folder = parent.run.trials_path
        sweep_leftovers(self.folder)
        for folder in self.folder.iterdir() if self.folder.is_dir() else ():
            if not self._is_whole(RunFolder(folder)):
                shutil.rmtree(folder, ignore_errors=True)

    def _is_whole(self, run: RunFolder) -> bool:
        """Whether it is of this parent (the run may have had to go back further) and its logs are complete."""
        first, newest = self.parent.step, run.newest_valid()
        state = None if newest is None else read_state(newest)
        step, evaluated = (first, True) if state is None else (state.step, state.validation is not None)
        train, last = self.context.recipe.train, self.context.last
        try:
            if lost_lines(run, first, step, train, last, evaluated=evaluated):
                return False
            match read_events(run.growth_path)[-2:]:
                case [*_, TwinEvent() as made] | [GrowEvent() as made, CheckEvent()]:
                    return made.parent_sha256 == self.parent.digest
        except InvalidInputError:
            pass
        return False

    def train_twin(self, pair_lr: float) -> TrialRun:
        """The ungrown model, trained on; a `DivergedError` if it diverged, as the run itself would have."""
        run = RunFolder(self.folder / "twin")
        if not run.growth_path.is_file():
            self.parent.run.check_present()
            with new_folder(run.path) as folder:
                append_jsonl(RunFolder(folder).metrics_path, self.parent.metrics())
                event = TwinEvent(step=self.parent.step, parent_sha256=self.parent.digest)
                append_events(RunFolder(folder).growth_path, [event])
        with self._interruptible():
            return self._train(run, pair_lr, "twin")

    def train_grown(self, name: str, request: GrowthRequest, pair_lr: float) -> tuple[TrialRun, GrowEvent, CheckEvent]:
        """A growth of the parent, trained on, with the events of it. `name` is such as `1.2`.

        Raises:
            ConfigError: the growth does not fit the model.
            CheckFailedError: it changes the function though it must not.
        """
        run = RunFolder(self.folder / f"trial-{name}")
        label, context, say = f"trial {name}", self.context, self.context.narrator.say
        expansion = expand(self.parent, request)
        say(f"  {label}: {expansion.event.depths} layers: {expansion}")
        for note in expansion.notes:
            say(f"    {note}")
        with self._interruptible():
            try:
                if not run.growth_path.is_file():
                    measured = measure(expansion, context.setting, context.evaluation, stop=context.stop)
                    self.parent.run.check_present()
                    write_expansion(measured, run)
                grow, check = _recorded(run)
                say(f"  {label}: {check.outcome}")
                return self._train(run, pair_lr, label), grow, check
            except DivergedError as error:
                say(f"  {label}: {error}")
                return self._diverged(run, expansion, error)

    def _diverged(
        self, run: RunFolder, expansion: Expansion, error: DivergedError
    ) -> tuple[TrialRun, GrowEvent, CheckEvent]:
        """Its loss is not finite: while it was trained, or as soon as it was grown."""
        context = self.context
        if run.growth_path.is_file():
            newest = run.newest_valid()
            cost = Cost() if newest is None else self._cost(read_state(newest).ledger)
            return TrialRun(run, cost, error=error), *_recorded(run)
        before = context.setting.evaluate_checkpoint(self.parent.checkpoint, context.evaluation, stop=context.stop)
        measured = expansion.measured(context.setting.figures(before), None, bit_exact=False)
        assert isinstance(measured.event, GrowEvent)
        return TrialRun(run, Cost(), error=error), measured.event, measured.check

    def _train(self, run: RunFolder, pair_lr: float, label: str) -> TrialRun:
        context, parent = self.context, self.parent
        trainer = Trainer(
            context,
            run,
            resume(context, run, start_from(parent.checkpoint)),
            pair_lr=pair_lr,
            label=label,
            span=(parent.step, self.end),
            header=lambda step, ledger: self.header,
        )
        trainer.to(self.end)
        trainer.save()
        evaluation = context.setting.evaluate(trainer.engine.model, context.evaluation, stop=context.stop)
        return TrialRun(run, self._cost(trainer.engine.ledger), evaluation, context.setting.figures(evaluation))

    def _cost(self, ledger: Ledger) -> Cost:
        return ledger.since(self.parent.checkpoint.state.ledger)

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        try:
            yield
        except StoppedError:
            raise InterruptedRunError(
                f"interrupted in a trial from step {self.parent.step}: the same command goes on with it",
                self.context.stop.signal_number or 2,
            ) from None


def _recorded(run: RunFolder) -> tuple[GrowEvent, CheckEvent]:
    """What a grown model's folder says of its growth, on its last lines."""
    grow, check = read_events(run.growth_path)[-2:]
    assert isinstance(grow, GrowEvent)
    assert isinstance(check, CheckEvent)
    return grow, check
