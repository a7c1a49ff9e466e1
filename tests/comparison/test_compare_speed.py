"""Fifty runs of ten thousand steps are compared on a grid, into a document of bounded size."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from synthetic_runs import ENVIRONMENT, IDENTITY, architecture, figures, growth, write_lines

from ppdgrow.checkpoint import Checkpoint, RunFolder, write_checkpoint
from ppdgrow.comparison.compare import compare_runs
from ppdgrow.comparison.curves import GRID
from ppdgrow.config.load import Layer, dump, resolve
from ppdgrow.config.state import Ledger, TrainerState, Validation

ARMS, SEEDS, STEPS, EVERY = 10, 5, 10_000, 100
LINES = [
    f'"step": {step}, "train_loss": {5.0 - step * 1e-4:.6f}, "lr": 0.002, "grad_norm": {1 + step % 7}, '
    f'"grad_norm_new": {1 + step % 5}, "tokens": {step * 8}, "flops": {step * 10}'
    for step in range(1, STEPS + 1)
]


def loss_at(arm: int, seed: int, step: int) -> float:
    return 5.0 - step * 1e-4 - 0.01 * arm + 0.001 * seed


def write_long_run(path: Path, arm: int, seed: int) -> None:
    """What write_run writes, its many lines as text."""
    evaluated = {
        step: f', "timing": {{"seconds": {step}.0}}, "validation": {json.dumps(figures(loss_at(arm, seed, step)))}'
        for step in range(EVERY, STEPS + 1, EVERY)
    }
    text = "".join(f"{{{line}{evaluated.get(step, '')}}}\n" for step, line in enumerate(LINES, start=1))
    run = RunFolder(path)
    path.mkdir(parents=True)
    run.recipe_path.write_text(dump(resolve([Layer("test", {"train.seed": seed})])), encoding="utf-8")
    run.metrics_path.write_text(text, encoding="utf-8")
    start = {"event": "train", "step": 0, "steps": STEPS, "parent": None, "parent_sha256": None, "seed": seed}
    write_lines(run.growth_path, [start, *([growth(STEPS // 2)] if arm else [])])
    state = TrainerState(
        step=STEPS,
        lr_factor=0.01,
        ledger=Ledger(tokens=STEPS * 8, flops=STEPS * 10, seconds=float(STEPS)),
        validation=Validation(**figures(loss_at(arm, seed, STEPS))),
        train_loss=4.0,
        data=IDENTITY,
        environment=ENVIRONMENT,
    )
    write_checkpoint(run.checkpoint_path(STEPS), Checkpoint(architecture(), {"w": torch.zeros(1)}, {}, {}, state, None))


@pytest.mark.slow
def test_fifty_long_runs_are_compared_on_a_grid(tmp_path: Path) -> None:
    for arm in range(ARMS):
        for seed in range(SEEDS):
            write_long_run(tmp_path / f"arm-{arm}" / f"seed-{seed}", arm, seed)
    document = compare_runs([tmp_path / f"arm-{arm}" for arm in range(ARMS)]).document()
    assert [len(arm["runs"]) for arm in document["arms"]] == [SEEDS] * ARMS
    assert {len(run["curve"]) for run in document["runs"]} == {STEPS // EVERY}
    assert all(len(curve["at"]) <= GRID for arm in document["arms"] for curve in arm["curves"].values())
    assert len(json.dumps(document)) < 50_000 * ARMS * SEEDS
