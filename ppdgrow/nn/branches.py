"""Branches: the functions f and g that a coupling adds to one half after reading the other.

Every branch normalises what it reads (and only that), transforms it, and ends in a linear output projection
named `out`, so that negating `out` negates the branch exactly.

Shapes: B batch, T tokens, C channels of the branch, H heads.
"""

from __future__ import annotations

from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

OUTPUT_PROJECTION = ("out.weight", "out.bias")


def make_norm(name: Literal["layer", "rms"], channels: int) -> nn.Module:
    """LayerNorm or RMSNorm over the last dimension."""
    return nn.LayerNorm(channels) if name == "layer" else nn.RMSNorm(channels, eps=1e-5)


class MLP(nn.Module):
    """Channelwise two-layer perceptron with GELU: `(..., C) -> (..., C)`.

    Source: Vaswani et al. 2017, equation 2, with pre-normalisation.
    """

    def __init__(self, channels: int, *, heads: int, ffn_multiplier: int, norm: Literal["layer", "rms"]) -> None:
        super().__init__()
        self.norm = make_norm(norm, channels)
        self.up = nn.Linear(channels, ffn_multiplier * channels)
        self.out = nn.Linear(ffn_multiplier * channels, channels)

    def forward(self, x: Tensor, *, causal: bool, dropout: float = 0.0) -> Tensor:
        """Apply to `(B, T, C)`; `causal` does not matter to a branch that mixes no tokens."""
        hidden = F.gelu(self.up(self.norm(x)), approximate="tanh")
        return F.dropout(self.out(hidden), dropout, self.training)


class Attention(nn.Module):
    """Multi-head self-attention: `(B, T, C) -> (B, T, C)`.

    Source: Vaswani et al. 2017, section 3.2, with pre-normalisation.
    """

    def __init__(self, channels: int, *, heads: int, ffn_multiplier: int, norm: Literal["layer", "rms"]) -> None:
        super().__init__()
        self.heads = heads
        self.norm = make_norm(norm, channels)
        self.qkv = nn.Linear(channels, 3 * channels)
        self.out = nn.Linear(channels, channels)

    def forward(self, x: Tensor, *, causal: bool, dropout: float = 0.0) -> Tensor:
        """Attend within each sequence; with `causal`, token t sees tokens 0..t only."""
        batch, tokens, channels = x.shape
        qkv = self.qkv(self.norm(x)).view(batch, tokens, 3, self.heads, channels // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=causal)
        mixed = mixed.transpose(1, 2).reshape(batch, tokens, channels)
        return F.dropout(self.out(mixed), dropout, self.training)


# The closed registries: a branch by name, and which branches f and g of each coupling kind are.
BRANCHES: dict[str, type[MLP] | type[Attention]] = {"mlp": MLP, "attention": Attention}
COUPLING_KINDS: dict[str, tuple[str, str]] = {"ffn": ("mlp", "mlp"), "attention": ("attention", "mlp")}


class TwoBranches(nn.Module):
    """The branches f and g of a coupling kind, on C channels each, with what both need to know to run.

    Args:
        kind: a key of `COUPLING_KINDS`.
        channels: C, which both branches read and write.
        heads, ffn_multiplier, norm: see the branches.
        causal: whether token t sees tokens 0..t only.
        dropout: on the outputs of the branches, while training.
    """

    def __init__(
        self,
        kind: str,
        channels: int,
        *,
        heads: int,
        ffn_multiplier: int,
        norm: Literal["layer", "rms"],
        causal: bool,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        f, g = COUPLING_KINDS[kind]
        self.f = BRANCHES[f](channels, heads=heads, ffn_multiplier=ffn_multiplier, norm=norm)
        self.g = BRANCHES[g](channels, heads=heads, ffn_multiplier=ffn_multiplier, norm=norm)
        self.causal = causal
        self.dropout = dropout

    def f_of(self, x: Tensor) -> Tensor:
        """The term of f, of the shape of what it reads."""
        return self.f(x, causal=self.causal, dropout=self.dropout)

    def g_of(self, x: Tensor) -> Tensor:
        """The term of g, of the shape of what it reads."""
        return self.g(x, causal=self.causal, dropout=self.dropout)
