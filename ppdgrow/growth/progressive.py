"""The climb: the legs of a run and the rounds between them, up to its last step."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import Any

from ppdgrow.checkpoint import RunFolder, append_jsonl, read_checkpoint, read_jsonl
from ppdgrow.checkpoint.events import Event, own_events
from ppdgrow.config.state import Ledger
from ppdgrow.growth.round import Round
from ppdgrow.growth.timeline import decision_lines, ladder, ledger_line
from ppdgrow.nn.model import Model
from ppdgrow.training.growth_schedule import Agenda
from ppdgrow.training.start import Start, start_from
from ppdgrow.training.trainer import Course, Leg


@dataclass(frozen=True)
class Climb:
    """A run with its agenda. `layers` is its depth at the start."""

    course: Course
    run: RunFolder
    agenda: Agenda
    layers: int

    def finish(self, start: Start, model: Model | None, unfinished: dict[str, Any] | None) -> Ledger:
        """Train from `start` to the run's last step, growing where the agenda says so.

        Returns:
            The ledger at the end.
        """
        leg = self._leg(start, unfinished, model)
        while True:
            leg.settle()
            coming = self.agenda.next(leg.step, self._closed(), self._losses())
            if coming.growth is None:  # what a process that died right after its decision left
                shutil.rmtree(self.run.trials_path, ignore_errors=True)
            for index, reason in coming.missed:
                self._pass_over(index, leg.step, reason)
            if coming.growth is None:
                leg.to(coming.step, header=self.header if self.agenda.entries else None)
                if leg.step == self.course.last:
                    return leg.engine.ledger
                continue
            leg.save()
            shown = self.header(leg.step, leg.engine.ledger)
            del leg  # the state is on disk; the arms need the memory
            explain = not any(event.get("event") == "decision" for event in self._own())
            Round(self.course, self.run, coming.growth, pair_lr=self._pair_lr(), header=shown, explain=explain).play()
            newest = self.run.newest_valid()
            assert newest is not None
            leg = self._leg(start_from(read_checkpoint(newest)), None)
            self.course.narrator.say(ledger_line(leg.engine.ledger))

    def _leg(self, start: Start, unfinished: dict[str, Any] | None, model: Model | None = None) -> Leg:
        return Leg(self.course, self.run, start, pair_lr=self._pair_lr(), unfinished=unfinished, model=model)

    def _own(self) -> list[Event]:
        return own_events(read_jsonl(self.run.growth_path)) if self.agenda.entries else []

    def _closed(self) -> frozenset[int]:
        return frozenset(event["growth"] - 1 for event in self._own() if event.get("event") in ("decision", "skip"))

    def _losses(self) -> list[float]:
        """Validation losses since the last decision."""
        if all(entry.at != "plateau" for entry in self.agenda.entries):
            return []
        since = max((event["until"] for event in self._own() if "until" in event), default=self.course.first)
        return [
            line["validation"]["loss"]
            for line in read_jsonl(self.run.metrics_path)
            if line["step"] > since and line.get("validation") is not None
        ]

    def _pair_lr(self) -> float:
        """The rate factor of the newest blocks: what they were accepted with, else the recipe's."""
        kept = [event for event in self._own() if event.get("event") == "decision" and event["decision"] == "accept"]
        return float(kept[-1]["pair_lr"]) if kept else self.course.recipe.train.pair_lr

    def _pass_over(self, index: int, step: int, reason: str) -> None:
        self.course.narrator.say(f"step {step}  growth {index + 1} is not tried: {reason}")
        append_jsonl(
            self.run.growth_path,
            [{"event": "skip", "step": step, "until": step, "growth": index + 1, "reason": reason}],
        )

    def header(self, step: int, ledger: Ledger) -> str:
        """What stands above the progress bar: the ladder, its decisions and the ledger."""
        return "\n".join([*self.picture(step), ledger_line(ledger)]) + "\n"

    def picture(self, step: int) -> list[str]:
        """The ladder up to a step, and its decisions."""
        own = self._own()
        stairs = ladder(
            own,
            layers=self.layers,
            first=self.course.first,
            step=step,
            last=self.course.last,
            columns=self.course.narrator.columns - 8,
        )
        return [*stairs, *decision_lines(own)]
