"""Initial values of named tensors: a pure function of (seed, name, shape, depth).

Because each tensor has a generator of its own, a model can be made, or a block added, in any order and
without building modules, with the same values.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ppdgrow.config.architecture import Architecture
from ppdgrow.nn.branches import STANDARD_DEVIATION
from ppdgrow.nn.model import tensor_shapes
from ppdgrow.nn.parts import NAMES, block_parts
from ppdgrow.seeding import generator


def initial_tensor(name: str, shape: tuple[int, ...], *, seed: int, deviation: float) -> Tensor:
    """Draw one tensor on the CPU in fp32: matrices are normal, biases and log scales 0, norm gains 1."""
    if len(shape) == 1:
        return torch.ones(shape) if name.endswith("norm.weight") else torch.zeros(shape)
    return torch.empty(shape).normal_(0.0, deviation, generator=generator(seed, "init", name))


def initial_tensors(architecture: Architecture, seed: int) -> Mapping[str, Tensor]:
    parts = {(block.id, part.role): part for block in architecture.blocks for part in block_parts(architecture, block)}

    def deviation(name: str) -> float:
        place = NAMES.parse(name)
        if place is None:
            return STANDARD_DEVIATION
        return parts[place.block, place.role].deviation(place.tensor, architecture.num_layers)

    return {
        name: initial_tensor(name, shape, seed=seed, deviation=deviation(name))
        for name, shape in tensor_shapes(architecture).items()
    }
