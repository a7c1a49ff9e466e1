"""The arms of a round: the ungrown twin and each growth that is tried, trained on the same batches in folders of
their own, so that a killed run goes on in the midst of them.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ppdgrow.atomic import new_folder, sweep_leftovers
from ppdgrow.checkpoint import RunFolder, append_jsonl, read_jsonl, read_state
from ppdgrow.checkpoint.events import Event
from ppdgrow.config.state import Cost, Validation
from ppdgrow.engine.evaluate import Evaluation
from ppdgrow.engine.signals import StoppedError
from ppdgrow.errors import DivergedError, InterruptedRunError, InvalidInputError
from ppdgrow.growth.expansion import (
    Expansion,
    Measured,
    check_event,
    describe_check,
    describe_depth,
    describe_expansion,
    expand,
    measure,
    write_expansion,
)
from ppdgrow.surgery import GrowthRequest
from ppdgrow.training.context import Parent, RunContext
from ppdgrow.training.start import resume, start_from
from ppdgrow.training.trainer import Trainer


@dataclass(frozen=True)
class Arm:
    """One way on from the parent, trained for the trial's budget. `evaluation` is None if it diverged."""

    run: RunFolder
    cost: Cost
    evaluation: Evaluation | None
    figures: Validation | None


class Arms:
    """Makes the arms of one round.

    Args:
        context: of the run.
        parent: the run's checkpoint at the step of the round.
        end: the last step of the trials.
        header: shown above the progress bar.
    """

    def __init__(self, context: RunContext, parent: Parent, end: int, header: str) -> None:
        self.context, self.parent, self.end, self.header = context, parent, end, header
        self.folder = parent.run.trials_path
        sweep_leftovers(self.folder)
        for folder in self.folder.iterdir() if self.folder.is_dir() else ():
            if not self._is_whole(RunFolder(folder)):
                shutil.rmtree(folder, ignore_errors=True)

    def _is_whole(self, arm: RunFolder) -> bool:
        """Whether an arm is one of this parent (a run may have had to go back further) and its logs are complete."""
        try:
            events = read_jsonl(arm.growth_path)
            steps = [line.get("step") for line in read_jsonl(arm.metrics_path)]
        except InvalidInputError:
            return False
        last = [event.get("event") for event in events[-2:]]
        own = events[-1:] if last[-1:] == ["twin"] else events[-2:-1] if last == ["grow", "check"] else []
        newest = arm.newest_valid()
        reached = self.parent.step if newest is None else read_state(newest).step
        logged = set(range(self.parent.step + 1, reached + 1)) <= set(steps)
        return bool(own) and own[0].get("parent_sha256") == self.parent.digest and logged

    def twin(self, pair_lr: float) -> Arm:
        """The ungrown model, trained on.

        Raises:
            DivergedError: it diverged, as the run itself would have.
        """
        run = RunFolder(self.folder / "twin")
        if not run.growth_path.is_file():
            event = {"event": "twin", "step": self.parent.step, "parent_sha256": self.parent.digest}
            self.parent.run.check_present()
            with new_folder(run.path) as folder:
                append_jsonl(RunFolder(folder).metrics_path, self.parent.metrics())
                append_jsonl(RunFolder(folder).growth_path, [event])
        with self._interruptible():
            return self._train(run, pair_lr, "twin")

    def grown(self, name: str, request: GrowthRequest, pair_lr: float) -> tuple[Arm, Event, Event]:
        """A growth of the parent, trained on, with its `grow` and `check` events. `name` is such as `1.2`.

        Raises:
            ConfigError: the growth does not fit the model.
            CheckFailedError: it changes the function though it must not.
        """
        run = RunFolder(self.folder / f"trial-{name}")
        label, say = f"trial {name}", self.context.narrator.say
        expansion = expand(self.parent, request)
        say(f"  {label}: {describe_depth(expansion.event)}: {describe_expansion(self.parent, expansion.event)}")
        for note in expansion.notes:
            say(f"    {note}")
        with self._interruptible():
            try:
                self._write(run, expansion)
                grow, check = read_jsonl(run.growth_path)[-2:]
                say(f"  {label}: {describe_check(check)}")
                return self._train(run, pair_lr, label), grow, check
            except DivergedError as error:
                say(f"  {label}: {error}")
                return self._diverged(run, expansion)

    def _write(self, run: RunFolder, expansion: Expansion) -> None:
        """The grown arm's folder, measured, if it is not there yet."""
        if run.growth_path.is_file():
            return
        context = self.context
        measured = measure(self.parent, expansion, context.setting, context.evaluation, stop=context.stop)
        event = expansion.event | {"evaluated": True} | measured.document()
        self.parent.run.check_present()
        write_expansion(self.parent, expansion, run, event, measured)

    def _diverged(self, run: RunFolder, expansion: Expansion) -> tuple[Arm, Event, Event]:
        """An arm whose loss is not finite: while it was trained, or as soon as it was grown."""
        arm = Arm(run, self._cost(run), None, None)
        if run.growth_path.is_file():
            grow, check = read_jsonl(run.growth_path)[-2:]
            return arm, grow, check
        context = self.context
        before = context.setting.evaluate_checkpoint(self.parent.checkpoint, context.evaluation, stop=context.stop)
        measured = Measured(context.setting.figures(before), None, False)
        event = expansion.event | {"evaluated": True} | measured.document()
        return arm, event, check_event(event, measured)

    def _train(self, run: RunFolder, pair_lr: float, label: str) -> Arm:
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
        cost = trainer.engine.ledger.since(parent.checkpoint.state.ledger)
        return Arm(run, cost, evaluation, context.setting.figures(evaluation))

    def _cost(self, run: RunFolder) -> Cost:
        """What an arm that diverged had cost by its last checkpoint, beyond its parent."""
        newest = run.newest_valid()
        return Cost() if newest is None else read_state(newest).ledger.since(self.parent.checkpoint.state.ledger)

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        try:
            yield
        except StoppedError:
            raise InterruptedRunError(
                f"interrupted in a trial from step {self.parent.step}: the same command goes on with it",
                self.context.stop.signal_number or 2,
            ) from None
