"""The cost to a loss, trials included; what it makes of the criteria; growth bumps; curves at common points."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from synthetic_runs import growth, trial, write_run

from ppdgrow.comparison.compare import Comparison, compare_runs
from ppdgrow.comparison.criteria import CHEAPER_FLOPS, CHEAPER_SECONDS, ONE_SEED, Criterion
from ppdgrow.comparison.curves import AXES, GRID, Axis, bands, cost_ratio, cost_to_reach
from ppdgrow.comparison.history import RunHistory, read_history
from ppdgrow.comparison.insertions import BUMP_STEPS
from ppdgrow.config.state import Cost

SPENT = {"cost": {"tokens": 8, "flops": 30}, "timing": {"seconds": 3.0}}
TWIN = {"event": "twin", "step": 5, "until": 10, "kept": False, "loss": 4.0}


def history(path: Path, losses: Mapping[int, float], **changes: Any) -> RunHistory:
    return read_history(write_run(path, losses, **changes))


def costs(found: RunHistory, loss: float) -> list[float | None]:
    """Steps, FLOPs and seconds to a loss; a step costs 10 FLOPs and a second."""
    return [cost_to_reach(found, loss, axis) for axis in AXES]


def tried(name: str, step: int, until: int, decision: str) -> list[dict[str, Any]]:
    """A trial that cost what SPENT says."""
    *lines, decided = trial(name, step, until, decision)
    return [*lines, decided | SPENT]


def criterion(comparison: Comparison, name: str) -> Criterion:
    (found,) = (c for c in comparison.criteria if c.name == name)
    return found


@pytest.mark.parametrize(
    ("loss", "steps"),
    [(4.5, 15.0), (4.25, 17.5), (4.0, 20.0), (5.0, 10.0), (6.0, 10.0), (3.5, 35.0), (3.0, 40.0), (2.9, None)],
    ids=["half", "three quarters", "at a point", "at the first", "above all", "later", "at the last", "never"],
)
def test_the_cost_to_a_loss_is_interpolated(tmp_path: Path, loss: float, steps: float | None) -> None:
    found = history(tmp_path / "run", {10: 5.0, 20: 4.0, 30: 4.0, 40: 3.0})
    expected = [None] * 3 if steps is None else [steps, 10 * steps, steps]
    assert costs(found, loss) == pytest.approx(expected)


def test_the_first_crossing_counts(tmp_path: Path) -> None:
    found = history(tmp_path / "run", {10: 5.0, 20: 4.0, 30: 4.8, 40: 3.8})
    assert costs(found, 4.5)[0] == 15.0
    assert costs(found, 3.9)[0] == pytest.approx(39.0), "control: what is reached later has its later cost"


def test_an_over_fitting_baseline_is_charged_up_to_its_own_first_crossing(tmp_path: Path) -> None:
    base = history(tmp_path / "base", {10: 5.0, 20: 4.0, 30: 3.5, 40: 4.0})
    other = history(tmp_path / "other", {10: 5.0, 20: 4.5, 30: 4.0, 40: 3.9})
    assert [cost_ratio(base, other, axis) for axis in AXES] == pytest.approx([1.5] * 3)
    assert [cost_ratio(base, base, axis) for axis in AXES] == [1.0] * 3
    steady = history(tmp_path / "steady", {10: 5.0, 20: 4.5, 30: 4.2, 40: 4.0})
    assert cost_ratio(steady, other, "flops") == 0.75, "control: a baseline that falls to the end"


@pytest.mark.parametrize(
    ("events", "extra"),
    [
        ([], 0),
        (tried("1.1", 5, 10, "reject"), 1),
        (tried("1.1", 5, 10, "accept"), 0),
        ([TWIN | SPENT], 1),
        ([TWIN | SPENT | {"kept": True}], 0),
        ([*tried("1.1", 5, 10, "reject"), *tried("1.2", 5, 10, "accept"), TWIN | SPENT], 2),
        ([*tried("1.1", 5, 10, "reject"), *tried("1.2", 5, 10, "reject"), TWIN | SPENT | {"kept": True}], 2),
        (trial("1.1", 5, 10, "reject"), 0),
    ],
    ids=["no trial", "rejected", "kept", "twin", "kept twin", "round kept", "round rejected", "cost not recorded"],
)
def test_rejected_trials_and_twins_count_once_they_are_decided(tmp_path: Path, events: list[Any], extra: int) -> None:
    found = history(tmp_path / "run", {5: 4.5, 9: 4.4, 10: 4.2, 20: 4.0}, events=events)
    assert costs(found, 4.4) == [9.0, 90.0, 9.0], "before the decision"
    assert costs(found, 4.2) == [10.0, 100.0 + 30 * extra, 10.0 + 3 * extra]
    assert costs(found, 4.0) == [20.0, 200.0 + 30 * extra, 20.0 + 3 * extra]
    assert bands([[found]], "flops")[0].at[-1] == 200.0 + 30 * extra


def test_a_trial_after_the_crossing_costs_the_ratio_nothing(tmp_path: Path) -> None:
    base = history(tmp_path / "base", {10: 4.5, 20: 4.2})
    losses = {10: 4.2, 20: 4.0}
    early = history(tmp_path / "early", losses, events=tried("1.1", 5, 10, "reject"))
    late = history(tmp_path / "late", losses, events=tried("1.1", 15, 20, "reject"))
    assert [cost_ratio(base, one, "flops") for one in (early, late)] == pytest.approx([0.65, 0.5])
    assert [cost_ratio(base, one, "steps") for one in (early, late)] == pytest.approx([0.5, 0.5])


def test_without_timing_there_is_a_ratio_of_flops_and_none_of_wall_clock(tmp_path: Path) -> None:
    losses = {10: 4.5, 20: 4.0}
    base = write_run(tmp_path / "base", losses, steps=25)
    timed = write_run(tmp_path / "timed", {10: 4.0, 20: 3.5}, steps=25)
    untimed = write_run(tmp_path / "untimed", {10: 4.0, 20: 3.5}, steps=25, lines=lambda _: {"timing": None})
    found = [run["cost_to_baseline_loss"] for run in compare_runs([base, timed, untimed]).document()["runs"][1:]]
    assert found[0] == {"steps": 0.5, "flops": 0.5, "seconds": 0.5}
    assert found[1] == {"steps": 0.5, "flops": 0.5, "seconds": None}
    assert criterion(compare_runs([base, untimed]), CHEAPER_SECONDS).passed is not True


@pytest.mark.parametrize(
    ("reached", "passed", "value"), [(15, True, 0.75), (16, True, 0.8), (17, False, 0.85), (25, False, 1.25)]
)
def test_the_bound_of_the_cost_is_four_fifths(tmp_path: Path, reached: int, passed: bool, value: float) -> None:
    base = write_run(tmp_path / "base", {20: 4.1})
    found = compare_runs([base, write_run(tmp_path / "other", {reached: 4.1, 30: 4.0})])
    for name in (CHEAPER_FLOPS, CHEAPER_SECONDS):
        one = criterion(found, name)
        assert (one.passed, one.value, one.bound, one.relation, one.note) == (passed, value, 0.8, "<=", ONE_SEED)


def test_flops_and_wall_clock_are_judged_apart(tmp_path: Path) -> None:
    base = write_run(tmp_path / "base", {20: 4.1})
    found = compare_runs([base, write_run(tmp_path / "other", {20: 4.0}, flops=5.0, seconds=2.0)])
    judged = [(c.value, c.passed) for c in found.criteria if c.name in (CHEAPER_FLOPS, CHEAPER_SECONDS)]
    assert judged == [(0.5, True), (2.0, False)]


def test_rejected_trials_can_cost_an_arm_the_criterion(tmp_path: Path) -> None:
    base = write_run(tmp_path / "base", {20: 4.1})
    free, paid = (
        write_run(tmp_path / name, {15: 4.1, 20: 4.0}, events=events)
        for name, events in (("free", trial("1.1", 5, 10, "reject")), ("paid", tried("1.1", 5, 10, "reject")))
    )
    found = [criterion(compare_runs([base, path]), CHEAPER_FLOPS) for path in (free, paid)]
    assert [(one.value, one.passed) for one in found] == [(0.75, True), (0.9, False)]


@pytest.mark.parametrize(
    ("finals", "passed", "value", "note"),
    [
        ((4.0, 4.0), True, 0.5, ""),
        ((4.0, 4.2), False, None, "reached by 1 of 2 seeds within the run"),
        ((4.2, 4.2), False, None, "reached by 0 of 2 seeds within the run"),
        ((4.0,), True, 0.5, ONE_SEED),
        ((4.2,), False, None, "not reached within the run"),
    ],
)
def test_every_seed_must_reach_the_loss(
    tmp_path: Path, finals: tuple[float, ...], passed: bool, value: float | None, note: str
) -> None:
    for seed, final in enumerate(finals):
        write_run(tmp_path / "base" / f"s{seed}", {20: 4.1}, seed=seed)
        write_run(tmp_path / "other" / f"s{seed}", {20: final}, flops=5.0, seed=seed)
    found = criterion(compare_runs([tmp_path / "base", tmp_path / "other"]), CHEAPER_FLOPS)
    assert (found.passed, found.value, found.note) == (passed, value, note)


@pytest.mark.parametrize(
    ("event", "losses", "bump", "recovery"),
    [
        (growth(100), {200: 3.9, 400: 3.8}, 0.0, 0.0),
        (growth(100, 4.0, 3.9), {200: 3.8}, -0.1, 0.0),
        (growth(100, 4.0, 4.5), {150: 4.2, 200: 3.9, 400: 3.8}, 0.5, 50 + 50 * 2 / 3),
        (growth(100, 4.0, 4.5), {150: 4.0, 200: 4.3}, 0.5, 50.0),
        (growth(100), {150: 4.3, 200: 3.7, 400: 3.6}, 0.3, 75.0),
        (growth(100, 4.0, 4.1), {150: 4.3, 1000: 4.1}, 0.3, None),
        (growth(100, 4.0, 4.1), {}, None, None),
        (growth(100), {101 + BUMP_STEPS: 4.6, 400: 3.8}, None, None),
        (growth(100, None, None), {200: 4.5}, None, None),
        (growth(100, 4.0, None), {200: 4.5}, None, None),
        (growth(100), {200: 3.9, 101 + BUMP_STEPS: 4.6, 400: 3.8}, 0.0, 0.0),
        (growth(100), {200: 3.9, 100 + BUMP_STEPS: 4.6, 400: 3.8}, 0.6, 275.0),
    ],
    ids=[
        "pair",
        "fall",
        "recovered",
        "recovered at a point",
        "rose later",
        "never recovered",
        "never evaluated again",
        "not evaluated in time",
        "not measured",
        "not measured after",
        "too late",
        "just in time",
    ],
)
def test_growth_bump_and_steps_to_recover(
    tmp_path: Path, event: dict[str, Any], losses: dict[int, float], bump: float | None, recovery: float | None
) -> None:
    base = write_run(tmp_path / "base", {100: 5.0})
    at = {} if event["loss_after"] is None else {100: event["loss_after"]}
    grown = write_run(tmp_path / "grown", at | losses, events=[event])
    (found,) = compare_runs([base, grown]).runs[1].insertions
    assert [found.growth_bump, found.steps_to_recover] == [pytest.approx(bump), pytest.approx(recovery)]


def test_a_bump_ends_where_the_model_changes_again(tmp_path: Path) -> None:
    base = write_run(tmp_path / "base", {100: 5.0})
    events = [growth(100, 4.0, 4.2), growth(150, 4.1, 4.1, ids=["p2"])]
    losses = {100: 4.2, 150: 4.1, 200: 4.9, 300: 3.0}
    two = write_run(tmp_path / "two", losses, events=events)
    one = write_run(tmp_path / "one", losses, events=events[:1])
    found = [run.insertions for run in compare_runs([base, two, one]).runs[1:]]
    assert [[i.growth_bump for i in row] for row in found] == [pytest.approx([0.2, 0.8]), pytest.approx([0.9])]
    assert [[i.steps_to_recover is None for i in row] for row in found] == [[True, False], [False]]


def test_bands_are_mean_lowest_and_highest_at_common_steps(tmp_path: Path) -> None:
    first = history(tmp_path / "first", {10: 5.0, 20: 4.0, 40: 3.0})
    second = history(tmp_path / "second", {10: 5.5, 30: 3.5, 40: 3.5})
    other = history(tmp_path / "other", {20: 9.0, 30: 8.0})
    one, two = bands([[first, second], [other]], "steps")
    assert one.at == (10.0, 20.0, 30.0, 40.0)
    assert one.mean == pytest.approx((5.25, 4.25, 3.5, 3.25))
    assert one.low == pytest.approx((5.0, 4.0, 3.5, 3.0))
    assert one.high == pytest.approx((5.5, 4.5, 3.5, 3.5))
    assert (two.at, two.mean, two.low, two.high) == ((20.0, 30.0), (9.0, 8.0), (9.0, 8.0), (9.0, 8.0))


def test_a_band_ends_with_its_shortest_seed_and_an_arm_with_its_own_end(tmp_path: Path) -> None:
    long = history(tmp_path / "long", {10: 5.0, 20: 4.0, 30: 3.0, 40: 2.0})
    short = history(tmp_path / "short", {10: 5.0, 20: 4.0})
    late = history(tmp_path / "late", {30: 3.0, 40: 2.0})
    mixed, alone, apart = bands([[long, short], [long], [short, late]], "steps")
    assert (mixed.at, alone.at, apart.at) == ((10.0, 20.0), (10.0, 20.0, 30.0, 40.0), ())
    assert vars(apart) == {"at": (), "mean": (), "low": (), "high": ()}


def test_an_insertion_that_changed_the_loss_is_a_second_point(tmp_path: Path) -> None:
    losses = {10: 5.0, 20: 4.0, 30: 3.9}
    copy = history(tmp_path / "copy", losses, events=[growth(20, 4.0, 4.6, method="copy")])
    pair = history(tmp_path / "pair", losses, events=[growth(20)])
    (jumping,), (smooth,) = bands([[copy]], "steps"), bands([[pair]], "steps")
    assert jumping.at == pytest.approx((10.0, 20.0, 20.0, 30.0))
    assert list(jumping.at) == sorted(set(jumping.at)), "strictly rising"
    assert jumping.mean == (5.0, 4.0, 4.6, 3.9)
    assert (smooth.at, smooth.mean) == ((10.0, 20.0, 30.0), (5.0, 4.0, 3.9))


@pytest.mark.parametrize("axis", AXES)
def test_many_points_are_brought_to_a_grid(tmp_path: Path, axis: Axis) -> None:
    many = history(tmp_path / "many", {step: 5.0 - step / 1000 for step in range(10, 1000)})
    shorter = history(tmp_path / "shorter", {step: 5.0 - step / 500 for step in range(15, 703)})
    whole, part = bands([[many], [shorter]], axis)
    per_step = 10.0 if axis == "flops" else 1.0
    for band, (first, last), slope in ((whole, (10, 999), 1000), (part, (15, 702), 500)):
        assert (band.at[0], band.at[-1]) == (first * per_step, last * per_step)
        assert band.mean == pytest.approx([5.0 - at / per_step / slope for at in band.at])
    assert len(whole.at) == GRID
    assert 0 < len(part.at) < GRID
    assert set(part.at[1:-1]) <= set(whole.at), "common points"


def test_few_points_stay_where_they_were_on_steps_alone(tmp_path: Path) -> None:
    few = history(tmp_path / "few", {10: 5.0, 20: 4.0})
    assert [len(bands([[few]], axis)[0].at) for axis in AXES] == [2, GRID, GRID]
    assert np.allclose(np.diff(bands([[few]], "flops")[0].at), 1.0)


def test_a_run_without_timing_has_no_curve_over_wall_clock(tmp_path: Path) -> None:
    found = history(tmp_path / "run", {10: 5.0, 20: 4.0}, steps=25, lines=lambda _: {"timing": None})
    assert [bool(bands([[found]], axis)[0].at) for axis in AXES] == [True, True, False]


def test_a_cost_that_was_not_recorded_is_not_judged(tmp_path: Path) -> None:
    """Seconds of the last point stand in the ledger also where the metrics have none: one known point is not enough."""
    untimed: dict[str, Any] = {"lines": lambda _: {"timing": None}}
    base = write_run(tmp_path / "base", {10: 4.5, 20: 4.0, 30: 3.5, 40: 4.0}, **untimed)
    comparison = compare_runs([base, write_run(tmp_path / "other", {10: 4.5, 20: 4.0, 30: 3.9, 40: 3.8})])
    (seconds,) = (c for c in comparison.criteria if c.name == CHEAPER_SECONDS)
    assert (seconds.passed, seconds.value, seconds.note) == (None, None, "its cost was not recorded")
    assert comparison.arms[1].cost_to_loss("flops") is not None


def test_a_point_with_the_very_loss_costs_what_it_cost(tmp_path: Path) -> None:
    flops = 4184360
    run = write_run(tmp_path / "run", {1: 4.123, 2: 3.7}, flops=flops / 2)
    assert cost_to_reach(read_history(run), 3.7, "flops") == flops


def test_trials_whose_cost_is_in_the_ledger_alone_are_not_judged(tmp_path: Path) -> None:
    """Without the cost of each trial nobody knows what was paid before the loss was reached."""
    base = write_run(tmp_path / "base", {10: 4.5, 20: 4.0})
    spent = Cost(tokens=80, flops=100, seconds=5.0)
    events = trial("1.1", 5, 10, "reject")
    comparison = compare_runs([base, write_run(tmp_path / "other", {10: 4.2, 20: 3.5}, events=events, trials=spent)])
    assert criterion(comparison, CHEAPER_FLOPS).note == "its cost was not recorded"
    assert comparison.arms[1].cost_to_loss("steps") is not None
