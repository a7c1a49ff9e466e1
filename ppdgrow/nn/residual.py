"""The standard residual layer: the same-width baseline.

Shapes: B batch, T tokens, D width.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from ppdgrow.nn.branches import BRANCHES, COUPLING_KINDS


class Residual(nn.Module):
    """Pre-norm Transformer layer at full width: `x + f(x)`, then `x + g(x)`, on `(B, T, D)`.

    Source: Vaswani et al. 2017 with the pre-normalisation of Xiong et al. 2020.
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

    def forward(self, x: Tensor) -> Tensor:
        """Apply both residual branches to `(B, T, D)`."""
        x = x + self.f(x, causal=self.causal, dropout=self.dropout)
        return x + self.g(x, causal=self.causal, dropout=self.dropout)
