"""Spikes in a series of steps, each judged against the steps just before it.

Loss spike: above median + 6 * 1.4826 * MAD of the previous 100 steps. Gradient spike: a norm before clipping
above 5 times the median of the previous 100. A step with fewer than 20 steps before it is not judged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from ppdgrow.comparison.history import FloatArray, IntArray, Metrics

WINDOW = 100
FEWEST = 20
GRADIENT_FACTOR = 5.0
LOSS_FACTOR = 6.0
MAD_TO_SIGMA = 1.4826  # of a normal distribution
_BLOCK = 8192


@dataclass(frozen=True)
class SpikeCounts:
    """Gradient spikes of old and new parameters; None where a group has no norms."""

    old: int | None
    new: int | None


@dataclass(frozen=True)
class SpikeSteps:
    """Steps at which a run spiked; None for a group of parameters without norms."""

    old: IntArray | None
    new: IntArray | None
    loss: IntArray

    def gradients(self, after: int, until: int) -> SpikeCounts:
        """Gradient spikes in steps `after + 1 .. until`."""
        return SpikeCounts(*(None if s is None else _count(s, after, until) for s in (self.old, self.new)))

    def losses(self, after: int, until: int) -> int:
        """Loss spikes in steps `after + 1 .. until`."""
        return _count(self.loss, after, until)


def find_spikes(metrics: Metrics, changes: Sequence[int]) -> SpikeSteps:
    """All spikes of a run.

    Args:
        metrics: of the run.
        changes: steps at which blocks came or went: after each, the new group is another one, and its norms
            are compared with each other only.
    """
    loss = _spiking_steps(metrics.steps, metrics.train_loss, loss_thresholds, ())
    return SpikeSteps(
        old=_spiking_steps(metrics.steps, metrics.grad_norm, gradient_thresholds, ()),
        new=_spiking_steps(metrics.steps, metrics.grad_norm_new, gradient_thresholds, changes),
        loss=np.array([], dtype=np.int64) if loss is None else loss,
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


def _count(steps: IntArray, after: int, until: int) -> int:
    return int(np.count_nonzero((steps > after) & (steps <= until)))
