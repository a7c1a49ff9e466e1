"""What a comparison makes of the trials of a progressive run: counted and charged, a rejected one otherwise unseen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from synthetic_runs import growth, trial, write_run

from ppdgrow.comparison.compare import Comparison, compare_runs
from ppdgrow.comparison.criteria import NO_INSERTION_SPIKE
from ppdgrow.comparison.history import RunHistory, read_history
from ppdgrow.comparison.tables import comparison_rows, verdict_lines
from ppdgrow.config.state import Cost

TWIN = {"event": "twin", "step": 10, "until": 15, "kept": False, "loss": 4.0}
# Rejected, and the retry; then one that is kept.
EVENTS = [
    *trial("1.1", 5, 10, "reject", ids=["p1"], loss_after=9.0, bit_exact=False),
    *trial("1.2", 5, 10, "reject", ids=["p1"]),
    *trial("2.1", 10, 15, "accept", ids=["p2"]),
    TWIN,
]
SPENT = Cost(tokens=80, flops=100, seconds=5.0)


def compared(folder: Path, events: list[dict[str, Any]], **changes: Any) -> Comparison:
    base = write_run(folder / "base", {20: 4.1}, flops=20.0, seconds=2.0)
    return compare_runs([base, write_run(folder / "other", {10: 4.2, 20: 4.0}, events=events, **changes)])


def table(comparison: Comparison) -> dict[str, tuple[str, ...]]:
    return {row[0]: row[1:] for row in comparison_rows(comparison).rows}


def test_trials_are_counted_and_their_cost_is_held_against_the_baseline(tmp_path: Path) -> None:
    comparison = compared(tmp_path, EVENTS, trials=SPENT)
    rows = table(comparison)
    assert rows["trials (kept / rejected)"] == ("-", "1 / 2")
    assert rows["FLOPs of trials"] == ("-", "0.25 (100 FLOP)")
    assert rows["wall-clock of trials"] == ("-", "0.12 (5.0 s)")
    assert rows["FLOPs"] == ("1.00 (400 FLOP)", "0.50 (200 FLOP)"), "the model's own cost is another row"
    documents = comparison.document()["runs"]
    found = [[run[key] for key in ("trials", "trials_kept", "trials_rejected")] for run in documents]
    assert found == [[Cost().model_dump(), 0, 0], [{"tokens": 80, "flops": 100, "seconds": 5.0}, 1, 2]]
    assert any("rejected trials" in line for line in verdict_lines(comparison))


def test_what_was_spent_is_shown_also_where_nothing_was_decided_yet(tmp_path: Path) -> None:
    rows = table(compared(tmp_path, [], trials=SPENT))
    assert (rows["trials (kept / rejected)"], rows["FLOPs of trials"]) == (("-", "0 / 0"), ("-", "0.25 (100 FLOP)"))


def test_runs_without_trials_have_no_such_rows(tmp_path: Path) -> None:
    comparison = compared(tmp_path, [growth(10)])
    assert not any("trials" in label for label in table(comparison))
    assert not any("trials" in line for line in verdict_lines(comparison))


def test_a_rejected_trial_is_no_insertion_and_no_change(tmp_path: Path) -> None:
    comparison = compared(tmp_path, EVENTS, lines=lambda s: {"grad_norm_new": 1.0} if s > 10 else {})
    run = comparison.runs[1]
    assert [(i.step, i.ids) for i in run.insertions] == [(10, ("p2",))]
    assert run.history.changes == (10,)
    assert table(comparison)["layers"] == ("2", "2 -> 4 at step 10")
    assert [c.passed for c in comparison.criteria if c.name == NO_INSERTION_SPIKE] == [True]


def test_control_the_same_trial_accepted_counts(tmp_path: Path) -> None:
    events = trial("1.1", 5, 10, "accept", loss_after=9.0, bit_exact=False)
    comparison = compared(tmp_path, events)
    assert comparison.runs[1].history.changes == (5,)
    assert [c.passed for c in comparison.criteria if c.name == NO_INSERTION_SPIKE] == [False]


def test_only_rejections_leave_the_first_criterion_unjudged(tmp_path: Path) -> None:
    (found,) = (c for c in compared(tmp_path, EVENTS[:6]).criteria if c.name == NO_INSERTION_SPIKE)
    assert (found.passed, found.note) == (None, "not applicable: no insertion")


@pytest.mark.parametrize(("until", "kept"), [(20, 1), (21, 0)])
def test_a_checkpoint_has_a_trial_behind_it_once_it_is_decided(tmp_path: Path, until: int, kept: int) -> None:
    run = compared(tmp_path, trial("1.1", 15, until, "accept")).runs[1]
    assert (run.history.trials_kept, len(run.insertions), len(run.history.changes)) == (kept, kept, kept)


def test_a_rejected_insertion_at_the_last_step_leaves_the_loss_of_the_run(tmp_path: Path) -> None:
    """A growth that changed the function makes the metrics line of its step stale; a rejected one does not."""
    line = {"validation": {"loss": 4.4, "accuracy": 0.5}}
    made: dict[str, Any] = {"steps": 20, "lines": lambda s: line if s == 20 else {}}
    refused = trial("1.1", 20, 20, "reject", loss_after=9.0, bit_exact=False)
    run = read_history(write_run(tmp_path / "run", {10: 4.5}, events=refused, **made))
    assert (run.final.step, run.final.validation.loss) == (20, 4.4)
    taken = trial("1.1", 20, 20, "accept", loss_after=9.0, bit_exact=False)
    assert read_history(write_run(tmp_path / "taken", {10: 4.5}, events=taken, **made)).final.step == 10


START = {"event": "train", "step": 20, "steps": 30}
CHECK = {"event": "check", "step": 20, "loss_before": 4.0, "loss_after": 4.0, "bit_exact": True, "passed": True}


@pytest.mark.parametrize(
    ("events", "planned"),
    [
        ([], 20),
        ([START], 50),
        ([START, *trial("1.1", 20, 20, "accept"), TWIN], 50),
        ([START, *trial("1.1", 20, 20, "reject")], 50),
        ([START, growth(20)], 20),
        ([START, growth(20), CHECK], 20),
        ([START, growth(20, event="remove")], 20),
        ([growth(20), CHECK, START], 50),
        ([START, {"event": "news", "step": 20, "steps": 7, "method": 3}], 50),
    ],
    ids=["first train", "latest", "kept trial", "rejected", "grown", "grown, checked", "removed", "after", "unknown"],
)
def test_the_planned_step_is_of_the_latest_training(tmp_path: Path, events: list[Any], planned: int) -> None:
    history: RunHistory = read_history(write_run(tmp_path / "run", {20: 4.0}, events=events))
    assert history.planned_step == planned
