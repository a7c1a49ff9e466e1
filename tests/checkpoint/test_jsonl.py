"""Logs that survive a kill: a cut last line is dropped, none is doubled or lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ppdgrow.checkpoint import append_jsonl, read_jsonl, truncate_metrics
from ppdgrow.errors import InvalidInputError, StorageError


def test_lines_come_back_and_an_absent_file_has_none(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    assert read_jsonl(path) == []
    append_jsonl(path, [{"step": 1, "name": "\u00e9"}, {"step": 2}])
    append_jsonl(path, [{"step": 3}])
    assert read_jsonl(path) == [{"step": 1, "name": "\u00e9"}, {"step": 2}, {"step": 3}]


def test_a_cut_last_line_is_dropped_and_cut_away_by_the_next_append(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    append_jsonl(path, [{"step": 1}])
    with path.open("a") as file:
        file.write('{"step": 2, "lo')
    assert read_jsonl(path) == [{"step": 1}]
    append_jsonl(path, [{"step": 2}])
    assert read_jsonl(path) == [{"step": 1}, {"step": 2}]


@pytest.mark.parametrize("line", ["{", "[1]", "nonsense", ""])
def test_another_broken_line_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text(f'{{"step": 1}}\n{line}\n{{"step": 2}}\n')
    with pytest.raises(InvalidInputError, match="line 2"):
        read_jsonl(path)


def test_nan_is_refused_with_nothing_written(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    append_jsonl(path, [{"step": 1}])
    with pytest.raises(ValueError, match="JSON compliant"):
        append_jsonl(path, [{"step": 2}, {"step": 3, "loss": float("nan")}])
    assert read_jsonl(path) == [{"step": 1}]


def test_truncation_keeps_the_steps_up_to_one(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    append_jsonl(path, [{"step": step} for step in range(1, 6)])
    truncate_metrics(path, 3, evaluated=True)
    assert [line["step"] for line in read_jsonl(path)] == [1, 2, 3]
    path.write_text('{"loss": 1}\n')
    with pytest.raises(InvalidInputError, match="no whole number 'step'"):
        truncate_metrics(path, 3, evaluated=True)


def test_a_folder_that_is_gone_is_a_storage_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot write"):
        append_jsonl(tmp_path / "gone" / "m.jsonl", [{"step": 1}])


STEP, FIGURES = {"train_loss": 1.0}, {"validation": {"loss": 1.0}}


@pytest.mark.parametrize(
    ("lines", "fault"),
    [
        ([{"step": 1} | STEP, {"step": 1} | FIGURES, {"step": 2} | STEP], None),
        ([{"step": 1} | STEP | FIGURES, {"step": 2} | STEP], None),
        ([{"step": 1} | STEP, {"step": 1} | FIGURES, {"step": 1} | FIGURES], "line 3: step 1 follows step 1"),
        ([{"step": 1} | STEP | FIGURES, {"step": 1} | FIGURES], "line 2: step 1 follows step 1"),
        ([{"step": 1} | STEP, {"step": 1} | STEP], "line 2: step 1 follows step 1"),
        ([{"step": 1} | FIGURES, {"step": 1} | STEP], "line 2: step 1 follows step 1"),
        ([{"step": 2} | STEP, {"step": 1} | FIGURES], "line 2: step 1 follows step 2"),
    ],
    ids=["two lines", "one line", "evaluated twice", "twice, old", "doubled", "before its step", "falling"],
)
def test_a_step_has_one_line_and_at_most_one_of_its_evaluation(
    tmp_path: Path, lines: list[dict[str, Any]], fault: str | None
) -> None:
    path = tmp_path / "metrics.jsonl"
    append_jsonl(path, lines)
    if fault is None:
        assert read_jsonl(path) == lines
        truncate_metrics(path, 1, evaluated=False)
        assert read_jsonl(path) == [{"step": 1} | STEP]
        return
    with pytest.raises(InvalidInputError, match=fault):
        read_jsonl(path)
