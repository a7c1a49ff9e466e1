"""Spikes as FIELD.md defines them, against cases worked out by hand and against a plain loop."""

from __future__ import annotations

from statistics import median

import numpy as np
import pytest

from ppdgrow.comparison.history import FloatArray, Metrics
from ppdgrow.comparison.insertions import SpikeCounts, find_spikes, gradient_thresholds, loss_thresholds


def series(**columns: list[float] | FloatArray) -> Metrics:
    length = len(next(iter(columns.values())))
    filled = {
        name: np.asarray(columns.get(name, np.full(length, np.nan)), dtype=np.float64)
        for name in ("train_loss", "grad_norm", "grad_norm_new")
    }
    return Metrics(steps=np.arange(1, length + 1), evaluations=(), **filled)


@pytest.mark.parametrize(("norm", "spikes"), [(5.0, 0), (5.001, 1)])
def test_a_gradient_spike_is_above_five_times_the_median(norm: float, spikes: int) -> None:
    found = find_spikes(series(grad_norm=[1.0] * 30 + [norm]), ())
    assert found.gradients(0, 31) == SpikeCounts(old=spikes, new=None)


@pytest.mark.parametrize(("before", "spikes"), [(19, 0), (20, 1)])
def test_a_step_with_fewer_than_twenty_before_it_is_not_judged(before: int, spikes: int) -> None:
    found = find_spikes(series(grad_norm=[1.0] * before + [50.0], train_loss=[1.0] * before + [50.0]), ())
    assert found.gradients(0, 100).old == spikes
    assert found.losses(0, 100) == spikes


def test_the_window_is_the_hundred_steps_before() -> None:
    # 60 of the 100 steps before step 161 have norm 10, so its median is 10; over all steps before it is 1.
    norms = [1.0] * 100 + [10.0] * 60 + [20.0]
    assert gradient_thresholds(np.array(norms))[-1] == 50.0
    assert 5 * median(norms[:-1]) == 5.0  # control: a window without end


def test_a_loss_spike_by_hand() -> None:
    # Previous 20 losses: ten 1.0 and ten 1.2. Median 1.1, every deviation 0.1: bound 1.1 + 6 * 1.4826 * 0.1.
    calm = [1.0, 1.2] * 10
    bound = 1.1 + 6 * 1.4826 * 0.1
    assert loss_thresholds(np.array([*calm, 9.0]))[-1] == pytest.approx(bound)
    assert find_spikes(series(train_loss=[*calm, bound - 1e-6]), ()).losses(0, 21) == 0
    assert find_spikes(series(train_loss=[*calm, bound + 1e-6]), ()).losses(0, 21) == 1


def test_thresholds_agree_with_a_plain_loop() -> None:
    values = np.random.default_rng(0).lognormal(size=437)
    for index in (20, 57, 99, 100, 101, 300, 436):
        window = values[max(0, index - 100) : index]
        middle = median(window)
        deviation = median(abs(value - middle) for value in window)
        assert gradient_thresholds(values)[index] == pytest.approx(5 * middle, rel=1e-12)
        assert loss_thresholds(values)[index] == pytest.approx(middle + 6 * 1.4826 * deviation, rel=1e-12)


def test_blocks_of_a_long_series_join_without_a_seam() -> None:
    values = np.random.default_rng(1).lognormal(size=20_000)
    whole = gradient_thresholds(values)
    for start in (8_000, 8_200, 16_300):
        np.testing.assert_array_equal(whole[start + 100 : start + 400], gradient_thresholds(values[start:])[100:400])


def test_new_parameters_are_judged_anew_after_each_insertion() -> None:
    norms = [float("nan")] * 30 + [1.0] * 40 + [10.0] * 40
    metrics = series(grad_norm=[1.0] * 110, grad_norm_new=norms)
    assert find_spikes(metrics, (30, 70)).gradients(0, 110) == SpikeCounts(old=0, new=0)
    # Control: without the second restart the other group's first steps are held against the first group's.
    control = find_spikes(metrics, (30,)).gradients(0, 110).new
    assert control is not None
    assert control > 0


def test_old_and_new_are_counted_apart_and_within_bounds() -> None:
    old, new = [1.0] * 100, [1.0] * 100
    old[49], new[59], new[79] = 9.0, 9.0, 9.0
    found = find_spikes(series(grad_norm=old, grad_norm_new=new), (0,))
    assert found.gradients(0, 100) == SpikeCounts(old=1, new=2)
    assert found.gradients(50, 79) == SpikeCounts(old=0, new=1)
    assert found.gradients(49, 50) == SpikeCounts(old=1, new=0)
