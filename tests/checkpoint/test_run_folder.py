"""Run folders: which checkpoint a path names, what pruning spares, who may write."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tiny_checkpoints import edit_json, largest_file, relist, tiny_checkpoint

from ppdgrow.checkpoint import (
    RunFolder,
    append_jsonl,
    locate_checkpoint,
    read_checkpoint,
    read_jsonl,
    truncate_metrics,
    write_checkpoint,
)
from ppdgrow.errors import ConfigError, InvalidInputError, StorageError


def run_with(path: Path, *steps: int) -> RunFolder:
    run = RunFolder(path)
    for step in steps:
        write_checkpoint(run.checkpoint_path(step), tiny_checkpoint(step))
    return run


def damage(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"")


def steps(run: RunFolder) -> list[int]:
    return [int(folder.name.removeprefix("step-")) for folder in run.checkpoints()]


def test_only_step_folders_count_and_they_sort_as_numbers(tmp_path: Path) -> None:
    run = run_with(tmp_path, 20, 3, 123_456_789, 99_999_999)
    for name in ("step-3", "step-000000003", "step-0000000x", ".tmp-step-00000004", "notes"):
        (tmp_path / "checkpoints" / name).mkdir()
    (tmp_path / "checkpoints" / "step-00000007").write_text("a file")
    assert steps(run) == [3, 20, 99_999_999, 123_456_789]
    assert RunFolder(tmp_path / "none").checkpoints() == []
    assert RunFolder(tmp_path / "none").newest_valid() is None


@pytest.mark.parametrize("key", ["width", "unheard_of"])
def test_the_walk_back_passes_over_what_a_read_would_refuse(tmp_path: Path, key: str) -> None:
    """The manifest agrees, so only the content is wrong."""
    run = run_with(tmp_path, 1, 2)
    edit_json(run.checkpoint_path(2) / "config.json", **{key: -1})
    relist(run.checkpoint_path(2))
    skipped: list[str] = []
    assert run.newest_valid(skipped) == run.checkpoint_path(1)
    assert key in skipped[0]


def test_where_no_checkpoint_is_whole_the_newest_reason_is_given(tmp_path: Path) -> None:
    run = run_with(tmp_path / "run", 1, 2)
    for folder in run.checkpoints():
        damage(folder)
    with pytest.raises(InvalidInputError, match=r"no checkpoint of .* is intact; the newest: .*step-00000002"):
        locate_checkpoint(run.path)


@pytest.mark.parametrize("keep", [1, 2, 3, 4, 9])
def test_pruning_keeps_as_many_as_asked(tmp_path: Path, keep: int) -> None:
    run = run_with(tmp_path, 1, 2, 3)
    run.prune(keep)
    assert steps(run) == [1, 2, 3][-keep:]


def test_pruning_spares_the_only_valid_checkpoint(tmp_path: Path) -> None:
    """Damaged checkpoints of later steps must not push out the one that training goes on from."""
    run = run_with(tmp_path, 1, 2, 3, 4)
    damage(run.checkpoint_path(3))
    damage(run.checkpoint_path(4))
    run.prune(1)
    assert steps(run) == [2, 4]
    read_checkpoint(run.checkpoint_path(2))


def test_pruning_a_link_leaves_what_it_points_to(tmp_path: Path) -> None:
    run = run_with(tmp_path / "run", 2)
    other = run_with(tmp_path / "other", 1).checkpoint_path(1)
    run.checkpoint_path(1).symlink_to(other)
    assert steps(run) == [1, 2]
    run.prune(1)
    assert steps(run) == [2]
    read_checkpoint(other)


def test_sweeping_removes_leftovers_and_nothing_else(tmp_path: Path) -> None:
    run = run_with(tmp_path, 1)
    run.metrics_path.write_text("")
    for folder in (tmp_path, tmp_path / "checkpoints"):
        (folder / ".tmp-folder").mkdir()
        (folder / ".tmp-folder" / "x").write_text("x")
        (folder / ".tmp-file").write_text("x")
    run.sweep()
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoints", "metrics.jsonl"}
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == {"step-00000001"}
    RunFolder(tmp_path / "none").sweep()


@pytest.mark.parametrize(
    ("inside", "named"),
    [
        (".", "run"),
        (".", "run/checkpoints/step-00000001"),
        ("run", "checkpoints/step-00000001"),
        ("run/checkpoints", "step-00000001"),
        ("run/checkpoints", ".."),
        ("run/checkpoints/step-00000001", "."),
        ("run/checkpoints/step-00000002", "../step-00000001"),
        ("run/checkpoints/step-00000001/sub", ".."),
    ],
)
def test_every_way_to_name_a_checkpoint_finds_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inside: str, named: str
) -> None:
    run = run_with(tmp_path / "run", 1)
    (run.checkpoint_path(1) / "sub").mkdir()
    run.checkpoint_path(2).mkdir()
    monkeypatch.chdir(tmp_path / inside)
    found, folder = locate_checkpoint(Path(named))
    assert folder.resolve() == run.checkpoint_path(1)
    assert found.path.resolve() == run.path


def test_what_names_no_checkpoint_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("x")
    (tmp_path / "loop").symlink_to("loop")
    expected = {
        "gone": "does not exist",
        "file": "is a file",
        "empty": "is empty",
        "other": "has no checkpoints",
        "x" * 300: "cannot read",
        "loop": "does not exist",
        "a\nb": "does not exist",
    }
    for name, says in expected.items():
        with pytest.raises(InvalidInputError, match=says) as caught:
            locate_checkpoint(tmp_path / name)
        assert "\n" not in str(caught.value)
        assert "expected a run folder" in str(caught.value)


HOLD = """
import sys, time
from pathlib import Path
from ppdgrow.checkpoint import RunFolder
with RunFolder(Path(sys.argv[1])).lock():
    print("held", flush=True)
    time.sleep(60)
"""


def test_another_process_holds_the_lock_until_it_is_killed(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == "held\n"
            with pytest.raises(ConfigError, match="another process is writing"), run.lock():
                pass
        finally:
            other.kill()
            other.wait()
        with run.lock():
            pass


def test_the_lock_of_a_folder_that_is_gone_is_a_storage_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot write"), RunFolder(tmp_path / "gone").lock():
        pass


# --- logs


def test_truncating_an_absent_log_does_not_make_one(tmp_path: Path) -> None:
    truncate_metrics(tmp_path / "m.jsonl", 3, evaluated=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("line", ["null", "3", "[" * 100_000, "\x00", '{"step": 2}{"step": 3}'])
def test_a_log_line_that_no_writer_made_is_refused(tmp_path: Path, line: str) -> None:
    (tmp_path / "m.jsonl").write_text(f'{{"step": 1}}\n{line}\n')
    with pytest.raises(InvalidInputError, match="line 2: expected one JSON object") as caught:
        read_jsonl(tmp_path / "m.jsonl")
    assert "\n" not in str(caught.value)


def test_a_log_cut_at_any_byte_keeps_its_whole_lines_and_can_be_continued(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    lines = [{"step": step, "loss": 1 / 3 * step} for step in (1, 2, 3)]
    append_jsonl(path, lines)
    whole = path.read_bytes()
    for size in range(len(whole) + 1):
        path.write_bytes(whole[:size])
        kept = whole[:size].count(b"\n")
        assert read_jsonl(path) == lines[:kept]
        append_jsonl(path, lines[kept:])
        assert path.read_bytes() == whole


def test_truncation_leaves_the_kept_lines_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    append_jsonl(path, [{"step": 1, "loss": 0.1 + 0.2, "name": "é"}, {"step": 2}])
    first = path.read_bytes().splitlines(keepends=True)[0]
    truncate_metrics(path, 1, evaluated=True)
    assert path.read_bytes() == first


def test_a_disk_that_fills_up_costs_no_line_that_was_there(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    append_jsonl(path, [{"step": 1}])
    with largest_file(100), pytest.raises(StorageError, match="File too large"):
        append_jsonl(path, [{"step": 2, "text": "x" * 500}])
    assert read_jsonl(path) == [{"step": 1}]
    append_jsonl(path, [{"step": 2}])
    assert read_jsonl(path) == [{"step": 1}, {"step": 2}]
