"""The standard residual layer: the same-width baseline.

Shapes: B batch, T tokens, D width.
"""

from __future__ import annotations

from torch import Tensor

from ppdgrow.nn.branches import TwoBranches


class Residual(TwoBranches):
    """Pre-norm Transformer layer at full width: `x + f(x)`, then `x + g(x)`, on `(B, T, D)`.

    Source: Vaswani et al. 2017 with the pre-normalisation of Xiong et al. 2020.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Apply both residual branches to `(B, T, D)`."""
        x = x + self.f_of(x)
        return x + self.g_of(x)
