"""The learning rate as a pure function of the absolute optimizer step. Nothing here has state.

Sources: cosine, Loshchilov & Hutter 2017 (SGDR); warm-up, stable, decay (WSD), Hu et al. 2024 (MiniCPM).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ppdgrow.config.schema import TrainConfig
from ppdgrow.errors import ConfigError


@dataclass(frozen=True)
class Schedule:
    """Factor on the peak learning rate at steps `start + 1 .. end` (1-based, absolute).

    `initial` is the factor that the run already had at `start`: 0 from scratch, 1 when going on from an
    undecayed run, which then has no second warm-up. `config.warmup_steps` fit.
    """

    config: TrainConfig
    start: int
    end: int
    initial: float

    @property
    def warmup_steps(self) -> int:
        return self.config.warmup_steps if self.initial < 1.0 else 0

    def factor(self, step: int) -> float:
        """The factor at an absolute step, in (0, 1]: no step has rate 0."""
        local, span, warmup = step - self.start, self.end - self.start, self.warmup_steps
        rise = 1.0 if local > warmup else self.initial + (1.0 - self.initial) * local / warmup
        if not self.config.decay:
            return rise
        if self.config.schedule == "wsd":
            decay_steps = round(self.config.decay_fraction * span)
            return rise * min(1.0, (span - local + 1) / (decay_steps + 1))
        progress = max(0.0, (local - warmup) / (span - warmup + 1))
        return rise * 0.5 * (1.0 + math.cos(math.pi * progress))


def make_schedule(config: TrainConfig, *, first: int, last: int, initial: float) -> tuple[Schedule, list[str]]:
    """The schedule of a run over steps `first + 1 .. last`, and notes on what was adjusted.

    Without `horizon` it spans exactly these steps. With a horizon it is the schedule of one long run over
    steps 1 .. horizon, of which this run is a part. `initial` is the factor at `first` that the checkpoint recorded.

    Raises:
        ConfigError: the horizon ends before the run does.
    """
    start, end = first, last
    if config.horizon is not None:
        if config.horizon < last:
            raise ConfigError(
                f"train.horizon is {config.horizon}, but this run ends at step {last}: "
                f"set --horizon to at least {last}, or fewer --steps"
            )
        start, end = 0, config.horizon
        initial = 1.0 if initial >= 1.0 else 0.0  # at the peak already: no second warm-up
    notes = []
    longest = max(1, (end - start) // 10)
    if config.warmup_steps > longest and initial < 1.0:
        notes.append(f"warm-up cut from {config.warmup_steps} to {longest} steps, a tenth of the schedule")
        config = config.model_copy(update={"warmup_steps": longest})
    return Schedule(config, start, end, initial), notes


@dataclass(frozen=True)
class Phase:
    """Steps `first_step .. last_step` of a schedule, `name` being warm-up, peak or decay; rates at both ends."""

    name: str
    first_step: int
    last_step: int
    first_lr: float
    last_lr: float

    def __str__(self) -> str:
        if self.name == "peak":
            return f"{self.last_lr:.1e} to step {self.last_step}"
        return f"{self.name} to {self.last_lr:.1e} at step {self.last_step}"


def phases(schedule: Schedule, lr: float, *, first: int, last: int) -> list[Phase]:
    """What the learning rate does in a run over steps `first + 1 .. last`, from the schedule's own factors.

    Where warm-up and decay overlap, which a decay over the whole run does, all of it counts as decay but the rise.
    """
    start, end, config = schedule.start, schedule.end, schedule.config
    rising = min(end, start + schedule.warmup_steps)
    level = end
    if config.decay:
        level = end - round(config.decay_fraction * (end - start)) if config.schedule == "wsd" else rising
    level = max(level, rising)
    found: list[Phase] = []
    for name, after, until in (("warm-up", start, rising), ("peak", rising, level), ("decay", level, end)):
        begin, until = max(after, first) + 1, min(until, last)
        if begin <= until:
            found.append(Phase(name, begin, until, lr * schedule.factor(begin), lr * schedule.factor(until)))
    return found


def schedule_line(schedule: Schedule, lr: float, *, first: int, last: int) -> str:
    """The learning rate in words, on one line."""
    text = ", ".join(map(str, phases(schedule, lr, first=first, last=last)))
    if (schedule.start, schedule.end) != (first, last):
        text += f" (part of a schedule over steps {schedule.start + 1}-{schedule.end})"
    return text if schedule.config.decay else f"{text}, no decay"
