"""Initial values of named tensors: a pure function of (seed, name, shape, depth).

Because each tensor has a generator of its own, a model can be made, or a block added, in any order and
without building modules, with the same values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from ppdgrow.config.architecture import Architecture
from ppdgrow.nn.model import tensor_shapes
from ppdgrow.seeding import generator

STANDARD_DEVIATION = 0.02


def initial_tensor(name: str, shape: tuple[int, ...], *, seed: int, num_layers: int) -> Tensor:
    """Draw one tensor on the CPU in fp32.

    Matrices are normal with standard deviation 0.02, the output projections of branches 0.02 / sqrt(2 L) for
    L layers, so that the stream's variance at the head does not depend on the depth (Radford et al. 2019,
    GPT-2). The K taps of a depthwise map inside a branch have 1 / sqrt(K), the D x D parameters of an orthogonal map
    1 / sqrt(D). Biases and log scales are 0, norm gains 1.
    """
    if len(shape) == 1:
        return torch.ones(shape) if name.endswith("norm.weight") else torch.zeros(shape)
    deviation = STANDARD_DEVIATION
    if name.startswith("blocks.") and name.endswith(".out.weight"):
        deviation /= math.sqrt(2 * num_layers)
    elif name.endswith((".mix.weight", ".original")):
        deviation = 1 / math.sqrt(shape[1])
    return torch.empty(shape).normal_(0.0, deviation, generator=generator(seed, "init", name))


def initial_tensors(architecture: Architecture, seed: int) -> Mapping[str, Tensor]:
    """All tensors of a new model."""
    return {
        name: initial_tensor(name, shape, seed=seed, num_layers=architecture.num_layers)
        for name, shape in tensor_shapes(architecture).items()
    }
