"""`compare --accept` on synthetic runs: the parent rule, what is refused, and what is warned of a twin."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from synthetic_runs import growth, write_run
from synthetic_runs import trial as trial_events

from ppdgrow.checkpoint import manifest_digest
from ppdgrow.comparison.comparability import check_twin, warnings_of_twin
from ppdgrow.comparison.compare import Comparison, compare, compare_runs
from ppdgrow.comparison.criteria import rule_criteria
from ppdgrow.comparison.history import RunHistory, read_history
from ppdgrow.comparison.tables import comparison_rows, criteria_rows, verdict_lines
from ppdgrow.config.requests import CompareRequest
from ppdgrow.console import Narrator
from ppdgrow.errors import ConfigError, InvalidInputError
from ppdgrow.training.acceptance import Decision, PairedDifference


def decided(paths: Sequence[Path], **changes: Any) -> Comparison:
    return compare(CompareRequest.parse({"paths": paths, "accept": True, **changes}), Narrator(quiet=True))


def family(folder: Path, before: float = 4.0, after: float = 3.9, **of_twin: Any) -> list[Path]:
    """Parent at step 10, its grown child and its twin at step 20."""
    parent = write_run(folder / "parent", {10: before}, lr_factor=1.0)
    digest = manifest_digest(parent / "checkpoints" / "step-00000010")
    event = growth(10, before, before, parent_sha256=digest)
    trial = write_run(folder / "trial", {10: before, 20: after}, events=[event], layers=4, flops=30.0)
    on = {"event": "train", "step": 10, "steps": 10, "parent_sha256": digest}
    twin = write_run(folder / "twin", **({"losses": {20: 3.95}, "events": [on]} | of_twin))
    return [parent, trial, twin]


@pytest.mark.parametrize(
    ("before", "after", "epsilon", "verdict"),
    [
        (4.0, 3.9, None, "accept"),
        (4.0, 4.0, None, "accept"),
        (4.0, 4.05, None, "reject"),
        (4.0, 4.05, 0.1, "accept"),
        (4.0, 3.95, -0.1, "reject"),
        (4.0, 3.85, -0.1, "accept"),
    ],
)
def test_the_parent_rule(tmp_path: Path, before: float, after: float, epsilon: float | None, verdict: str) -> None:
    comparison = decided(family(tmp_path, before, after)[:2], epsilon=epsilon)
    assert comparison.verdict == verdict
    decision = comparison.document()["decision"]
    cost = {"tokens": 80, "flops": 500, "seconds": 10.0}
    assert decision == {
        "rule": "parent",
        "loss_before": before,
        "loss_after": after,
        "epsilon": epsilon or 0.0,
        "twin": None,
        "margin": 0.01,
        "cost": {"trial": cost, "twin": None},
    }
    assert [(c.name, c.passed) for c in comparison.criteria] == [("parent rule", verdict == "accept")]
    assert any("hardly ever rejects" in note for note in comparison.notes)
    assert comparison.warnings == ()


def test_the_parent_rule_says_how_little_it_shows_and_what_the_trial_cost(tmp_path: Path) -> None:
    lines = verdict_lines(decided(family(tmp_path)[:2]))
    assert lines[0] == "verdict: accept by the parent rule"
    assert lines[1].startswith("parent rule decides: 4.000000 -> 3.900000 (-0.100000), bound <= +0: accepts")
    assert lines[2] == "cost of the trial since the parent: 80 tokens, 500 FLOP, 10 s"
    assert [line for line in lines if "hardly ever rejects" in line] == [lines[3]]
    assert len(lines) == 4


def test_a_trial_of_another_parent_is_doubted_and_has_no_cost_of_its_own(tmp_path: Path) -> None:
    _, trial, _ = family(tmp_path)
    stranger = write_run(tmp_path / "stranger", {15: 4.0}, flops=100.0)
    comparison = decided([stranger, trial])
    assert any("does not show that it descends" in warning for warning in comparison.warnings)
    assert comparison.document()["decision"]["cost"] == {"trial": None, "twin": None}


def test_a_trial_without_its_own_loss_is_not_decided(tmp_path: Path) -> None:
    parent = write_run(tmp_path / "parent", {10: 4.0})
    trial = write_run(tmp_path / "trial", {10: 4.0}, steps=13, events=[growth(10)])
    with pytest.raises(InvalidInputError, match="at step 13, but was last evaluated at step 10"):
        decided([parent, trial])


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"epsilon": float("nan")}, "--epsilon is nan, expected a finite"),
        ({"epsilon": float("-inf")}, "--epsilon is -inf, expected a finite"),
        ({"margin": float("inf"), "twin": Path("twin")}, "--margin is inf, expected a finite"),
        ({"rule": "twin"}, "--rule twin found no twin"),
        ({"margin": 0.0}, "found --margin without --twin RUN"),
        ({"device": "auto"}, "found --device without --twin RUN"),
        ({"precision": "auto"}, "found --precision without --twin RUN"),
        ({"data_dir": Path()}, "found --data-dir without --twin RUN"),
        ({"paths": [Path("parent")] * 3}, "PARENT and TRIAL, found 3"),
        ({"paths": [Path("parent")]}, "PARENT and TRIAL, found 1"),
    ],
)
def test_requests_that_cannot_be_decided(changes: dict[str, Any], found: str) -> None:
    with pytest.raises(ConfigError, match=found):
        CompareRequest.parse({"paths": ["parent", "trial"], "accept": True, **changes}, flags=True)


@pytest.mark.parametrize(
    ("of_twin", "found"),
    [
        ({"losses": {25: 3.9}}, "at step 25, the trial 'trial' at step 20: they were not trained for the same budget"),
        ({"layers": 4}, "has the blocks l1, l2, l3, l4, but the parent 'parent' has l1, l2: a twin is not grown"),
        ({"identity": {"sha256": {"validation": "d" * 64}}}, "not of the same examples"),
        ({"losses": {15: 3.9}, "steps": 20}, "at step 20, but was last evaluated at step 15"),
    ],
)
def test_a_twin_that_is_none_is_refused(tmp_path: Path, of_twin: dict[str, Any], found: str) -> None:
    parent, trial, twin = family(tmp_path, **of_twin)
    with pytest.raises((ConfigError, InvalidInputError), match=found):
        decided([parent, trial], twin=twin)


def test_a_twin_of_another_shape_is_refused(tmp_path: Path) -> None:
    parent, trial, twin = map(read_history, family(tmp_path))
    check_twin(parent, trial, twin)
    wide = twin.architecture.model_copy(update={"width": 32})
    object.__setattr__(twin, "architecture", wide)
    with pytest.raises(ConfigError, match="another model than the parent 'parent' \\(width: 32 and 16\\)"):
        check_twin(parent, trial, twin)


@pytest.mark.parametrize(
    ("of_twin", "warned"),
    [
        ({}, None),
        ({"events": []}, "lineage of twin does not show"),
        ({"batch_size": 8}, "train.batch_size: 4 and 8"),
        ({"seed": 3}, "train.seed: 0 and 3"),
        (
            {"recipe": {"train.lr": 1e-4, "train.decay": False}},
            "train.decay: True and False; train.lr: 0.002 and 0.0001",
        ),
        ({"recipe": {"train.steps": 7, "train.horizon": 99}}, "train.steps: 1000 and 7; train.horizon: None and 99"),
        ({"recipe": {"train.precision": "bf16"}}, "train.precision: auto and bf16"),
        ({"recipe": {"train.reset_optimizer": True}}, "train.reset_optimizer: False and True"),
        ({"recipe": {"train.only": "pairs", "train.pair_lr": 0.5, "train.pair_warmup_steps": 3}}, None),
        ({"recipe": {"train.save_every": 7, "train.keep": 1, "train.eval_every": 7, "data.directory": "d"}}, None),
        ({"recipe": {"data.name": "/moved/copy"}}, None),
        ({"environment": {"threads": 2}}, "different environments (threads 1 and 2)"),
        ({"environment": {"torch": "9"}}, "different environments (torch 2.14.1 and 9)"),
    ],
)
def test_what_is_doubted_of_a_twin(tmp_path: Path, of_twin: dict[str, Any], warned: str | None) -> None:
    parent, trial, twin = map(read_history, family(tmp_path, **of_twin))
    warnings = list(warnings_of_twin(parent, trial, twin))
    assert len(warnings) == (warned is not None)
    assert warned is None or warned in warnings[0]


GAIN, LOSS = PairedDifference(-0.02, -0.03, -0.01, 64), PairedDifference(0.02, 0.01, 0.03, 64)


@pytest.mark.parametrize(
    ("rule", "after", "twin", "verdict"),
    [
        ("twin", 4.5, GAIN, "accept"),
        ("twin", 3.9, LOSS, "reject"),
        ("parent", 4.5, GAIN, "reject"),
        ("parent", 3.9, LOSS, "accept"),
    ],
)
def test_the_rule_that_decides_decides_alone_and_both_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rule: str, after: float, twin: PairedDifference, verdict: str
) -> None:
    monkeypatch.setattr("ppdgrow.comparison.compare.difference_to_twin", lambda *_: (twin, []))
    parent, trial, other = family(tmp_path, 4.0, after)
    comparison = decided([parent, trial], twin=other, rule=rule)
    assert comparison.verdict == comparison.document()["verdict"] == verdict
    first, second = comparison.criteria
    assert (first.passed, second.passed) == (verdict == "accept", verdict != "accept")
    assert {first.name, second.name} == {"parent rule", "twin rule"}
    assert first.name == f"{rule} rule"
    assert "does not decide" not in first.note
    assert second.note.startswith("does not decide")
    assert comparison_rows(comparison).header == ("", "parent", "trial", "twin")
    rows = {title: row for title, table in criteria_rows(comparison).items() for row in table.rows}
    high = f"{twin.high:+.4f}"
    assert rows["trial against twin"][:4] == ("twin rule", high, "< 0.01", "pass" if twin is GAIN else "fail")
    lines = verdict_lines(comparison)
    assert lines[0] == f"verdict: {verdict} by the {rule} rule"
    assert lines[1].startswith(f"{rule} rule decides: ")
    assert any("not the noise of training" in line for line in lines)
    assert any(line.startswith("cost of the twin since the parent: 80 tokens, 100 FLOP") for line in lines)
    assert any("hardly ever rejects" in line for line in lines) == (rule == "parent")
    assert all(line.isascii() for line in lines)


def test_a_figure_at_its_bound_is_not_below_it(tmp_path: Path) -> None:
    parent, trial, twin = map(read_history, family(tmp_path))
    decision = Decision("twin", 4.0, 4.0, 0.0, PairedDifference(0.0, 0.0, 0.0, 64), 0.0)
    found = {criterion.name: criterion.passed for criterion in rule_criteria(decision, parent, trial, twin)}
    assert found == {"parent rule": True, "twin rule": False}


def test_runs_compared_without_a_decision_have_none(tmp_path: Path) -> None:
    assert compare_runs(family(tmp_path)).document()["decision"] is None
    history: RunHistory = read_history(tmp_path / "twin")
    assert history.descends_from(read_history(tmp_path / "parent"))
    assert not history.descends_from(read_history(tmp_path / "trial"))


@pytest.mark.parametrize(("decision", "shown"), [("accept", True), ("reject", False)])
def test_a_rejected_growth_is_no_descent(tmp_path: Path, decision: str, shown: bool) -> None:
    parent = read_history(write_run(tmp_path / "parent", {10: 4.0}))
    events = trial_events("1.1", 10, 15, decision, parent_sha256=parent.digest)
    assert read_history(write_run(tmp_path / "child", {20: 4.0}, events=events)).descends_from(parent) is shown


def test_where_nothing_was_tried_nothing_is_decided(tmp_path: Path) -> None:
    parent, _, twin = family(tmp_path)
    with pytest.raises(ConfigError, match="'twin' has the same blocks as 'parent'"):
        decided([parent, twin])
    grown = write_run(tmp_path / "grown", {10: 4.0}, layers=4)
    with pytest.raises(ConfigError, match="'grown' was not trained beyond 'parent'"):
        decided([parent, grown])
