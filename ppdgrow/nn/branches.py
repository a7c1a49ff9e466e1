"""Branches: the functions f and g that a coupling adds to one half after reading the other.

Every branch normalises what it reads (and only that), transforms it, and ends in a linear map named `out`, so that
negating `out` negates the branch exactly. What is particular to it stands on its class: what it costs, how its tensors
are cut and drawn, whether it mixes tokens.

Shapes: B batch, T tokens, C channels of the branch, H heads, K kernel size. A stream of plain vectors has no T.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ppdgrow.nn.meta import without_memory
from ppdgrow.nn.scan import gated_scan

OUTPUT_PROJECTION = ("out.weight", "out.bias")
STANDARD_DEVIATION = 0.02
Axis = Literal["input", "inner", "output"]
Axes = Mapping[str, tuple[Axis, ...]]
Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class BranchConfig:
    """What a branch is built from: C, and those settings of the model that some branch needs."""

    channels: int
    heads: int
    ffn_multiplier: int
    kernel_size: int
    norm: Literal["layer", "rms"]


class Part(nn.Module):
    """A branch of a coupling, or the map of a linear pair."""

    # For `--source slice`: which units the dimensions of a submodule's weight stand for (those of its bias: the first).
    axes: ClassVar[Axes] = {}
    # Submodules drawn with deviation 1 / sqrt(fan-in), to hand on the size of what they read.
    fan_in: ClassVar[tuple[str, ...]] = ()
    mixes_tokens: ClassVar[bool] = False
    always_causal: ClassVar[bool] = False  # also where the task is not

    def __init__(self, config: BranchConfig) -> None:
        super().__init__()

    @classmethod
    def shapes(cls, config: BranchConfig) -> Shapes:
        """Shapes of its tensors by name."""
        return _shapes(cls, config)  # type: ignore[arg-type]  # mypy takes no class for hashable

    @classmethod
    def flops_per_token(cls, config: BranchConfig, tokens: int) -> int:
        """Forward FLOPs per token in a sequence of `tokens`: two for each weight of a matrix and tap of a convolution.

        A convolution of a single tap is an elementwise product, which is not counted.
        """
        return 2 * sum(math.prod(shape) for shape in cls.shapes(config).values() if len(shape) == 2 and shape[1] > 1)

    @classmethod
    def deviation(cls, tensor: str, shape: tuple[int, ...], num_layers: int) -> float:
        """Standard deviation with which a matrix is drawn: 0.02, of the output projection 0.02 / sqrt(2 L).

        So the stream's variance at the head does not depend on the depth (Radford et al. 2019, GPT-2).
        """
        if tensor.rpartition(".")[0] in cls.fan_in:
            return 1 / math.sqrt(shape[-1])
        return STANDARD_DEVIATION / (math.sqrt(2 * num_layers) if tensor in OUTPUT_PROJECTION else 1)


@cache
def _shapes(part: type[Part], config: BranchConfig) -> Shapes:
    with without_memory(config.channels):
        return {name: tuple(tensor.shape) for name, tensor in part(config).state_dict().items()}


def make_norm(name: Literal["layer", "rms"], channels: int) -> nn.Module:
    """LayerNorm or RMSNorm over the last dimension."""
    return nn.LayerNorm(channels) if name == "layer" else nn.RMSNorm(channels, eps=1e-5)


class Branch(Part):
    """Base of all branches: the norm, and the form in which they are called."""

    axes: ClassVar[Axes] = {"norm": ("input",), "up": ("inner", "input"), "mix": ("inner",), "out": ("output", "inner")}

    def __init__(self, config: BranchConfig) -> None:
        super().__init__(config)
        self.norm = make_norm(config.norm, config.channels)

    def forward(self, x: Tensor, *, causal: bool, dropout: float = 0.0) -> Tensor:
        """Apply to `(B, T, C)`, or `(B, C)` where no tokens are mixed; of the same shape.

        With `causal`, token t sees tokens 0..t only. Dropout falls on the output while training.
        """
        return F.dropout(self.transform(self.norm(x), causal), dropout, self.training)

    def transform(self, x: Tensor, causal: bool) -> Tensor:
        """What the branch does with what it read, normalised."""
        raise NotImplementedError


class MLP(Branch):
    """Channelwise two-layer perceptron with GELU. Source: Vaswani et al. 2017, equation 2."""

    def __init__(self, config: BranchConfig) -> None:
        super().__init__(config)
        hidden = config.ffn_multiplier * config.channels
        self.up = nn.Linear(config.channels, hidden)
        self.out = nn.Linear(hidden, config.channels)

    def transform(self, x: Tensor, causal: bool) -> Tensor:
        return self.out(F.gelu(self.up(x), approximate="tanh"))


class Attention(Branch):
    """Multi-head self-attention. Source: Vaswani et al. 2017, section 3.2."""

    # Every second row of q, k and v: half of each head's channels.
    axes: ClassVar[Axes] = {**Branch.axes, "qkv": ("inner", "input")}
    mixes_tokens = True

    def __init__(self, config: BranchConfig) -> None:
        super().__init__(config)
        self.heads = config.heads
        self.qkv = nn.Linear(config.channels, 3 * config.channels)
        self.out = nn.Linear(config.channels, config.channels)

    def transform(self, x: Tensor, causal: bool) -> Tensor:
        batch, tokens, channels = x.shape
        qkv = self.qkv(x).view(batch, tokens, 3, self.heads, channels // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=causal)
        return self.out(mixed.transpose(1, 2).reshape(batch, tokens, channels))

    @classmethod
    def flops_per_token(cls, config: BranchConfig, tokens: int) -> int:
        """With the scores and values over all tokens, also where a causal mask hides half of them."""
        return super().flops_per_token(config, tokens) + 4 * tokens * config.channels


class Recurrence(Branch):
    """Gated linear recurrence h_t = a_t h_(t-1) + (1 - a_t) v_t, with value v and gate a from token t alone.

    Always causal. Sources: Martin & Cundy 2018 (parallel scan), Feng et al. 2024 (minGRU).
    """

    axes: ClassVar[Axes] = {**Branch.axes, "gates": ("inner", "input")}
    mixes_tokens = True
    always_causal = True

    def __init__(self, config: BranchConfig) -> None:
        super().__init__(config)
        self.gates = nn.Linear(config.channels, 2 * config.channels)
        self.out = nn.Linear(config.channels, config.channels)

    def transform(self, x: Tensor, causal: bool) -> Tensor:
        """Values and gates are formed in the working precision, the scan is fp32."""
        value, gate = self.gates(x).chunk(2, dim=-1)
        return self.out(gated_scan(value, gate).to(value.dtype))


class Convolution(Branch):
    """Depthwise convolution along the tokens between two projections; causal or centred as the task is.

    Source: the token mixer of Wu et al. 2019 (lightweight convolution) without its softmax.
    """

    fan_in = ("mix",)
    mixes_tokens = True

    def __init__(self, config: BranchConfig) -> None:
        super().__init__(config)
        self.up = nn.Linear(config.channels, config.channels)
        self.mix = DepthwiseLinear(config.channels, config.kernel_size)
        self.out = nn.Linear(config.channels, config.channels)

    def transform(self, x: Tensor, causal: bool) -> Tensor:
        return self.out(F.gelu(self.mix(self.up(x), causal), approximate="tanh"))


class Depthwise(Branch):
    """For each channel one linear map along the tokens: a convolution with K taps and nothing else."""

    axes: ClassVar[Axes] = {**Branch.axes, "out": ("output",)}
    mixes_tokens = True

    def __init__(self, config: BranchConfig) -> None:
        super().__init__(config)
        self.out = DepthwiseLinear(config.channels, config.kernel_size)

    def transform(self, x: Tensor, causal: bool) -> Tensor:
        return self.out(x, causal)


class Affine(Branch):
    """For each channel an affine map, GELU, and another: what `depthwise` is on plain vectors."""

    axes: ClassVar[Axes] = {"norm": ("input",), "mix": ("input",), "out": ("output",)}
    fan_in = ("mix",)

    def __init__(self, config: BranchConfig) -> None:
        super().__init__(config)
        self.mix = DepthwiseLinear(config.channels, 1)
        self.out = DepthwiseLinear(config.channels, 1)

    def transform(self, x: Tensor, causal: bool) -> Tensor:
        return self.out(F.gelu(self.mix(x, causal), approximate="tanh"), causal)


class DepthwiseLinear(nn.Module):
    """A linear map of K taps along the tokens for each channel: weight `(C, K)`, bias `(C,)`."""

    def __init__(self, channels: int, kernel_size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, kernel_size))
        self.bias = nn.Parameter(torch.empty(channels))

    def forward(self, x: Tensor, causal: bool) -> Tensor:
        """Apply to `(B, T, C)`: token t sees t-K+1..t if causal, else K tokens around it. K = 1 needs no T."""
        taps = self.weight.shape[1]
        if taps == 1:
            return x * self.weight[:, 0] + self.bias
        left = taps - 1 if causal else taps // 2
        padded = F.pad(x.transpose(1, 2), (left, taps - 1 - left))
        return F.conv1d(padded, self.weight[:, None], self.bias, groups=x.shape[-1]).transpose(1, 2)


# The closed registry of branches, those above, by the name of the class in lower case.
BRANCHES: dict[str, type[Branch]] = {branch.__name__.lower(): branch for branch in Branch.__subclasses__()}
