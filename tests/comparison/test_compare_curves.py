"""Losses at equal steps, FLOPs and wall-clock, and what is said of each insertion."""

from __future__ import annotations

from pathlib import Path

import pytest
from synthetic_runs import growth, write_run

from ppdgrow.comparison.compare import compare_runs
from ppdgrow.comparison.curves import EqualFigures, EqualPoint
from ppdgrow.comparison.measures import ComparedRun


def equal(run: ComparedRun) -> EqualFigures:
    assert run.equal is not None
    return run.equal


def test_equal_steps_is_the_largest_step_that_both_evaluated(tmp_path: Path) -> None:
    base = write_run(tmp_path / "base", {10: 5.0, 20: 4.5, 40: 4.0})
    other = write_run(tmp_path / "other", {10: 4.9, 20: 4.6, 30: 4.2})
    figures = equal(compare_runs([base, other]).runs[1])
    assert figures.steps == EqualPoint(20, 4.6, 4.5)
    assert figures.curve == (EqualPoint(10, 4.9, 5.0), EqualPoint(20, 4.6, 4.5))


def test_equal_flops_and_wall_clock_are_interpolated(tmp_path: Path) -> None:
    base = write_run(tmp_path / "base", {10: 5.0, 20: 4.0}, flops=20.0, seconds=1.0)
    other = write_run(tmp_path / "other", {10: 4.8, 20: 3.8}, flops=15.0, seconds=3.0)
    figures = equal(compare_runs([base, other]).runs[1])
    # 300 FLOPs are step 15 of the baseline; 20 seconds are step 6.67 of the other, before its first evaluation.
    assert figures.flops == EqualPoint(300.0, 3.8, 4.5)
    assert figures.seconds is None


def test_ranges_that_touch_in_one_point_overlap(tmp_path: Path) -> None:
    base = write_run(tmp_path / "base", {10: 5.0, 20: 4.0}, seconds=1.0)
    other = write_run(tmp_path / "other", {10: 4.8, 20: 3.8}, seconds=2.0)
    assert equal(compare_runs([base, other]).runs[1]).seconds == EqualPoint(20.0, 4.8, 4.0)


def test_a_run_without_timing_has_no_wall_clock_point_before_its_end(tmp_path: Path) -> None:
    base = write_run(tmp_path / "base", {10: 5.0, 20: 4.0})
    other = write_run(tmp_path / "other", {10: 4.8, 20: 3.8}, lines=lambda step: {"timing": None})
    assert equal(compare_runs([base, other]).runs[1]).seconds == EqualPoint(20.0, 3.8, 4.0)


def test_shared_steps_are_those_of_one_training(tmp_path: Path) -> None:
    base = write_run(tmp_path / "base", {30: 5.0})
    grown = write_run(tmp_path / "grown", {30: 4.0}, lines=lambda s: {"train_loss": 1.0 / s} if s > 17 else {})
    apart = write_run(tmp_path / "apart", {30: 4.0}, lines=lambda s: {"train_loss": 1.0 / s})
    runs = compare_runs([base, grown, apart]).runs
    assert [equal(run).shared_steps for run in runs[1:]] == [17, 0]


def test_loss_after_updates_is_taken_nearest_to_a_thousand_steps(tmp_path: Path) -> None:
    base = write_run(tmp_path / "base", {100: 5.0})
    losses = {100: 4.5, 900: 4.3, 1150: 4.2, 1300: 4.1}
    long = write_run(tmp_path / "long", losses, events=[growth(100)])
    short = write_run(tmp_path / "short", {100: 4.5, 300: 4.4}, events=[growth(100)])
    fresh = write_run(tmp_path / "fresh", {100: 4.5}, events=[growth(100)])
    found = [run.insertions[0] for run in compare_runs([base, long, short, fresh]).runs[1:]]
    assert [(i.updates, i.loss_after_updates) for i in found] == [(1050, 4.2), (200, 4.4), (None, None)]


def test_an_insertion_ends_where_the_next_one_begins(tmp_path: Path) -> None:
    base = write_run(tmp_path / "base", {100: 5.0})
    events = [growth(100), growth(200, ids=["p2"]), growth(200, ids=["p3"])]
    spike = {150: 9.0, 250: 9.0}
    run = write_run(
        tmp_path / "grown",
        {100: 4.5, 200: 4.4, 400: 4.2},
        events=events,
        lines=lambda s: {"grad_norm_new": spike.get(s, 1.0)} if s > 100 else {},
    )
    found = compare_runs([base, run]).runs[1].insertions
    assert [(i.ids, i.updates) for i in found] == [(("p1",), 100), (("p2",), 200), (("p3",), 200)]
    assert [i.gradient_spike.new for i in found] == [1, 1, 1]


def test_a_growth_that_changed_the_function_is_not_credited_with_its_parents_loss(tmp_path: Path) -> None:
    base = write_run(tmp_path / "base", {10: 5.0})
    # The metrics line of step 10 was written by the parent; the checkpoint says what the grown model has.
    grown = write_run(
        tmp_path / "grown",
        {10: 4.4},
        lines=lambda s: {"validation": {"loss": 4.0, "accuracy": 0.5}} if s == 10 else {},
        events=[growth(10, 4.0, 4.4, method="copy")],
    )
    comparison = compare_runs([base, grown])
    assert comparison.runs[1].history.final.validation.loss == 4.4
    assert equal(comparison.runs[1]).steps == EqualPoint(10, 4.4, 5.0)


def test_ratios_are_of_the_whole_cost(tmp_path: Path) -> None:
    base = write_run(tmp_path / "base", {20: 5.0}, flops=20.0, seconds=2.0)
    other = write_run(tmp_path / "other", {40: 4.0}, flops=5.0, seconds=3.0)
    runs = compare_runs([base, other]).document()["runs"]
    assert [(run["flops_ratio"], run["seconds_ratio"]) for run in runs] == [(1.0, 1.0), (0.5, pytest.approx(3.0))]
