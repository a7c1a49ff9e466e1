"""A run with a growth schedule: trainers, and the trials between them, up to its last step."""

from __future__ import annotations

import gc
import shutil
from dataclasses import dataclass, field

from ppdgrow.checkpoint import RunFolder, read_checkpoint, read_jsonl
from ppdgrow.checkpoint.events import DecisionEvent, Event, SkipEvent, append_events, read_events
from ppdgrow.checkpoint.lineage import own_events
from ppdgrow.config.state import Ledger
from ppdgrow.growth.timeline import decision_lines, ledger_line, timeline
from ppdgrow.growth.trial_round import Round
from ppdgrow.training.context import RunContext
from ppdgrow.training.growth_schedule import GrowthSchedule
from ppdgrow.training.models import AnyModel
from ppdgrow.training.resume import Start, start_from
from ppdgrow.training.trainer import Trainer


@dataclass
class ProgressiveRun:
    """A run that may grow. `layers` is its depth at the start."""

    context: RunContext
    run: RunFolder
    growth_schedule: GrowthSchedule
    layers: int
    _begun: Trainer | None = field(default=None, init=False)

    def begin(self, start: Start, model: AnyModel | None) -> None:
        """Take `start` up. A caller that lets go of it and its model has a growth free their memory."""
        self._begun = self._trainer(start, model)

    def finish(self) -> None:
        """Train from where it was begun to the run's last step, growing where the schedule says so."""
        trainer, self._begun = self._begun, None
        assert trainer is not None, "begin comes first"
        trainer.to(trainer.step)  # makes up for an evaluation that was interrupted, and that may decide on a growth
        while True:
            coming = self.growth_schedule.next(trainer.step, self._closed_entries(), self._losses())
            for index, reason in coming.missed:
                self._skip(index, trainer.step, reason)
            if coming.growth is None:
                shutil.rmtree(self.run.trials_path, ignore_errors=True)  # of a process that died after its decision
                trainer.to(coming.step)
                if trainer.step == self.context.last:
                    return
                continue
            trainer.save()
            header = self.header(trainer.step, trainer.engine.ledger)
            del trainer  # the state is on disk; the trials need the memory
            gc.collect()  # torch keeps the frames in which it made its first optimizer, with the model, in a circle
            explain = not any(isinstance(event, DecisionEvent) for event in self._own_events())
            Round(
                self.context, self.run, coming.growth, pair_lr=self._pair_lr(), header=header, explain=explain
            ).decide()
            newest = self.run.newest_valid()
            assert newest is not None
            trainer = self._trainer(start_from(read_checkpoint(newest)))
            self.context.narrator.say(ledger_line(trainer.engine.ledger))

    def _trainer(self, start: Start, model: AnyModel | None = None) -> Trainer:
        header = self.header if self.growth_schedule.entries else None
        return Trainer(self.context, self.run, start, pair_lr=self._pair_lr(), model=model, header=header)

    def _own_events(self) -> list[Event]:
        return own_events(read_events(self.run.growth_path)) if self.growth_schedule.entries else []

    def _closed_entries(self) -> frozenset[int]:
        events = (event for event in self._own_events() if isinstance(event, DecisionEvent | SkipEvent))
        return frozenset(event.growth - 1 for event in events if event.growth is not None)

    def _losses(self) -> list[float]:
        """Validation losses since the last decision."""
        if all(entry.step is not None for entry in self.growth_schedule.entries):
            return []
        decided = [event.until for event in self._own_events() if event.until is not None]
        since = max(decided, default=self.context.first)
        return [
            line["validation"]["loss"]
            for line in read_jsonl(self.run.metrics_path)
            if line["step"] > since and line.get("validation") is not None
        ]

    def _pair_lr(self) -> float:
        """The rate factor of the newest blocks: what they were accepted with, else the recipe's."""
        decisions = (event for event in self._own_events() if isinstance(event, DecisionEvent) and event.is_kept)
        kept = [event.pair_lr for event in decisions if event.pair_lr is not None]
        return kept[-1] if kept else self.context.recipe.train.pair_lr

    def _skip(self, index: int, step: int, reason: str) -> None:
        self.context.narrator.say(f"step {step}  growth {index + 1} is not tried: {reason}")
        append_events(self.run.growth_path, [SkipEvent(step=step, until=step, growth=index + 1, reason=reason)])

    def header(self, step: int, ledger: Ledger) -> str:
        """What stands above the progress bar: the timeline, its decisions and the ledger."""
        return "\n".join([*self.timeline(step), ledger_line(ledger)]) + "\n"

    def timeline(self, step: int) -> list[str]:
        """The timeline up to a step, and its decisions."""
        own = self._own_events()
        depths = timeline(
            own,
            layers=self.layers,
            first=self.context.first,
            step=step,
            last=self.context.last,
            columns=self.context.narrator.columns - 8,
        )
        return [*depths, *decision_lines(own)]
