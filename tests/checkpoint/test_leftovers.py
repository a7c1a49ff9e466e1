"""What a killed process leaves half-written goes, what it had set aside comes back, what lives is left alone."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from faulty_disk import die, failing, in_child, leftovers
from tiny_checkpoints import file_bytes, tiny_checkpoint

from ppdgrow import atomic
from ppdgrow.atomic import OWN_PREFIX, new_folder, replace_file, sweep_leftovers, write_file
from ppdgrow.checkpoint import RunFolder, read_checkpoint, write_checkpoint
from ppdgrow.errors import StorageError


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """A run with one checkpoint."""
    found = RunFolder(tmp_path / "run")
    write_checkpoint(found.checkpoint_path(1), tiny_checkpoint(1))
    return found


@pytest.mark.parametrize("survived", [0, 1, 2])
def test_a_kill_between_the_renames_loses_no_step(run: RunFolder, survived: int) -> None:
    """`survived` renames are done; after the second the new checkpoint is in place."""
    old = file_bytes(run.checkpoint_path(1))
    real, done = Path.replace, 0

    def rename(path: Path, target: Path) -> Path:
        nonlocal done
        if done == survived:
            die()
        done += 1
        return real(path, target)

    def save() -> None:
        atomic._exchange = lambda one, other: False  # as on a system that cannot
        Path.replace = rename  # type: ignore[assignment,method-assign]
        atomic._remove = die
        write_checkpoint(run.checkpoint_path(1), tiny_checkpoint(1, tokenizer="new"))

    assert in_child(save) == -signal.SIGKILL
    assert leftovers(run.path)
    assert run.checkpoint_path(1).exists() == (survived != 1)
    run.sweep()
    assert not leftovers(run.path)
    assert (file_bytes(run.checkpoint_path(1)) == old) == (survived < 2)
    read_checkpoint(run.checkpoint_path(1))


@pytest.mark.parametrize("exchanged", [False, True])
def test_a_checkpoint_that_is_saved_anew_is_there_at_every_moment(run: RunFolder, exchanged: bool) -> None:
    """Killed right before and right after the two change places: the old or the new one is whole without a sweep."""
    old = file_bytes(run.checkpoint_path(1))
    exchange = atomic._exchange
    if not exchange(run.path / "checkpoints", run.path / "checkpoints"):
        pytest.skip("this system cannot exchange two folders")

    def die_there(one: Path, other: Path) -> Any:
        if exchanged:
            assert exchange(one, other)
        die()

    def save() -> None:
        atomic._exchange = die_there
        write_checkpoint(run.checkpoint_path(1), tiny_checkpoint(1, tokenizer="new"))

    assert in_child(save) == -signal.SIGKILL
    assert run.newest_valid() == run.checkpoint_path(1)
    assert (file_bytes(run.checkpoint_path(1)) == old) == (not exchanged)
    run.sweep()
    assert not leftovers(run.path)
    assert run.newest_valid() == run.checkpoint_path(1)


def test_an_error_between_the_renames_puts_the_old_one_back(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    old = file_bytes(run.checkpoint_path(1))
    real, calls = Path.replace, 0

    def rename(path: Path, target: Path) -> Path:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise OSError(errno.EIO, "Input/output error")
        return real(path, target)

    monkeypatch.setattr(Path, "replace", rename)
    monkeypatch.setattr(atomic, "_exchange", lambda one, other: False)
    with pytest.raises(StorageError, match="Input/output error"):
        write_checkpoint(run.checkpoint_path(1), tiny_checkpoint(2))
    assert file_bytes(run.checkpoint_path(1)) == old
    assert not leftovers(run.path)


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_the_next_write_sweeps_what_a_killed_one_left_beside_it(tmp_path: Path, kind: str) -> None:
    def killed() -> None:
        if kind == "folder":
            with new_folder(tmp_path / "grown") as folder:
                (folder / "x").write_text("x")
                die()
        os.fsync = die
        replace_file(tmp_path / "report.md", b"x")

    (tmp_path / ".tmp-theirs").mkdir()
    assert in_child(killed) == -signal.SIGKILL
    assert len(leftovers(tmp_path)) == 2
    with new_folder(tmp_path / "other") as folder:
        (folder / "x").write_text("x")
    assert leftovers(tmp_path) == [tmp_path / ".tmp-theirs"], "what this program did not write is not touched"


def test_what_a_living_process_writes_is_not_swept(tmp_path: Path) -> None:
    with new_folder(tmp_path / "a") as folder:
        (folder / "x").write_text("x")
        assert in_child(lambda: sweep_leftovers(tmp_path)) == 0
        replace_file(tmp_path / "report.md", b"x")
    assert (tmp_path / "a" / "x").read_text() == "x"
    (tmp_path / f"{OWN_PREFIX}000000000000").mkdir()
    sweep_leftovers(tmp_path)
    assert not leftovers(tmp_path), "control: without a lock it goes"


def test_without_locks_nothing_of_others_is_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "flock", failing(errno.ENOLCK, fcntl.flock))
    (tmp_path / f"{OWN_PREFIX}000000000000").mkdir()
    write_file(tmp_path / "a", "x")
    assert len(leftovers(tmp_path)) == 1
