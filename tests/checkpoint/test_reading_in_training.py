"""A run that others read, lock, move and change while it is in training, or after."""

from __future__ import annotations

import multiprocessing
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import TINY, Command
from tampering import seal

import ppdgrow.checkpoint.runs as runs
from ppdgrow.atomic import new_folder
from ppdgrow.checkpoint import RunFolder
from ppdgrow.checkpoint import format as checkpoint_format
from ppdgrow.errors import ConfigError

READERS = ["grow shallow --out g", "probe shallow", "train shallow --steps 1 --out t", "compare shallow other"]


@pytest.fixture
def pruned_when_read(shallow: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """The run saves a newer checkpoint and removes the one that a reader has just found, so many times."""
    verify = checkpoint_format.verify
    left = 0

    def meddling(folder: Path) -> None:
        nonlocal left
        if left and folder.is_relative_to(shallow):
            left -= 1
            step = int(folder.name.removeprefix("step-"))
            newer = folder.with_name(f"step-{step + 1:08d}")
            shutil.copytree(folder, newer)
            state = newer / "trainer_state.json"
            state.write_text(state.read_text().replace(f'"step": {step}', f'"step": {step + 1}'))
            seal(newer)
            shutil.rmtree(folder)
        verify(folder)

    monkeypatch.setattr(runs, "verify", meddling)

    def arm(times: int) -> None:
        nonlocal left
        left = times
        for old in RunFolder(shallow).checkpoints()[:-1]:
            shutil.rmtree(old)

    return arm


@pytest.mark.parametrize("line", READERS)
def test_a_run_in_training_is_read_although_it_prunes(
    ppdgrow: Command, pruned_when_read: Callable[[int], None], line: str
) -> None:
    if "other" in line:
        ppdgrow("train --layers 1 --steps 5 --out other --quiet", *TINY)
    pruned_when_read(3)
    assert "whole" not in ppdgrow(line).stderr


def test_control_damage_is_still_damage(ppdgrow: Command, shallow: Path) -> None:
    newest = RunFolder(shallow).checkpoints()[-1]
    (newest / "model.safetensors").write_bytes(b"cut")
    ppdgrow("train --layers 1 --steps 5 --out other --quiet", *TINY)
    for line in READERS:
        told = ppdgrow(line).stderr
        assert "skipped a damaged checkpoint: " in told, line
        assert newest.name in told
    for folder in RunFolder(shallow).checkpoints():
        (folder / "model.safetensors").write_bytes(b"cut")
    for line in READERS:
        assert "no checkpoint of 'shallow' is intact" in ppdgrow(f"{line}2" if "--out" in line else line, code=4).stderr


def _make_folders(parent: Path, name: str, seconds: float, failures: Any) -> None:
    end, number = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        number += 1
        try:
            with new_folder(parent / f"{name}-{number}", replace=False) as folder:
                (folder / "file").write_text("x")
        except Exception as error:
            failures.put(str(error))


def test_commands_that_begin_at_once_in_one_folder_do_not_sweep_each_other(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    failures = context.Queue()
    workers = [context.Process(target=_make_folders, args=(tmp_path, name, 2.0, failures)) for name in "abcd"]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert failures.empty(), failures.get()
    assert not list(tmp_path.glob(".tmp*"))
    assert len(list(tmp_path.iterdir())) > 50


def test_a_lock_file_that_is_removed_lets_nobody_in(ppdgrow: Command, shallow: Path) -> None:
    run = RunFolder(shallow)
    with run.lock():
        (shallow / ".lock").unlink()
        with pytest.raises(ConfigError, match="another process is writing"), RunFolder(shallow).lock():
            pass
    with run.lock():
        pass


def test_what_a_run_keeps_may_change_and_does_not_ask_for_more_than_it_writes(ppdgrow: Command) -> None:
    line = "train --layers 1 --steps 20 --quiet --out k"
    ppdgrow(line, *TINY, "-o", "train.keep=100000000")
    assert len(RunFolder(Path("k")).checkpoints()) == 4
    shutil.rmtree(RunFolder(Path("k")).checkpoints()[-1])
    ppdgrow(line, *TINY, "-o", "train.keep=1", "-o", "train.accumulate=2")
    assert len(RunFolder(Path("k")).checkpoints()) <= 2
    recipe = Path("k/recipe.yaml").read_text()
    assert "keep: 1 " in recipe, "grow and probe find what the run goes on with"
    assert "accumulate: 2 " in recipe


@pytest.mark.parametrize("name", ["recipe.yaml", "growth.jsonl"])
def test_a_run_that_lacks_a_file_is_not_said_to_be_another(ppdgrow: Command, shallow: Path, name: str) -> None:
    (shallow / name).unlink()
    failed = ppdgrow("train --layers 2 --steps 10 --no-decay --out shallow --quiet", *TINY, code=2).stderr
    assert f"lacks its {name}: restore the file" in failed
    assert "remove" not in failed


@pytest.mark.parametrize("line", ["train --layers 1 --steps 1 --out", "grow shallow --out"])
def test_a_name_that_is_too_long_is_no_bug(ppdgrow: Command, shallow: Path, line: str) -> None:
    assert "cannot be made (File name too long)" in ppdgrow(line, "x" * 300, code=2).stderr


def test_a_closed_terminal_saves_like_any_other_end(ppdgrow: Command, stop_at: Any) -> None:
    line = "train --layers 1 --steps 12 --quiet --out h"
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        stop_at(7, signal.SIGHUP)
        assert "interrupted at step 7, which is saved" in ppdgrow(line, *TINY, code=129).stderr
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
        stop_at(9, signal.SIGHUP)
        ppdgrow(line, *TINY)
    finally:
        signal.signal(signal.SIGHUP, before)
