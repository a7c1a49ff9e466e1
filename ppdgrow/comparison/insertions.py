"""What each growth of a run did: the loss right before and after it, and after some updates, and its spikes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from ppdgrow.checkpoint.events import GrowEvent
from ppdgrow.comparison.history import Evaluated, RunHistory
from ppdgrow.comparison.spikes import SpikeCounts, SpikeSteps

UPDATES_AFTER = 1000
BUMP_STEPS = 200


@dataclass(frozen=True)
class Insertion:
    """One growth. Losses are validation losses in nats; None where they were not measured.

    `loss_after_updates` is taken `updates` optimizer steps later, at the evaluated step nearest to 1,000 steps
    and not beyond the next change of the model; the spikes are those of up to 1,000 steps in the same bounds.
    `growth_bump` is the highest validation loss right after the growth and within 200 steps minus the loss before it,
    None without an evaluation within these; `steps_to_recover` the steps until the loss before was reached again,
    interpolated between evaluations: 0 where it never rose, None where it was not reached or there is no bump.
    """

    step: int
    method: str | None
    kinds: tuple[str, ...]
    ids: tuple[str, ...]
    bit_exact: bool | None
    loss_before: float | None
    loss_after: float | None
    loss_after_updates: float | None
    updates: int | None
    gradient_spike: SpikeCounts
    loss_spikes: int
    growth_bump: float | None
    steps_to_recover: float | None

    @property
    def jump(self) -> float | None:
        """Loss after minus loss before."""
        return None if self.loss_before is None or self.loss_after is None else self.loss_after - self.loss_before


def insertions_of(history: RunHistory, spikes: SpikeSteps) -> tuple[Insertion, ...]:
    """Every growth in a run's lineage, oldest first."""
    return tuple(_insertion(event, history, spikes) for event in history.insertions)


def _insertion(event: GrowEvent, history: RunHistory, spikes: SpikeSteps) -> Insertion:
    end = min((step for step in history.changes if step > event.step), default=history.step)
    later = [point for point in history.metrics.evaluations if event.step < point.step <= end]
    target = event.step + UPDATES_AFTER
    nearest = min(later, key=lambda point: abs(point.step - target), default=None)
    return Insertion(
        step=event.step,
        method=event.method,
        kinds=tuple(event.kinds),
        ids=tuple(event.ids),
        bit_exact=event.bit_exact,
        loss_before=event.loss_before,
        loss_after=event.loss_after,
        loss_after_updates=None if nearest is None else nearest.validation.loss,
        updates=None if nearest is None else nearest.step - event.step,
        gradient_spike=spikes.gradients(event.step, min(end, target)),
        loss_spikes=spikes.losses(event.step, min(end, target)),
        growth_bump=_bump(event, later),
        steps_to_recover=_recovery(event, later),
    )


def _rise(event: GrowEvent, later: Sequence[Evaluated]) -> list[tuple[int, float]]:
    """Steps since the growth and loss over the level before it, from the insertion on; nothing if not measured."""
    if event.loss_before is None or event.loss_after is None:
        return []
    points = [(0, event.loss_after), *((point.step - event.step, point.validation.loss) for point in later)]
    return [(steps, loss - event.loss_before) for steps, loss in points]


def _bump(event: GrowEvent, later: Sequence[Evaluated]) -> float | None:
    near = [rise for steps, rise in _rise(event, later) if steps <= BUMP_STEPS]
    return max(near) if len(near) > 1 else None


def _recovery(event: GrowEvent, later: Sequence[Evaluated]) -> float | None:
    if _bump(event, later) is None:
        return None
    rise = _rise(event, later)
    above = [place for place, (steps, height) in enumerate(rise) if height > 0 and steps <= BUMP_STEPS]
    if not above:
        return 0.0
    for (before, high), (after, low) in pairwise(rise[above[0] :]):
        if low <= 0:
            return before + (after - before) * high / (high - low)
    return None
