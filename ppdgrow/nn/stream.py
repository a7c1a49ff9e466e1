"""The two forms in which a hidden state travels: whole, or as two contiguous halves.

Shapes: B batch, T tokens, D width. A whole stream is `(B, T, D)`, a half `(B, T, D/2)`.
"""

from __future__ import annotations

import torch
from torch import Tensor

Halves = tuple[Tensor, Tensor]


def split(x: Tensor) -> Halves:
    """Cut `(..., D)` into its channel groups a and b, `(..., D/2)` each.

    Both are contiguous tensors of their own: a view of a larger tensor can take another kernel, and two
    members of a pair would then differ in the last bit.
    """
    a, b = x.chunk(2, dim=-1)
    return a.contiguous(), b.contiguous()


def join(halves: Halves) -> Tensor:
    """The inverse of `split`."""
    return torch.cat(halves, dim=-1)
