"""What each growth of a run did: the loss right before and after it, and after some updates, and its spikes."""

from __future__ import annotations

from dataclasses import dataclass

from ppdgrow.experiment.comparison.history import GrowthEvent, RunHistory
from ppdgrow.experiment.comparison.spikes import SpikeCounts, SpikeSteps

UPDATES_AFTER = 1000


@dataclass(frozen=True)
class Insertion:
    """One growth. Losses are validation losses in nats; None where they were not measured.

    `loss_after_updates` is taken `updates` optimizer steps later, at the evaluated step nearest to 1,000 steps
    and not beyond the next change of the model; the spikes are those of up to 1,000 steps in the same bounds.
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

    @property
    def jump(self) -> float | None:
        """Loss after minus loss before."""
        return None if self.loss_before is None or self.loss_after is None else self.loss_after - self.loss_before


def insertions_of(history: RunHistory, spikes: SpikeSteps) -> tuple[Insertion, ...]:
    """Every growth in a run's lineage, oldest first."""
    return tuple(_insertion(event, history, spikes) for event in history.insertions)


def _insertion(event: GrowthEvent, history: RunHistory, spikes: SpikeSteps) -> Insertion:
    end = min((step for step in history.changes if step > event.step), default=history.step)
    later = [point for point in history.metrics.evaluations if event.step < point.step <= end]
    target = event.step + UPDATES_AFTER
    nearest = min(later, key=lambda point: abs(point.step - target), default=None)
    return Insertion(
        step=event.step,
        method=event.method,
        kinds=event.kinds,
        ids=event.ids,
        bit_exact=event.bit_exact,
        loss_before=event.loss_before,
        loss_after=event.loss_after,
        loss_after_updates=None if nearest is None else nearest.validation.loss,
        updates=None if nearest is None else nearest.step - event.step,
        gradient_spike=spikes.gradients(event.step, min(end, target)),
        loss_spikes=spikes.losses(event.step, min(end, target)),
    )
