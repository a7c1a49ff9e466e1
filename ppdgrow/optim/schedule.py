"""The learning rate as a pure function of the absolute optimizer step. Nothing here has state.

Sources: cosine, Loshchilov & Hutter 2017 (SGDR); warm-up, stable, decay (WSD), Hu et al. 2024 (MiniCPM).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from ppdgrow.config.schema import TrainConfig
from ppdgrow.errors import ConfigError


@dataclass(frozen=True)
class Schedule:
    """Factor on the peak learning rate at steps `start + 1 .. end` (1-based, absolute).

    `initial` is the factor that the run already had at `start`: 0 from scratch, 1 when going on from an
    undecayed run, which then has no second warm-up.
    """

    kind: Literal["wsd", "cosine"]
    start: int
    end: int
    warmup_steps: int
    decay: bool
    decay_fraction: float
    initial: float = 0.0

    def factor(self, step: int) -> float:
        """The factor at an absolute step, in (0, 1]: no step has rate 0."""
        local, span = step - self.start, self.end - self.start
        warmup = self.warmup_steps if self.initial < 1.0 else 0
        rise = 1.0 if local > warmup else self.initial + (1.0 - self.initial) * local / warmup
        if not self.decay:
            return rise
        if self.kind == "wsd":
            decay_steps = round(self.decay_fraction * span)
            return rise * min(1.0, (span - local + 1) / (decay_steps + 1))
        progress = max(0.0, (local - warmup) / (span - warmup + 1))
        return rise * 0.5 * (1.0 + math.cos(math.pi * progress))


def make_schedule(config: TrainConfig, *, first: int, last: int, initial: float) -> tuple[Schedule, list[str]]:
    """The schedule of a run over steps `first + 1 .. last`, and notes on what was adjusted.

    Without `horizon` it spans exactly these steps. With a horizon it is the schedule of one long run over
    steps 1 .. horizon, of which this run is a part.

    Args:
        config: the run's `train` section.
        first: steps done before this run.
        last: the run's last step.
        initial: the schedule's factor at `first`, as the checkpoint recorded it (0 from scratch).

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
    warmup = config.warmup_steps
    longest = max(1, (end - start) // 10)
    if warmup > longest and initial < 1.0:
        notes.append(f"warm-up cut from {warmup} to {longest} steps, a tenth of the schedule")
        warmup = longest
    schedule = Schedule(
        kind=config.schedule,
        start=start,
        end=end,
        warmup_steps=warmup,
        decay=config.decay,
        decay_fraction=config.decay_fraction,
        initial=initial,
    )
    return schedule, notes
