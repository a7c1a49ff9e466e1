"""A tiny checkpoint and the ways to damage it behind an agreeing manifest."""

from __future__ import annotations

import json
import resource
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ppdgrow.atomic import sha256_file
from ppdgrow.checkpoint import Checkpoint
from ppdgrow.config.architecture import TokenInput, new_architecture
from ppdgrow.config.schema import ModelConfig
from ppdgrow.config.state import DataIdentity, Environment, Ledger, TrainerState

ARCHITECTURE = new_architecture(ModelConfig(layers=1, width=8), "lm", TokenInput(vocabulary_size=5, sequence_length=4))


def tiny_checkpoint(step: int = 1, tokenizer: str | None = None) -> Checkpoint:
    """Four tensors of 40 bytes each, moments for all of them."""
    draw = torch.Generator().manual_seed(step)
    tensors = {f"t{index}": torch.randn(2, 5, generator=draw) for index in range(4)}
    moments = {
        name: {"exp_avg": tensor * 2, "exp_avg_sq": tensor**2, "step": torch.tensor(float(step))}
        for name, tensor in tensors.items()
    }
    state = TrainerState(
        step=step,
        lr_factor=1.0,
        ledger=Ledger(),
        validation=None,
        train_loss=None,
        data=DataIdentity(name="toy", tokenizer=None, sequence_length=4, sha256={}, validation_examples=1),
        environment=Environment(torch="2", device="cpu", threads=1, cpu_capability="x", precision="fp32"),
    )
    return Checkpoint(ARCHITECTURE, tensors, moments, {"cpu": torch.arange(16, dtype=torch.uint8)}, state, tokenizer)


def with_tensors(checkpoint: Checkpoint, **tensors: Tensor) -> Checkpoint:
    """The checkpoint with more weights."""
    return replace(checkpoint, tensors=checkpoint.tensors | tensors)


def file_bytes(folder: Path) -> dict[str, bytes]:
    """Every file of a folder by name."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def relist(folder: Path, *, drop: tuple[str, ...] = ()) -> None:
    """Write a manifest that agrees with the files as they are, so that the next line of defence is reached."""
    files = {
        path.name: {"sha256": sha256_file(path), "bytes": path.stat().st_size}
        for path in sorted(folder.iterdir())
        if path.name != "manifest.json" and path.name not in drop
    }
    (folder / "manifest.json").write_text(json.dumps({"format": 1, "files": files}), encoding="utf-8")


def raw_safetensors(header: str, data: bytes) -> bytes:
    """A safetensors file from the text of its header, sound or not."""
    encoded = header.encode("utf-8")
    return struct.pack("<Q", len(encoded)) + encoded + data


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """The kernel refuses what goes beyond `size` bytes in a file, as a full disk refuses the rest of one."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def edit_json(path: Path, **changes: Any) -> None:
    """Set top-level keys of a JSON file."""
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | changes), encoding="utf-8")
