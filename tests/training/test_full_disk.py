"""Whole commands on a disk that is full, too small, gone or shared: exit 6 in one line, and on to the same bits."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import TINY, Command
from equality import events, result, same
from full_disk import Disk
from safetensors import SafetensorError
from safetensors.torch import save_file

import ppdgrow as package
from ppdgrow.checkpoint import RunFolder, locate_checkpoint, read_jsonl, read_state, shards
from ppdgrow.data.batches import Batch, Batches

TRAIN = "train --layers 1 --steps 13 --quiet --out"
CLIMB = "train shallow --steps 9 --quiet --out"
GROWTH = ["-o", "growth=[{at: 12, pair: ffn, trial: {steps: 3, epsilon: 9.0}}]"]


def leftovers(folder: Path = Path()) -> list[Path]:
    return sorted(folder.rglob(".tmp-*"))


def tree(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    """The disk of this process."""
    found = Disk()
    monkeypatch.setattr("os.fsync", found.fsync)
    return found


def one_line(stderr: str) -> str:
    """The error, if it is all that was said but for warnings."""
    lines = stderr.strip().splitlines()
    assert len([line for line in lines if line.startswith("error:")]) == 1, stderr
    assert lines[-1].startswith("error:"), stderr
    return lines[-1]


@pytest.mark.parametrize(
    ("line", "more"),
    [(TRAIN, TINY), pytest.param(CLIMB, GROWTH, marks=pytest.mark.slow)],
    ids=["train", "progressive"],
)
def test_a_disk_that_fills_up_at_any_write(
    ppdgrow: Command, disk: Disk, request: pytest.FixtureRequest, line: str, more: list[str]
) -> None:
    """Recipe, logs, files of checkpoints, arms, adoption, card: each seventh of the writes, the last among them."""
    if line == CLIMB:
        request.getfixturevalue("shallow")
    disk.empty()
    ppdgrow(f"{line} whole", *more)
    writes = disk.empty()
    assert writes > 30
    for at in range(writes, 0, -(writes // 7)):
        disk.fill(at)
        failed = one_line(ppdgrow(f"{line} broken", *more, code=6).stderr)
        disk.empty()
        assert "cannot write '" in failed
        assert "No space left on device (" in failed
        assert " free)" in failed
        assert not leftovers()
        run = RunFolder(Path("broken"))
        if run.checkpoints():
            assert run.newest_valid() == run.checkpoints()[-1], "what was saved is whole"
        ppdgrow(f"{line} broken", *more)
        assert same(result("broken"), result("whole"))
        if line == CLIMB:
            assert events("broken") == events("whole")
        shutil.rmtree("broken")


@pytest.mark.parametrize("line", ["grow shallow --pairs 2", "grow shallow --method zero", "grow s --remove last"])
def test_a_growth_that_does_not_fit_leaves_nothing(ppdgrow: Command, shallow: Path, disk: Disk, line: str) -> None:
    ppdgrow("grow shallow --out s --quiet")
    before = tree(Path())
    disk.empty()
    ppdgrow(f"{line} --out new/whole --quiet")
    writes = disk.empty()
    expected = {path.relative_to("new/whole"): data for path, data in tree(Path("new/whole/checkpoints")).items()}
    shutil.rmtree("new")
    for at in (1, 3, writes // 2, writes - 2):
        disk.fill(at)
        failed = one_line(ppdgrow(f"{line} --out new/run --quiet", code=6).stderr)
        disk.empty()
        assert "cannot write 'new/run" in failed or f"cannot write '{Path.cwd()}/new/run" in failed
        assert tree(Path()) == before, "nothing new, and the input is as it was"
        assert not Path("new").exists()
    ppdgrow(f"{line} --out new/run --quiet")
    assert {path.relative_to("new/run"): data for path, data in tree(Path("new/run/checkpoints")).items()} == expected


@pytest.mark.parametrize("at", [1, 4])
def test_the_error_of_the_librarys_own_writer_is_a_full_disk(
    ppdgrow: Command, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """safetensors wraps the system's error in one of its own."""
    ppdgrow(f"{TRAIN} whole", *TINY)
    real, calls = save_file, 0

    def save(tensors: Any, path: Path, metadata: Any) -> None:
        nonlocal calls
        calls += 1
        if calls >= at:
            path.write_bytes(b"half of it")
            raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")
        real(tensors, path, metadata=metadata)

    with monkeypatch.context() as patch:
        patch.setattr(shards, "save_file", save)
        failed = one_line(ppdgrow(f"{TRAIN} broken", *TINY, code=6).stderr)
    assert "checkpoints/step-0000" in failed
    assert "model.safetensors" in failed or "trainer_state.safetensors" in failed
    assert "(more than " in failed
    assert not leftovers()
    ppdgrow(f"{TRAIN} broken", *TINY)
    assert same(result("broken"), result("whole"))


def test_reports_and_readings_of_the_test_split(ppdgrow: Command, shallow: Path, disk: Disk) -> None:
    ppdgrow("train --layers 3 --steps 10 --out deep --quiet", *TINY)
    line = "compare shallow deep --test --report r.md --plot p.svg"
    pytest.importorskip("matplotlib")
    for name in ("r.md", "p.svg"):
        Path(name).write_text("old")
    disk.fill(1)
    failed = ppdgrow(line, code=6).stderr
    disk.empty()
    assert failed.count("the reading of the test split is not recorded") == 1
    assert "is not recorded in 2 of 2 runs: cannot write" in failed
    assert failed.strip().splitlines()[-1].startswith("error: cannot write --")
    assert (Path("r.md").read_text(), Path("p.svg").read_text()) == ("old", "old")
    assert not leftovers()
    ppdgrow(line)
    assert len(read_jsonl(Path("deep/test.jsonl"))) >= 1
    assert Path("r.md").read_text() != "old"


# --- too small from the start


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Let the file system say that so many bytes are free."""

    def say(size: int) -> None:
        usage = shutil.disk_usage(".")._replace(free=size)
        monkeypatch.setattr("shutil.disk_usage", lambda path: usage)

    return say


def test_a_run_that_does_not_fit_is_refused_as_its_dry_run_warns(
    ppdgrow: Command, shallow: Path, free: Callable[[int], None]
) -> None:
    growth = ["-o", "growth=[{at: 12, pair: ffn, pairs: 4, trial: {steps: 3}}]"]
    short, on = "train --layers 2 --steps 5 --out a", "train shallow --steps 9 --out a"
    for line, more, told in ((short, TINY, "1 checkpoint needs"), (on, growth, "3 checkpoints need")):
        free(10**12)
        document = ppdgrow(f"{line} --dry-run --json", *more).document
        size = max(document["checkpoint_bytes"], document["checkpoint_bytes_after_growth"])
        needed = document["disk_bytes"]
        assert needed == document["checkpoints_at_once"] * size == int(told[0]) * size
        assert (document["checkpoint_bytes"] < size) == (more is growth), "the largest of them counts"
        free(needed - 1)
        (warned,) = [text for text in ppdgrow(f"{line} --dry-run", *more).stderr.splitlines() if "warning" in text]
        refused = one_line(ppdgrow(line, *more, code=6).stderr)
        assert warned.removeprefix("warning: ") in refused
        assert refused.startswith(f"error: the run 'a' does not fit: {told} ")
        assert "lower train.keep" in refused
        assert not Path("a").exists()
        free(needed)
        assert "warning" not in ppdgrow(f"{line} --dry-run", *more).stderr


def test_what_a_run_holds_already_is_not_asked_for_again(
    ppdgrow: Command, stop_at: Any, free: Callable[[int], None]
) -> None:
    line = "train --layers 2 --steps 21 --quiet --out a"
    stop_at(13, 15)
    ppdgrow(line, *TINY, code=143)
    total = ppdgrow(f"{line} --dry-run --json", *TINY).document["disk_bytes"]
    held = sum(len(data) for data in tree(Path("a/checkpoints")).values())
    free(total - held - 1)
    refused = one_line(ppdgrow(line, *TINY, code=6).stderr)
    assert "beside the " in refused
    assert "in 'a'" in refused
    free(2**21)
    ppdgrow(line, *TINY)
    free(1)
    assert "warning" not in ppdgrow("train --layers 2 --steps 21 --out a --dry-run", *TINY).stderr, "it is finished"
    ppdgrow(line, *TINY)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 8 MB."""
    place = tmp_path / "small"
    place.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(place)], check=False)
    if done.returncode != 0:
        pytest.skip("this process may not mount")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def at_step(monkeypatch: pytest.MonkeyPatch, step: int, work: Callable[[], object]) -> None:
    """Do something while the batch of a step is drawn, once."""
    draw, done = Batches.at, False

    def at(self: Batches, now: int) -> Batch:
        nonlocal done
        if now == step and not done:
            done = True
            work()
        return draw(self, now)

    monkeypatch.setattr(Batches, "at", at)


@pytest.mark.parametrize("linked", [False, True], ids=["the run", "its checkpoints by a link"])
def test_a_real_disk_that_fills_up_in_mid_run(
    ppdgrow: Command, small_disk: Path, monkeypatch: pytest.MonkeyPatch, linked: bool
) -> None:
    ppdgrow(f"{TRAIN} whole", *TINY)
    run, filler = RunFolder(Path("broken") if linked else small_disk / "run"), small_disk / "filler"

    def link() -> None:
        (small_disk / "checkpoints").mkdir()
        (run.path / "checkpoints").symlink_to(small_disk / "checkpoints")

    def fill() -> None:
        with filler.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(small_disk).free)

    if linked:
        at_step(monkeypatch, 2, link)
    at_step(monkeypatch, 9, fill)
    failed = one_line(ppdgrow(f"{TRAIN} {run.path}", *TINY, code=6).stderr)
    assert "0 B free" in failed or "0 B are free" in failed
    assert run.newest_valid() == run.checkpoint_path(6)
    assert not leftovers()
    refused = one_line(ppdgrow(f"{TRAIN} {run.path}", *TINY, code=6).stderr)
    assert "does not fit" in refused
    filler.unlink()
    ppdgrow(f"{TRAIN} {run.path}", *TINY)
    assert same(result(str(run.path)), result("whole"))
    assert len(list(small_disk.rglob("step-*"))) >= 2


# --- gone, linked, shared


def test_a_run_folder_that_is_moved_away_in_mid_run(ppdgrow: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    ppdgrow(f"{TRAIN} whole", *TINY)
    at_step(monkeypatch, 9, lambda: Path("broken").rename("moved"))
    failed = one_line(ppdgrow(f"{TRAIN} broken", *TINY, code=6).stderr)
    assert "ring it back" in failed
    assert not Path("broken").exists(), "nothing is made anew by halves"
    Path("moved").rename("broken")
    ppdgrow(f"{TRAIN} broken", *TINY)
    assert same(result("broken"), result("whole"))


def test_a_run_folder_that_is_removed_in_a_trial(
    ppdgrow: Command, shallow: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_step(monkeypatch, 14, lambda: shutil.rmtree("broken"))
    one_line(ppdgrow(f"{CLIMB} broken", *GROWTH, code=6).stderr)
    assert not Path("broken").exists()


def test_links_to_runs_and_checkpoints(ppdgrow: Command, shallow: Path) -> None:
    Path("disk/run").mkdir(parents=True)
    Path("linked").symlink_to("disk/run")
    ppdgrow(f"{TRAIN} linked", *TINY)
    assert Path("linked").is_symlink()
    assert RunFolder(Path("disk/run")).checkpoints()
    Path("ckpt").symlink_to("shallow/checkpoints/step-00000010")
    before = tree(Path("shallow"))
    grown = ppdgrow("grow ckpt --out g --json").document
    assert grown["parent"].endswith("step-00000010") or grown["parent"] == "ckpt"
    for line in ("probe ckpt --json", "probe linked --json", "train ckpt --steps 2 --out t --json"):
        ppdgrow(line)
    assert tree(Path("shallow")) == before
    assert locate_checkpoint(Path("ckpt"))[0].path.resolve() == shallow.resolve()


def start(line: str, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "ppdgrow", *line.split(), *more]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(package.__file__).parents[1])}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def test_the_second_of_two_runs_is_refused_until_the_first_is_dead(ppdgrow: Command) -> None:
    line = "train --layers 1 --steps 100000 --no-decay --quiet --out a"
    with start(line, *TINY) as first:
        try:
            while not RunFolder(Path("a")).checkpoints():
                assert first.poll() is None
                time.sleep(0.1)
            refused = one_line(ppdgrow(line, *TINY, code=2).stderr)
            assert "another process is writing 'a'" in refused
        finally:
            first.kill()
            first.wait()
    with RunFolder(Path("a")).lock():
        pass
    newest = RunFolder(Path("a")).newest_valid()
    assert newest is not None
    assert read_state(newest).step > 0


@pytest.mark.slow
def test_two_growths_and_two_comparisons_at_once(ppdgrow: Command, shallow: Path) -> None:
    """One growth makes the folder; the other finds it made, or is refused in one line. Neither harms it."""
    ppdgrow("train --layers 1 --steps 10 --out b --quiet", *TINY)
    growths = [start("grow shallow --pairs 1 --quiet --out g") for _ in range(2)]
    ends = [(process.communicate(timeout=120)[1], process.returncode) for process in growths]
    assert 0 in [code for _, code in ends]
    assert all(code == 0 or (code == 2 and "another process" in one_line(err)) for err, code in ends), ends
    assert not leftovers()
    assert RunFolder(Path("g")).newest_valid() is not None
    tests = [start("compare shallow b --test --json") for _ in range(2)]
    ends = [(process.communicate(timeout=120)[0], process.returncode) for process in tests]
    assert [code for _, code in ends] == [0, 0]
    assert ends[0][0] == ends[1][0]
    for run in ("shallow", "b"):
        assert 1 <= len(read_jsonl(Path(run) / "test.jsonl")) <= 2
