"""The progressive: the trainers of a run and the rounds between them, up to its last step."""

from __future__ import annotations

import shutil
from dataclasses import dataclass

from ppdgrow.checkpoint import RunFolder, append_jsonl, read_checkpoint, read_jsonl
from ppdgrow.checkpoint.events import Event, own_events
from ppdgrow.config.state import Ledger
from ppdgrow.growth.round import Round
from ppdgrow.growth.timeline import decision_lines, ledger_line, timeline
from ppdgrow.nn.model import Model
from ppdgrow.training.context import RunContext
from ppdgrow.training.growth_schedule import GrowthSchedule
from ppdgrow.training.start import Start, start_from
from ppdgrow.training.trainer import Trainer


@dataclass(frozen=True)
class ProgressiveRun:
    """A run with its growth_schedule. `layers` is its depth at the start."""

    context: RunContext
    run: RunFolder
    growth_schedule: GrowthSchedule
    layers: int

    def finish(self, start: Start, model: Model | None) -> Ledger:
        """Train from `start` to the run's last step, growing where the growth_schedule says so.

        Returns:
            The ledger at the end.
        """
        trainer = self._trainer(start, model)
        trainer.to(trainer.step)  # makes up for an evaluation that was interrupted, and that may decide on a growth
        while True:
            coming = self.growth_schedule.next(trainer.step, self._closed(), self._losses())
            if coming.growth is None:  # what a process that died right after its decision left
                shutil.rmtree(self.run.trials_path, ignore_errors=True)
            for index, reason in coming.missed:
                self._pass_over(index, trainer.step, reason)
            if coming.growth is None:
                trainer.to(coming.step)
                if trainer.step == self.context.last:
                    return trainer.engine.ledger
                continue
            trainer.save()
            shown = self.header(trainer.step, trainer.engine.ledger)
            del trainer  # the state is on disk; the arms need the memory
            explain = not any(event.get("event") == "decision" for event in self._own())
            Round(self.context, self.run, coming.growth, pair_lr=self._pair_lr(), header=shown, explain=explain).play()
            newest = self.run.newest_valid()
            assert newest is not None
            trainer = self._trainer(start_from(read_checkpoint(newest)))
            self.context.narrator.say(ledger_line(trainer.engine.ledger))

    def _trainer(self, start: Start, model: Model | None = None) -> Trainer:
        header = self.header if self.growth_schedule.entries else None
        return Trainer(self.context, self.run, start, pair_lr=self._pair_lr(), model=model, header=header)

    def _own(self) -> list[Event]:
        return own_events(read_jsonl(self.run.growth_path)) if self.growth_schedule.entries else []

    def _closed(self) -> frozenset[int]:
        return frozenset(event["growth"] - 1 for event in self._own() if event.get("event") in ("decision", "skip"))

    def _losses(self) -> list[float]:
        """Validation losses since the last decision."""
        if all(entry.at != "plateau" for entry in self.growth_schedule.entries):
            return []
        since = max((event["until"] for event in self._own() if "until" in event), default=self.context.first)
        return [
            line["validation"]["loss"]
            for line in read_jsonl(self.run.metrics_path)
            if line["step"] > since and line.get("validation") is not None
        ]

    def _pair_lr(self) -> float:
        """The rate factor of the newest blocks: what they were accepted with, else the recipe's."""
        kept = [event for event in self._own() if event.get("event") == "decision" and event["decision"] == "accept"]
        return float(kept[-1]["pair_lr"]) if kept else self.context.recipe.train.pair_lr

    def _pass_over(self, index: int, step: int, reason: str) -> None:
        self.context.narrator.say(f"step {step}  growth {index + 1} is not tried: {reason}")
        append_jsonl(
            self.run.growth_path,
            [{"event": "skip", "step": step, "until": step, "growth": index + 1, "reason": reason}],
        )

    def header(self, step: int, ledger: Ledger) -> str:
        """What stands above the progress bar: the timeline, its decisions and the ledger."""
        return "\n".join([*self.picture(step), ledger_line(ledger)]) + "\n"

    def picture(self, step: int) -> list[str]:
        """The timeline up to a step, and its decisions."""
        own = self._own()
        stairs = timeline(
            own,
            layers=self.layers,
            first=self.context.first,
            step=step,
            last=self.context.last,
            columns=self.context.narrator.columns - 8,
        )
        return [*stairs, *decision_lines(own)]
