"""The three success criteria: each with a case that passes and one that fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from synthetic_runs import growth, write_run

from ppdgrow.comparison.compare import Comparison, compare_runs
from ppdgrow.comparison.criteria import (
    COMPARABLE_ACCURACY,
    LOWER_LOSS,
    NO_INSERTION_SPIKE,
    Criterion,
)
from ppdgrow.errors import ConfigError


def criterion(comparison: Comparison, name: str) -> Criterion:
    (found,) = (c for c in comparison.criteria if c.name == name)
    return found


def against_base(folder: Path, loss: float = 4.0, **changes: Any) -> Comparison:
    base = write_run(folder / "base", {20: 4.1}, accuracy=0.5, flops=20.0, seconds=2.0)
    return compare_runs([base, write_run(folder / "other", {20: loss}, **changes)])


@pytest.mark.parametrize(
    ("events", "passed", "value"),
    [
        ([growth(10, 4.213077, 4.213077)], True, 0.0),
        ([growth(10, 4.0, 4.0), growth(15, 3.5, 3.75)], False, 0.25),
        ([growth(10, 4.0, 3.5)], False, 0.5),
        ([growth(10, None, None)], None, None),
        ([growth(10, 4.0, 4.0), growth(15, None, None)], None, 0.0),
        ([growth(10, 4.0, 4.5), growth(15, None, None)], False, 0.5),
        ([], None, None),
    ],
    ids=["none", "second up", "down too", "not measured", "one not measured", "up, one not measured", "no insertion"],
)
def test_no_insertion_spike(tmp_path: Path, events: list[Any], passed: bool | None, value: float | None) -> None:
    found = criterion(against_base(tmp_path, events=events), NO_INSERTION_SPIKE)
    assert (found.passed, found.value, found.bound, found.relation) == (passed, value, 0.0, "<=")
    assert found.passed is not None or found.note


@pytest.mark.parametrize(("loss", "passed"), [(4.0999, True), (4.1, False), (4.2, False)])
def test_lower_loss_at_equal_steps(tmp_path: Path, loss: float, passed: bool) -> None:
    found = criterion(against_base(tmp_path, loss), LOWER_LOSS)
    assert (found.passed, found.against, found.run) == (passed, "base", "other")
    assert found.value == pytest.approx(loss - 4.1)
    assert "one seed: no interval" in found.note


def test_lower_loss_without_a_common_step_is_not_judged(tmp_path: Path) -> None:
    base = write_run(tmp_path / "base", {20: 4.1})
    found = criterion(compare_runs([base, write_run(tmp_path / "other", {30: 3.0})]), LOWER_LOSS)
    assert (found.passed, found.value) == (None, None)
    assert "never evaluated at one and the same step" in found.note


def test_a_run_before_its_end_is_not_judged(tmp_path: Path) -> None:
    base = write_run(tmp_path / "base", {20: 4.1, 40: 3.0})
    found = criterion(compare_runs([base, write_run(tmp_path / "other", {20: 4.0})]), LOWER_LOSS)
    assert found.passed is None, "one has decayed its learning rate by then, the other has not"
    assert found.value == pytest.approx(-0.1)
    assert "base not at the end of the schedule there" in found.note


@pytest.mark.parametrize(("accuracy", "passed", "value"), [(0.503, True, 0.3), (0.496, True, -0.4), (0.49, False, -1)])
def test_comparable_final_accuracy(tmp_path: Path, accuracy: float, passed: bool, value: float) -> None:
    found = criterion(against_base(tmp_path, accuracy=accuracy), COMPARABLE_ACCURACY)
    assert (found.passed, found.unit, found.bound) == (passed, "pt", -0.5)
    assert found.value == pytest.approx(value)


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({"loss": 4.0, "events": [growth(10)]}, "accept"),
        ({"loss": 4.0}, "accept"),
        ({"loss": 4.2, "events": [growth(10)]}, "reject"),
        ({"loss": 4.0, "events": [growth(10, 4.0, 4.1)]}, "reject"),
        ({"loss": 4.0, "accuracy": 0.4, "events": [growth(10)]}, "reject"),
    ],
    ids=["all pass", "one not applicable", "loss fails", "insertion fails", "accuracy fails"],
)
def test_the_verdict_needs_every_judged_criterion(tmp_path: Path, changes: dict[str, Any], verdict: str) -> None:
    assert against_base(tmp_path, **changes).verdict == verdict


def test_one_bad_run_among_several_rejects(tmp_path: Path) -> None:
    base = write_run(tmp_path / "base", {20: 4.1}, flops=20.0, seconds=2.0)
    good, bad = write_run(tmp_path / "good", {20: 4.0}), write_run(tmp_path / "bad", {20: 4.3})
    assert compare_runs([base, good]).verdict == "accept"
    comparison = compare_runs([base, good, bad])
    assert comparison.verdict == "reject"
    assert [c.run for c in comparison.criteria] == ["good"] * 5 + ["bad"] * 5


def test_a_run_against_itself_is_not_an_improvement(tmp_path: Path) -> None:
    base = write_run(tmp_path / "base", {20: 4.1})
    comparison = compare_runs([base, base])
    assert comparison.verdict == "reject"
    assert "one and the same run up to step 20" in criterion(comparison, LOWER_LOSS).note


def test_one_run_is_no_comparison(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="found 1 path, expected"):
        compare_runs([tmp_path])
