"""Linear pairs: W and then its inverse, on the full vector, evaluated so that equal members cancel to the last bit.

Shapes: a stream is `(..., D)`; the maps work on the halves joined.

    y = x + W-^-1 ((W+ - W-) x)          = W-^-1 W+ x
    x = y + W+^-1 ((W- - W+) y)

A purely linear pair adds little expressive power: these kinds are controls. They are not folded.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from ppdgrow.nn.branches import BranchConfig, Part
from ppdgrow.nn.coupling import Halves, join, split


class LinearMap(Part):
    """An invertible D x D matrix W; D are the channels of its config. To form it is per step, and not in its FLOPs."""

    def matrices(self) -> tuple[Tensor, Tensor]:
        """W and W^-1, formed outside autocast in the type of the parameters."""
        raise NotImplementedError

    def orthogonal_factor(self) -> Tensor:
        """The part of W that is orthogonal by construction."""
        return self.matrices()[0]


class OrthogonalMap(LinearMap):
    """An orthogonal D x D matrix W, which stays one while its parameters train; W^-1 is W^T.

    W is the Cayley transform of a skew-symmetric matrix, by `torch.nn.utils.parametrizations.orthogonal`. Of torch's
    three maps it was the most accurate, and from some width on by far the fastest (`tests/bench/bench_orthogonal.py`).
    There is no stored base, so that all of W is in one tensor. Forming W costs O(D^3) per step, not per token.
    """

    fan_in = ("map.parametrizations.weight",)

    def __init__(self, config: BranchConfig) -> None:
        super().__init__(config)
        width = config.channels
        self.map = parametrizations.orthogonal(
            nn.Linear(width, width, bias=False), orthogonal_map="cayley", use_trivialization=False
        )

    def matrices(self) -> tuple[Tensor, Tensor]:
        with torch.autocast(next(self.parameters()).device.type, enabled=False):
            weight = self.map.weight
        assert isinstance(weight, Tensor)
        return weight, weight.mT


class ScaledMap(LinearMap):
    """An invertible D x D matrix W = Q diag(exp(s)) with the exact inverse diag(exp(-s)) Q^T."""

    fan_in = tuple(f"rotation.{name}" for name in OrthogonalMap.fan_in)

    def __init__(self, config: BranchConfig) -> None:
        super().__init__(config)
        self.rotation = OrthogonalMap(config)
        self.log_scale = nn.Parameter(torch.empty(config.channels))

    def matrices(self) -> tuple[Tensor, Tensor]:
        rotation, inverse = self.rotation.matrices()
        return rotation * self.log_scale.exp(), (-self.log_scale).exp()[:, None] * inverse

    def orthogonal_factor(self) -> Tensor:
        return self.rotation.matrices()[0]


# The closed registry of linear maps by name.
LINEAR_MAPS: dict[str, type[LinearMap]] = {"orthogonal": OrthogonalMap, "linear": ScaledMap}


class LinearPair(nn.Module):
    """W with theta+ (`plus`) and then W^-1 with theta- (`minus`; None while the pair is tied)."""

    form: Literal["inverse"] = "inverse"

    def __init__(self, plus: LinearMap, minus: LinearMap | None) -> None:
        super().__init__()
        self.plus = plus
        self.minus = minus

    def forward(self, halves: Halves) -> Halves:
        (plus, _), (minus, minus_inverse) = self._members()
        return self._through(halves, plus - minus, minus_inverse)

    def inverse(self, halves: Halves) -> Halves:
        """Undo `forward`, up to rounding."""
        (plus, plus_inverse), (minus, _) = self._members()
        return self._through(halves, minus - plus, plus_inverse)

    def _members(self) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        plus = self.plus.matrices()
        return plus, plus if self.minus is None else self.minus.matrices()

    @staticmethod
    def _through(halves: Halves, difference: Tensor, inverse: Tensor) -> Halves:
        x = join(halves)
        return split(x + F.linear(F.linear(x, difference), inverse))
