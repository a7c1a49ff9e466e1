"""The front of ungrown runs: the hull, what a budget buys, and what a loss costs."""

from __future__ import annotations

import math

import pytest

from ppdgrow.comparison.front import Front

HULL = [(1e12, 2.0), (4e12, 1.6), (16e12, 1.4)]


def test_runs_above_the_hull_do_not_count() -> None:
    above = [(2e12, 1.9), (4e12, 1.7), (1e12, 2.5), (8e12, 1.55)]
    assert Front.of([*above, *HULL]) == Front.of(HULL) == Front(tuple(HULL), 16e12)
    assert Front.of([*HULL, (2e12, 1.7)]) != Front.of(HULL), "control: one below it does"


def test_a_budget_buys_the_loss_between_its_neighbours_over_the_logarithm_of_flops() -> None:
    front = Front.of(HULL)
    assert [front.loss_at(flops) for flops, _ in HULL] == [pytest.approx(loss) for _, loss in HULL]
    assert front.loss_at(2e12) == pytest.approx(1.8)
    assert front.loss_at(8e12) == pytest.approx(1.5)


def test_beyond_the_best_run_its_loss_is_bought_as_far_as_larger_budgets_were_tried() -> None:
    front = Front.of([*HULL, (64e12, 1.9)])
    assert front.points == tuple(HULL)
    assert front.loss_at(32e12) == 1.4
    assert Front.of(HULL).loss_at(32e12) is None, "control: not beyond what was tried"


@pytest.mark.parametrize(("flops", "inside"), [(0.95e12, True), (0.85e12, False), (16.1e12, True), (16.3e12, False)])
def test_nothing_is_said_outside_the_budgets_that_were_tried_by_more_than_a_step(flops: float, inside: bool) -> None:
    assert (Front.of(HULL, step=0.1e12).loss_at(flops) is not None) == inside
    assert Front.of(HULL).loss_at(flops) is None, "control"


def test_what_a_loss_costs_is_the_inverse() -> None:
    front = Front.of(HULL)
    for flops in (1e12, 1.7e12, 4e12, 9e12, 16e12):
        loss = front.loss_at(flops)
        assert loss is not None
        assert front.flops_for(loss) == pytest.approx(flops)
    assert front.flops_for(1.39) is None
    assert front.flops_for(2.01) is None


def test_one_run_is_a_front_at_its_own_cost() -> None:
    front = Front.of([(3e12, 1.7)])
    assert front.loss_at(3e12) == 1.7
    assert front.flops_for(1.7) == pytest.approx(3e12)
    assert front.loss_at(4e12) is None


def test_hulls_are_convex_and_fall() -> None:
    points = [(1e12 * 1.3**number, 2 - 0.1 * number + 0.17 * math.sin(7 * number)) for number in range(12)]
    front = Front.of(points)
    costs, losses = zip(*front.points, strict=True)
    slopes = [(losses[i + 1] - losses[i]) / math.log(costs[i + 1] / costs[i]) for i in range(len(costs) - 1)]
    assert len(slopes) > 1
    assert slopes == sorted(slopes)
    assert slopes[-1] < 0
    for flops, loss in points:
        bought = front.loss_at(flops)
        assert bought is not None
        assert bought <= loss + 1e-12


def test_of_runs_that_cost_the_same_within_a_step_the_best_one_counts() -> None:
    """Their steps are whole numbers: without that, a worse run that cost a little less would set the loss."""
    runs = [(1e12 - 2e8, 1.65), (1e12 + 2e8, 1.6), (1e12, 1.7)]
    front = Front.of(runs, step=1e9)
    assert front.points == ((1e12 + 2e8, 1.6),)
    assert front.loss_at(1e12 - 1e8) == 1.6
    assert front.flops_for(1.64) is None, "a loss above what the smallest budget buys has no price"
    careless = Front.of(runs)
    assert careless.loss_at(1e12 - 1e8) == pytest.approx(1.6375, abs=1e-3), "control"
