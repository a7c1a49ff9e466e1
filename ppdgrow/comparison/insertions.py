"""Spikes of a run, and what each of its growths did: the loss right before and after it, and some updates later.

A spike is a step judged against the steps just before it. Loss spike: above median + 6 * 1.4826 * MAD of the previous
100 steps. Gradient spike: a norm before clipping above 5 times the median of the previous 100. A step with fewer than
20 steps before it is not judged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from ppdgrow.checkpoint.events import GrowEvent
from ppdgrow.comparison.history import Evaluated, FloatArray, IntArray, Metrics, RunHistory

WINDOW = 100
FEWEST = 20
GRADIENT_FACTOR = 5.0
LOSS_FACTOR = 6.0
MAD_TO_SIGMA = 1.4826  # of a normal distribution
UPDATES_AFTER = 1000
BUMP_STEPS = 200
_BLOCK = 8192


@dataclass(frozen=True)
class SpikeCounts:
    """Gradient spikes of old and new parameters; None where a group has no norms."""

    old: int | None
    new: int | None


@dataclass(frozen=True)
class SpikeSteps:
    """Steps at which the gradients of old and of new parameters, and the loss, spiked; None without such figures."""

    old: IntArray | None
    new: IntArray | None
    loss: IntArray | None

    def gradients(self, after: int, until: int) -> SpikeCounts:
        """Gradient spikes in steps `after + 1 .. until`."""
        return SpikeCounts(_count(self.old, after, until), _count(self.new, after, until))

    def losses(self, after: int, until: int) -> int:
        """Loss spikes in steps `after + 1 .. until`."""
        return _count(self.loss, after, until) or 0


def _count(steps: IntArray | None, after: int, until: int) -> int | None:
    return None if steps is None else int(np.count_nonzero((steps > after) & (steps <= until)))


def find_spikes(metrics: Metrics, changes: Sequence[int]) -> SpikeSteps:
    """All spikes of a run; `changes` are steps at which blocks came or went.

    After each of these the new group is another one, and its norms are compared with each other only.
    """
    return SpikeSteps(
        old=_spiking_steps(metrics.steps, metrics.grad_norm, gradient_thresholds, ()),
        new=_spiking_steps(metrics.steps, metrics.grad_norm_new, gradient_thresholds, changes),
        loss=_spiking_steps(metrics.steps, metrics.train_loss, loss_thresholds, ()),
    )


def gradient_thresholds(norms: FloatArray) -> FloatArray:
    """The norm above which each step is a spike, `(S,)` to `(S,)`; infinite where it is not judged."""
    return _thresholds(norms, lambda windows: GRADIENT_FACTOR * np.median(windows, axis=1))


def loss_thresholds(losses: FloatArray) -> FloatArray:
    """The loss above which each step is a spike, `(S,)` to `(S,)`; infinite where it is not judged."""

    def bound(windows: FloatArray) -> FloatArray:
        median = np.median(windows, axis=1)
        deviation = np.median(np.abs(windows - median[:, None]), axis=1)
        return np.asarray(median + LOSS_FACTOR * MAD_TO_SIGMA * deviation)

    return _thresholds(losses, bound)


def _thresholds(values: FloatArray, bound: Callable[[FloatArray], FloatArray]) -> FloatArray:
    """`bound` of the up to WINDOW values before each one; it maps windows `(N, W)` to `(N,)`."""
    result = np.full(len(values), np.inf)
    for index in range(FEWEST, min(WINDOW, len(values))):
        result[index] = bound(values[None, :index])[0]
    if len(values) > WINDOW:
        windows = sliding_window_view(values, WINDOW)[:-1]
        for first in range(0, len(windows), _BLOCK):  # np.median copies: keep that copy small
            block = windows[first : first + _BLOCK]
            result[WINDOW + first : WINDOW + first + len(block)] = bound(block)
    return result


def _spiking_steps(
    steps: IntArray, values: FloatArray, thresholds: Callable[[FloatArray], FloatArray], restarts: Sequence[int]
) -> IntArray | None:
    present = ~np.isnan(values)
    if not present.any():
        return None
    steps, values = steps[present], values[present]
    cuts = np.searchsorted(steps, np.array(sorted(restarts), dtype=np.int64), side="right")
    judged = np.concatenate([part > thresholds(part) for part in np.split(values, cuts)])
    return steps[judged]


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
        """Loss after minus loss before; where only the outputs were compared, 0 if they were identical."""
        if self.loss_before is None or self.loss_after is None:
            return 0.0 if self.bit_exact else None
        return self.loss_after - self.loss_before


def insertions_of(history: RunHistory, spikes: SpikeSteps) -> tuple[Insertion, ...]:
    """Every growth in a run's lineage, oldest first."""
    return tuple(_insertion(event, history, spikes) for event in history.insertions)


def _insertion(event: GrowEvent, history: RunHistory, spikes: SpikeSteps) -> Insertion:
    end = min((step for step in history.changes if step > event.step), default=history.step)
    later = [point for point in history.metrics.evaluations if event.step < point.step <= end]
    target = event.step + UPDATES_AFTER
    nearest = min(later, key=lambda point: abs(point.step - target), default=None)
    bump, recovery = _bump(event, later)
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
        growth_bump=bump,
        steps_to_recover=recovery,
    )


def _bump(event: GrowEvent, later: Sequence[Evaluated]) -> tuple[float | None, float | None]:
    """The growth bump, and the steps to recover from it."""
    if event.loss_before is None or event.loss_after is None:
        return None, None
    points = [(0, event.loss_after), *((point.step - event.step, point.validation.loss) for point in later)]
    rise = [(steps, loss - event.loss_before) for steps, loss in points]
    near = [height for steps, height in rise if steps <= BUMP_STEPS]
    if len(near) < 2:
        return None, None
    above = next((place for place, height in enumerate(near) if height > 0), None)
    if above is None:
        return max(near), 0.0
    for (before, high), (after, low) in pairwise(rise[above:]):
        if low <= 0:
            return max(near), before + (after - before) * high / (high - low)
    return max(near), None
