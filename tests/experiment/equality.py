"""What two runs must agree in to be the same run to the bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from ppdgrow.checkpoint import RunFolder, read_checkpoint, read_jsonl

# What depends on the clock, on where a run lies, or on who started it.
NOT_COMPARED = ("timing", "parent", "parent_sha256", "provenance")


def result(run: str, step: int | None = None) -> dict[str, Any]:
    """All that must not depend on where the run was stopped or what it tried, at a step (default: the newest)."""
    folder = RunFolder(Path(run))
    final = folder.newest_valid() if step is None else folder.checkpoint_path(step)
    assert final is not None
    checkpoint = read_checkpoint(final)
    flat = {f"weight {name}": t for name, t in checkpoint.tensors.items()}
    flat |= {f"{key} {name}": t for name, state in checkpoint.moments.items() for key, t in state.items()}
    flat |= {f"rng {name}": t for name, t in checkpoint.rng.items()}
    lines = [{key: value for key, value in line.items() if key != "timing"} for line in read_jsonl(folder.metrics_path)]
    lines = [line for line in lines if line["step"] <= checkpoint.state.step]
    ledger = checkpoint.state.ledger
    return {"step": checkpoint.state.step, "tensors": flat, "metrics": lines, "cost": (ledger.tokens, ledger.flops)}


def same(x: dict[str, Any], y: dict[str, Any]) -> bool:
    """Whether two results are equal, tolerance zero."""
    return (
        all(x[key] == y[key] for key in ("step", "metrics", "cost"))
        and x["tensors"].keys() == y["tensors"].keys()
        and all(torch.equal(x["tensors"][name], y["tensors"][name]) for name in x["tensors"])
    )


def events(run: str) -> list[dict[str, Any]]:
    """The lines of `growth.jsonl` without clock and place."""
    lines = read_jsonl(Path(run) / "growth.jsonl")
    return [{key: value for key, value in line.items() if key not in NOT_COMPARED} for line in lines]
