"""Run folders with chosen figures, written as the trainer writes them, for the tests of `compare`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ppdgrow.checkpoint import Checkpoint, RunFolder, write_checkpoint
from ppdgrow.config.architecture import Architecture, ImageInput, TokenInput, new_architecture
from ppdgrow.config.kinds import Task
from ppdgrow.config.load import Layer, dump, resolve
from ppdgrow.config.schema import ModelConfig
from ppdgrow.config.state import Cost, DataIdentity, Environment, Ledger, TrainerState, Validation

IDENTITY = DataIdentity(
    name="stdlib",
    tokenizer="byte",
    sequence_length=16,
    sha256={"train": "a" * 64, "validation": "b" * 64},
    validation_examples=64,
)
ENVIRONMENT = Environment(torch="2.14.1", device="cpu", threads=1, cpu_capability="AVX2", precision="fp32")


def architecture(layers: int = 2, task: Task = "lm") -> Architecture:
    spec: TokenInput | ImageInput = TokenInput(vocabulary_size=256, sequence_length=16)
    if task == "classify":
        spec = ImageInput(channels=3, height=8, width=8, patch_size=4, num_classes=10)
    return new_architecture(ModelConfig(layers=layers, width=16, heads=2), task, spec)


def figures(loss: float, accuracy: float = 0.5) -> dict[str, Any]:
    return {"loss": loss, "accuracy": accuracy, "perplexity": None, "bits_per_byte": None}


def metrics_line(step: int, *, flops: float = 10.0, seconds: float = 1.0, **changes: Any) -> dict[str, Any]:
    """An ordinary line; `flops` and `seconds` are per step."""
    line = {"step": step, "train_loss": 5.0 - step * 1e-4, "lr": 2e-3, "grad_norm": 1.0, "tokens": step * 8}
    return line | {"flops": step * flops, "timing": {"seconds": step * seconds}} | changes


def write_run(
    path: Path,
    losses: Mapping[int, float],
    *,
    steps: int | None = None,
    accuracy: float = 0.5,
    flops: float = 10.0,
    seconds: float = 1.0,
    lines: Callable[[int], Mapping[str, Any]] = lambda step: {},
    events: Sequence[Mapping[str, Any]] = (),
    seed: int = 0,
    batch_size: int = 4,
    lr_factor: float = 0.01,
    layers: int = 2,
    task: Task = "lm",
    identity: Mapping[str, Any] | None = None,
    environment: Mapping[str, Any] | None = None,
    mask_fraction: float = 0.15,
    trials: Cost | None = None,
    recipe: Mapping[str, Any] | None = None,
) -> Path:
    """A finished run, evaluated with `losses` at their steps. `lines` changes single lines of metrics."""
    last = steps if steps is not None else max(losses)
    written = []
    for step in range(1, last + 1):
        line = metrics_line(step, flops=flops, seconds=seconds)
        if step in losses:
            line["validation"] = figures(losses[step], accuracy)
        written.append(line | dict(lines(step)))
    start = {"event": "train", "step": 0, "steps": last, "parent": None, "parent_sha256": None, "seed": seed}
    state = TrainerState(
        step=last,
        lr_factor=lr_factor,
        ledger=Ledger(tokens=last * 8, flops=round(last * flops), seconds=last * seconds, trials=trials or Cost()),
        validation=Validation(**figures(losses[last], accuracy)) if last in losses else None,
        train_loss=4.9,
        data=IDENTITY.model_copy(update=dict(identity or {})),
        environment=ENVIRONMENT.model_copy(update=dict(environment or {})),
    )
    run = RunFolder(path)
    path.mkdir(parents=True)
    values = {"train.seed": seed, "train.batch_size": batch_size, "data.mask_fraction": mask_fraction}
    values |= dict(recipe or {})
    run.recipe_path.write_text(dump(resolve([Layer("test", values)])), encoding="utf-8")
    write_lines(run.metrics_path, written)
    write_lines(run.growth_path, [start, *events])
    checkpoint = Checkpoint(architecture(layers, task), {"w": torch.zeros(1)}, {}, {}, state, None)
    write_checkpoint(run.checkpoint_path(last), checkpoint)
    return path


def write_lines(path: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def growth(step: int, before: float | None = 4.0, after: float | None = 4.0, **changes: Any) -> dict[str, Any]:
    """A line of growth.jsonl."""
    return {
        "event": "grow",
        "step": step,
        "parent": "runs/shallow/checkpoints/step-00000010",
        "parent_sha256": "c" * 64,
        "method": "pair",
        "kinds": ["ffn"],
        "positions": [1],
        "ids": ["p1"],
        "layers_before": 2,
        "layers_after": 4,
        "loss_before": before,
        "loss_after": after,
        "bit_exact": None if before is None else before == after,
        "seed": 0,
    } | changes


def trial(name: str, step: int, until: int, decision: str, **changes: Any) -> list[dict[str, Any]]:
    """The three lines of growth.jsonl that one try of a progressive run leaves; `changes` are of its `grow` line."""
    common = {"step": step, "until": until, "trial": name, "decision": decision}
    losses = {"loss_before": 4.0, "loss_after": 4.0}
    return [
        {**growth(step), **common, **changes},
        {"event": "check", **common, **losses, "bit_exact": True, "passed": True},
        {"event": "decision", **common, "retry": False, "rule": "parent"},
    ]
