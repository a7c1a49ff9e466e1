"""Tiny models with pairs that were trained a little: their pairs are no longer the identity."""

from __future__ import annotations

import atexit
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from tiny_models import make_folder

from ppdgrow.pretrained.folder import read_folder
from ppdgrow.pretrained.load import load_pretrained
from ppdgrow.pretrained.pairs import grow_pairs

KINDS = ("attention", "ffn", "orthogonal")
PLACES = (0, 2, 4)  # before the first layer, between two, after the last


def grown_folder(
    name: str, where: Path, *, kinds: Sequence[str] = KINDS, positions: Sequence[int] = PLACES, **options: Any
) -> tuple[Path, Path]:
    """A parent and the folder grown from it."""
    growth = {key: options.pop(key) for key in ("source", "scale", "seed") if key in options}
    parent = make_folder(name, where / "parent", **options)
    grow_pairs(read_folder(parent), kinds=kinds, positions=positions, out=where / "grown", **growth)
    return parent, where / "grown"


def trained_model(folder: Path) -> Any:
    """The model of a folder with its pairs moved away from the identity."""
    model = load_pretrained(folder).eval()
    draw = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in pair_parameters(model).values():
            parameter.add_(torch.randn(parameter.shape, generator=draw).to(parameter.dtype), alpha=0.05)
    return model


def pair_parameters(model: Any) -> dict[str, torch.nn.Parameter]:
    return {name: parameter for name, parameter in model.named_parameters() if ".pairs." in name}


@cache
def folders(name: str) -> tuple[Path, Path]:
    """The parent of a family and what was grown from it, made once for all tests, which only read them."""
    kept = tempfile.TemporaryDirectory()
    atexit.register(kept.cleanup)
    return grown_folder(name, Path(kept.name))
