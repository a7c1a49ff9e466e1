"""Student's interval over a few seeds: its quantile, how often it covers the truth, and what pairing is worth."""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist

import numpy as np
import pytest

from ppdgrow.statistics import Estimate, estimate, student_quantile

TRUE_DIFFERENCE = -0.02  # nats per token
DRAWS = 4000
Draws = np.ndarray  # (DRAWS, N)


@pytest.mark.parametrize(
    ("freedom", "value", "tolerance"),
    [
        (1, 12.7062, 1e-4),
        (2, 4.3027, 1e-4),
        (3, 3.1824, 2e-3),
        (4, 2.7764, 2e-3),
        (10, 2.2281, 2e-3),
        (30, 2.0423, 2e-3),
    ],
)
def test_the_quantile_is_that_of_the_tables(freedom: int, value: float, tolerance: float) -> None:
    assert student_quantile(0.975, freedom) == pytest.approx(value, rel=tolerance)
    assert student_quantile(0.025, freedom) == pytest.approx(-value, rel=tolerance)
    assert student_quantile(0.95, freedom) < 0.95 * value, "control: another probability is another number"


def test_the_quantile_falls_to_that_of_the_normal_distribution() -> None:
    quantiles = [student_quantile(0.975, freedom) for freedom in range(1, 200)]
    assert quantiles == sorted(quantiles, reverse=True)
    assert student_quantile(0.975, 10**6) == pytest.approx(NormalDist().inv_cdf(0.975), rel=1e-5)


def width_of(found: Estimate) -> float:
    assert found.low is not None
    assert found.high is not None
    return found.high - found.low


def test_an_estimate_by_hand() -> None:
    found = Estimate((1.0, 2.0, 6.0))
    half = 4.302653 * math.sqrt(7.0) / math.sqrt(3.0)
    assert [found.number, found.mean, found.deviation] == [3, 3.0, pytest.approx(math.sqrt(7.0))]
    assert [found.low, found.high] == [pytest.approx(3.0 - half, rel=1e-6), pytest.approx(3.0 + half, rel=1e-6)]
    assert found.document() == {
        "mean": 3.0,
        "sd": found.deviation,
        "low": found.low,
        "high": found.high,
        "values": [1.0, 2.0, 6.0],
    }


def test_one_value_has_no_interval_and_two_equal_ones_have_one_of_no_width() -> None:
    assert Estimate((4.0,)).document() == {"mean": 4.0, "sd": None, "low": None, "high": None, "values": [4.0]}
    assert Estimate((4.0, 4.0)).document() == {"mean": 4.0, "sd": 0.0, "low": 4.0, "high": 4.0, "values": [4.0, 4.0]}


def test_a_missing_value_leaves_no_estimate() -> None:
    assert estimate([1.0, 2.0]) == Estimate((1.0, 2.0))
    assert estimate([0.0]) == Estimate((0.0,)), "control: zero is a value"
    assert [estimate(values) for values in ([], [None], [1.0, None])] == [None, None, None]


def losses(seeds: int) -> tuple[Draws, Draws]:
    """Final losses of two arms: the effect of the seed, which both share, is 10 times the noise of each."""
    draw = np.random.default_rng([0, seeds])
    shared = 4.0 + 0.05 * draw.standard_normal((DRAWS, seeds))
    ours, theirs = 0.005 * draw.standard_normal((2, DRAWS, seeds))
    return shared + TRUE_DIFFERENCE + ours, shared + theirs


def estimates(values: Draws) -> list[Estimate]:
    return [Estimate(tuple(row)) for row in values.tolist()]


def coverage(found: list[Estimate], truth: float, shrink: float = 1.0) -> float:
    """Share of the intervals, each `shrink` times as wide, that hold the true mean."""
    return sum(abs(one.mean - truth) <= shrink * width_of(one) / 2 for one in found) / len(found)


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_the_paired_interval_covers_the_true_difference_as_often_as_it_says(seeds: int) -> None:
    ours, theirs = losses(seeds)
    assert coverage(estimates(ours - theirs), TRUE_DIFFERENCE) == pytest.approx(0.95, abs=0.012)


def test_control_the_normal_quantile_covers_too_rarely() -> None:
    ours, theirs = losses(3)
    shrink = 1.96 / student_quantile(0.975, 2)
    assert coverage(estimates(ours - theirs), TRUE_DIFFERENCE, shrink) < 0.85


@pytest.mark.parametrize(
    ("sample", "lowest", "highest"),
    [
        (lambda draw, size: draw.uniform(-1.0, 1.0, size), 0.93, 0.98),
        (lambda draw, size: draw.standard_t(3, size), 0.94, 0.98),
        (lambda draw, size: draw.exponential(1.0, size) - 1.0, 0.86, 0.91),
    ],
    ids=["uniform", "heavy tails", "skewed"],
)
def test_what_five_seeds_cover_where_the_noise_is_not_normal(
    sample: Callable[[np.random.Generator, tuple[int, int]], Draws], lowest: float, highest: float
) -> None:
    draw = np.random.default_rng(0)
    assert lowest <= coverage(estimates(sample(draw, (DRAWS, 5))), 0.0) <= highest


@pytest.mark.parametrize("seeds", [3, 5])
def test_runs_of_different_seeds_held_against_each_other_give_wider_intervals(seeds: int) -> None:
    ours, theirs = losses(seeds)
    paired, unpaired = estimates(ours - theirs), estimates(ours - np.roll(theirs, 1, axis=1))
    assert [one.mean for one in unpaired] == pytest.approx([one.mean for one in paired])
    widths = [np.median([width_of(one) for one in found]) for found in (paired, unpaired)]
    assert widths[1] > 5 * widths[0]


def test_the_interval_of_a_ratio_is_that_of_its_logarithm() -> None:
    values = (0.05, 0.4, 3.2)
    logs = Estimate(tuple(math.log(value) for value in values))
    found = estimate(values, ratio=True)
    assert found is not None
    assert (logs.low, logs.high) != (None, None)
    assert found.mean == pytest.approx(0.4)
    assert [found.low, found.high] == [pytest.approx(math.exp(logs.low or 0)), pytest.approx(math.exp(logs.high or 0))]
    plain = Estimate(values)
    assert plain.low is not None
    assert found.low is not None
    assert plain.low < 0 < found.low, "control: the interval of the values themselves goes below 0"


def test_a_ratio_that_is_not_above_zero_has_no_estimate() -> None:
    assert estimate((1.0, 0.0), ratio=True) is None
    assert estimate((1.0, 0.0)) == Estimate((1.0, 0.0)), "control"
