"""What pruning keeps: the newest checkpoints, the best one, and whatever training could not go on without."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from tiny_checkpoints import relist, tiny_checkpoint

from ppdgrow.checkpoint import RunFolder, read_checkpoint, read_state, write_checkpoint
from ppdgrow.config.state import Validation


def save(run: RunFolder, step: int, loss: float | None) -> None:
    checkpoint = tiny_checkpoint(step)
    validation = None if loss is None else Validation(loss=loss, accuracy=0.5)
    state = checkpoint.state.model_copy(update={"validation": validation})
    write_checkpoint(run.checkpoint_path(step), replace(checkpoint, state=state))


def steps(run: RunFolder) -> list[int]:
    return [read_state(folder).step for folder in run.checkpoints()]


def kept_of(history: list[float | None], keep: int) -> list[int]:
    """The rule, anew: after each save the newest `keep` and, of what was there, the first of the lowest losses."""
    kept: list[int] = []
    for step in range(1, len(history) + 1):
        kept.append(step)
        losses = [(loss, one) for one in kept if (loss := history[one - 1]) is not None]
        best = min(losses)[1] if losses else None
        kept = [one for one in kept if one in kept[-keep:] or one == best]
    return kept


@pytest.mark.parametrize("seed", range(12))
def test_random_histories_of_losses(tmp_path: Path, seed: int) -> None:
    """Few different values, so that there are ties; some steps are saved without an evaluation."""
    draw = random.Random(seed)
    history = [draw.choice([None, 1.0, 2.0, 3.0, 4.0]) for _ in range(9)]
    keep = draw.randint(1, 3)
    run = RunFolder(tmp_path)
    for step, loss in enumerate(history, start=1):
        save(run, step, loss)
        run.prune(keep)
        assert steps(run) == kept_of(history[:step], keep)
    losses = [loss for loss in history if loss is not None]
    best = run.best()
    assert best is not None
    figures = read_state(best).validation
    assert figures is not None
    assert figures.loss == min(losses), "the best of the whole history is there at its end"
    assert len(run.checkpoints()) <= keep + 1
    assert run.newest_valid() == run.checkpoint_path(len(history)), "what a run folder stands for is the newest"


def test_control_without_the_best_a_history_ends_otherwise() -> None:
    assert kept_of([1.0, 2.0, 3.0], 1) == [1, 3]
    assert kept_of([None, 2.0, 3.0], 1) == [2, 3]
    assert kept_of([None, None, None], 1) == [3]
    assert kept_of([2.0, 2.0, 1.0, 1.0], 1) == [3, 4]


def test_a_best_checkpoint_that_is_damaged_gives_way_to_the_next(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    for step, loss in enumerate([1.0, 2.0, 3.0, 4.0], start=1):
        save(run, step, loss)
    (run.checkpoint_path(1) / "model.safetensors").write_bytes(b"")
    assert run.best() == run.checkpoint_path(2)
    run.prune(1)
    assert steps(run) == [2, 4]


def test_where_all_newest_are_damaged_the_best_and_the_newest_whole_one_stay(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    for step, loss in enumerate([1.0, 2.0, 3.0, 4.0, 5.0], start=1):
        save(run, step, loss)
    for step in (4, 5):
        (run.checkpoint_path(step) / "config.json").write_text("{")
    run.prune(2)
    assert steps(run) == [1, 3, 4, 5]
    read_checkpoint(run.checkpoint_path(3))


def test_a_state_that_cannot_be_read_is_no_candidate(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    save(run, 1, 1.0)
    save(run, 2, 2.0)
    state = run.checkpoint_path(1) / "trainer_state.json"
    state.write_text(state.read_text(encoding="utf-8").replace('"loss": 1.0', '"loss": NaN'), encoding="utf-8")
    relist(run.checkpoint_path(1))
    assert run.best() == run.checkpoint_path(2)
    assert RunFolder(tmp_path / "none").best() is None
