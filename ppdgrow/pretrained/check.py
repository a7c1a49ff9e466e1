"""Whether two folders hold the same function: the outputs of both on one synthetic batch, compared to the last bit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ppdgrow.pretrained.library import quiet
from ppdgrow.pretrained.load import load_pretrained
from ppdgrow.seeding import generator

MAX_TOKENS = 64


def same_outputs(before: Path, after: Path, device: torch.device) -> bool:
    """Whether all outputs are equal to the last bit, in the type in which the weights are stored.

    One model is in memory at a time. NaN equals nothing.
    """
    expected, found = (outputs(path, device) for path in (before, after))
    return expected.keys() == found.keys() and all(torch.equal(expected[name], found[name]) for name in expected)


@torch.no_grad()
def outputs(path: Path, device: torch.device) -> dict[str, Tensor]:
    """What a model makes of the synthetic batch, by the names of its outputs, on the CPU."""
    # What a folder lacks, such as a pooler, is drawn: the same for both.
    with quiet(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = load_pretrained(path)
    found = run_synthetic(model.to(device).eval())
    return {name: value.cpu() for name, value in found.items()}


def run_synthetic(model: Any) -> dict[str, Tensor]:
    """The tensors that a model returns for the synthetic batch, by name, the main one first."""
    device = next(model.parameters()).device
    inputs = {name: value.to(device) for name, value in synthetic_inputs(model)}
    if type(model).__name__.endswith("ForMultipleChoice"):  # (B, choices, T)
        inputs = {name: value[None] for name, value in inputs.items()}
    result = model(**inputs, **({"use_cache": False} if "input_ids" in inputs else {}))
    return {name: value for name, value in result.items() if isinstance(value, Tensor)}


def synthetic_inputs(model: Any) -> Iterator[tuple[str, Tensor]]:
    """Two sequences of tokens `(2, T)`, of which the second is padded, or two images `(2, C, H, W)`."""
    config, draw = model.config, generator(0, "synthetic inputs")
    if model.main_input_name == "pixel_values":
        sides = config.image_size if isinstance(config.image_size, list | tuple) else (config.image_size,) * 2
        images = torch.randn(2, config.num_channels, *sides, generator=draw)
        yield "pixel_values", images.to(next(model.parameters()).dtype)
        return
    longest = getattr(config, "max_position_embeddings", None)  # none where there are no positions to learn
    length = MAX_TOKENS if longest is None else max(2, min(MAX_TOKENS, longest // 2))
    mask = torch.ones(2, length, dtype=torch.long)
    mask[1, length // 2 :] = 0
    yield "input_ids", torch.randint(config.vocab_size, (2, length), generator=draw)
    yield "attention_mask", mask
