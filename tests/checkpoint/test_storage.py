"""The file system at its worst: full, read-only, gone, without locks, linked to elsewhere."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from faulty_disk import failing, leftovers
from tiny_checkpoints import file_bytes, largest_file, tiny_checkpoint

from ppdgrow.atomic import new_folder, write_file
from ppdgrow.checkpoint import RunFolder, append_jsonl, write_checkpoint
from ppdgrow.errors import ConfigError, StorageError


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """A run with one checkpoint."""
    found = RunFolder(tmp_path / "run")
    write_checkpoint(found.checkpoint_path(1), tiny_checkpoint(1))
    return found


# --- full


@pytest.mark.parametrize("at", range(1, 7))
def test_a_disk_that_is_full_at_any_flush_keeps_the_old_checkpoint(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    before = file_bytes(run.checkpoint_path(1))
    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", failing(errno.ENOSPC, os.fsync, at))
        for step in (1, 2):
            with pytest.raises(
                StorageError, match=r"No space left on device \(more than .* needed, .* free\)"
            ) as error:
                write_checkpoint(run.checkpoint_path(step), tiny_checkpoint(2))
            assert str(run.checkpoint_path(step)) in str(error.value)
            assert "\n" not in str(error.value)
    assert file_bytes(run.checkpoint_path(1)) == before
    assert not leftovers(run.path)
    assert run.newest_valid() == run.checkpoint_path(1)
    write_checkpoint(run.checkpoint_path(2), tiny_checkpoint(2))
    assert run.newest_valid() == run.checkpoint_path(2)


def test_a_file_that_the_kernel_cuts_off_is_a_full_disk(run: RunFolder) -> None:
    """A real refusal, within safetensors' own writer."""
    big = tiny_checkpoint(2, tokenizer="x" * 3000)
    for size in (0, 100, 1500, 2500):
        with largest_file(size), pytest.raises(StorageError, match=r"needed, .* free\)"):
            write_checkpoint(run.checkpoint_path(2), big)
        assert not leftovers(run.path)
        assert run.newest_valid() == run.checkpoint_path(1)
    with largest_file(2**20):
        write_checkpoint(run.checkpoint_path(2), big)


def test_a_file_says_what_it_needs_and_stays_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "a.md"
    write_file(path, "old")
    with largest_file(10), pytest.raises(StorageError, match=r"a\.md.*\(2 kB needed, .* free\)"):
        write_file(path, "x" * 2000)
    assert path.read_text() == "old"
    assert not leftovers(tmp_path)


def test_folders_that_were_made_for_it_go_with_it(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    with pytest.raises(StorageError), largest_file(1), new_folder(tmp_path / "there" / "a" / "b") as folder:
        append_jsonl(folder / "metrics.jsonl", [{"step": 1}])
    assert list(tmp_path.rglob("*")) == [tmp_path / "there"]


def test_a_file_within_is_named_as_it_would_have_been(tmp_path: Path) -> None:
    with (
        pytest.raises(StorageError, match=r"cannot write .*/run/metrics\.jsonl'"),
        largest_file(1),
        new_folder(tmp_path / "run") as folder,
    ):
        append_jsonl(folder / "metrics.jsonl", [{"step": 1}])


# --- read-only, gone


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
def test_a_read_only_folder_is_said_to_be_one(run: RunFolder, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr(Path, "mkdir", failing(number, Path.mkdir))
    with pytest.raises(StorageError, match="Make it writable or choose another folder with --out"):
        write_checkpoint(run.checkpoint_path(2), tiny_checkpoint(2))
    assert run.newest_valid() == run.checkpoint_path(1)


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Mount a file system of its own for a test, if this process may."""
    places: list[Path] = []

    def mount(*options: str) -> Path:
        place = tmp_path / f"mount-{len(places)}"
        place.mkdir()
        done = subprocess.run(["mount", *options, str(place)], capture_output=True, check=False)
        if done.returncode != 0:
            pytest.skip("this process may not mount")
        places.append(place)
        return place

    yield mount
    for place in reversed(places):
        subprocess.run(["umount", "-l", str(place)], check=True)


def test_on_a_file_system_that_is_read_only(mounted: Callable[..., Path], tmp_path: Path) -> None:
    place = mounted("-t", "tmpfs", "-o", "size=4m", "tmpfs")
    run = RunFolder(place / "run")
    write_checkpoint(run.checkpoint_path(1), tiny_checkpoint(1))
    append_jsonl(run.metrics_path, [{"step": 1}])
    subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)
    writes: tuple[Callable[[], object], ...] = (
        lambda: write_checkpoint(run.checkpoint_path(2), tiny_checkpoint(2)),
        lambda: append_jsonl(run.metrics_path, [{"step": 2}]),
        lambda: write_file(run.card_path, "card"),
        lambda: run.lock().__enter__(),
    )
    for write in writes:
        with pytest.raises(StorageError, match=r"Read-only file system.*Make it writable"):
            write()
    run.sweep()
    assert run.newest_valid() == run.checkpoint_path(1)


def test_on_a_file_system_that_is_full(mounted: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    place = mounted("-t", "tmpfs", "-o", "size=256k", "tmpfs")
    run = RunFolder(place / "run")
    with pytest.raises(StorageError, match=r"needs 30\d kB, but only 262 kB are free"):
        write_checkpoint(run.checkpoint_path(1), tiny_checkpoint(1, tokenizer="x" * 300_000))
    monkeypatch.setattr("ppdgrow.checkpoint.format._check_space", lambda folder, tensors: None)
    write_checkpoint(run.checkpoint_path(1), tiny_checkpoint(1))
    with pytest.raises(StorageError, match=r"No space left on device.*needed, .* free\)"):
        write_checkpoint(run.checkpoint_path(2), tiny_checkpoint(2, tokenizer="x" * 300_000))
    assert not leftovers(place)
    assert run.newest_valid() == run.checkpoint_path(1)
    with suppress(OSError), (place / "filler").open("wb", buffering=0) as file:
        while file.write(b"x" * 1000):
            pass
    with pytest.raises(StorageError, match=r"metrics\.jsonl.*No space left on device \(.*0 B free\)"):
        append_jsonl(run.metrics_path, [{"step": 1, "text": "x" * 9000}])
    (place / "filler").unlink()
    append_jsonl(run.metrics_path, [{"step": 1}])
    write_checkpoint(run.checkpoint_path(2), tiny_checkpoint(2))
    assert run.newest_valid() == run.checkpoint_path(2)


def test_a_run_folder_that_is_gone_is_not_made_anew(run: RunFolder) -> None:
    run.check_present()
    run.path.rename(run.path.with_name("moved"))
    with pytest.raises(StorageError, match="is gone: it was moved or removed while its run went on"):
        run.check_present()
    writes: tuple[Callable[[], object], ...] = (
        lambda: append_jsonl(run.metrics_path, []),
        lambda: write_file(run.card_path, "card"),
    )
    for write in writes:
        with pytest.raises(StorageError, match="bring it back"):
            write()
    assert not run.path.exists()


# --- two at once


def test_the_slower_of_two_does_not_replace_what_the_faster_made(tmp_path: Path) -> None:
    first, second = RunFolder(tmp_path / "run"), RunFolder(tmp_path / "run")

    def both() -> None:
        with second.create() as slow:
            slow.card_path.write_text("slow")
            with first.create() as fast:
                fast.card_path.write_text("fast")

    with pytest.raises(ConfigError, match="was made by another process meanwhile") as caught:
        both()
    assert "\n" not in str(caught.value)
    assert first.card_path.read_text() == "fast"
    assert list(tmp_path.iterdir()) == [first.path]


def test_a_folder_that_is_empty_but_for_an_old_lock_is_filled(tmp_path: Path) -> None:
    """`rm -r RUN/*` leaves it."""
    run = RunFolder(tmp_path / "run")
    run.path.mkdir()
    (run.path / ".lock").touch()
    with run.create() as fresh:
        fresh.card_path.write_text("new")
    assert [entry.name for entry in run.path.iterdir()] == ["README.md"]


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_said_to_be_one(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(fcntl, "flock", failing(number, fcntl.flock))
    with pytest.raises(StorageError, match=r"cannot lock .*has no locks.*choose a folder on a local disk"), run.lock():
        pass


# --- modes and links


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_modes_follow_the_umask(tmp_path: Path, mask: int) -> None:
    old = os.umask(mask)
    try:
        run = RunFolder(tmp_path / "deep" / "run")
        with run.create() as fresh:
            write_file(fresh.recipe_path, "x")
            append_jsonl(fresh.metrics_path, [])
            write_checkpoint(fresh.checkpoint_path(1), tiny_checkpoint(1, tokenizer="{}"), shard_bytes=50)
        write_checkpoint(run.checkpoint_path(1), tiny_checkpoint(2))
        write_file(run.recipe_path, "y")
        with run.lock():
            pass
    finally:
        os.umask(old)
    found = [tmp_path / "deep", *(tmp_path / "deep").rglob("*")]
    assert len(found) > 10
    for path in found:
        expected = (0o777 if path.is_dir() else 0o666) & ~mask
        assert stat.S_IMODE(path.stat().st_mode) == expected, path


def test_checkpoints_on_another_disk_are_written_and_swept_there(tmp_path: Path) -> None:
    run, disk = RunFolder(tmp_path / "run"), tmp_path / "disk"
    disk.mkdir()
    run.path.mkdir()
    (run.path / "checkpoints").symlink_to(disk)
    for step in (1, 2, 3):
        write_checkpoint(run.checkpoint_path(step), tiny_checkpoint(step))
    (disk / ".tmp-left").mkdir()
    run.sweep()
    run.prune(1)
    assert sorted(path.name for path in disk.iterdir()) == ["step-00000003"]
    assert (run.path / "checkpoints").is_symlink()
    assert run.newest_valid() == run.checkpoint_path(3)


def test_saving_over_a_linked_checkpoint_leaves_the_other_run_alone(run: RunFolder, tmp_path: Path) -> None:
    other = RunFolder(tmp_path / "other")
    write_checkpoint(other.checkpoint_path(2), tiny_checkpoint(2, tokenizer="other"))
    before = file_bytes(other.checkpoint_path(2))
    run.checkpoint_path(2).symlink_to(other.checkpoint_path(2))
    write_checkpoint(run.checkpoint_path(2), tiny_checkpoint(2))
    assert file_bytes(other.checkpoint_path(2)) == before
    assert not run.checkpoint_path(2).is_symlink()
    assert file_bytes(run.checkpoint_path(2)) != before
    assert not leftovers(tmp_path)


def test_an_empty_folder_behind_a_link_is_filled(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "run").symlink_to("disk")
    with RunFolder(tmp_path / "run").create() as fresh:
        fresh.card_path.write_text("x")
    assert (tmp_path / "run").is_symlink()
    assert (tmp_path / "disk" / "README.md").read_text() == "x"
