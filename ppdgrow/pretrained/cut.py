"""How the branch of a pair is cut from a layer of the model: half of its inputs, outputs, hidden units and heads.

With width D, h = D/2: half a is [0:h], half b is [h:2h]. f reads b and writes a; g reads a and writes b. Of the hidden
units f takes the odd ones and g the even; of the heads f takes the first half and g the last, key and value heads
with their query heads, so that each head works as it did.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ppdgrow.pretrained.families import AXES, Family


@dataclass(frozen=True)
class LayerSizes:
    """What a layer's axes consist of. `heads` share the `key_heads` evenly."""

    width: int
    heads: int
    key_heads: int
    head_dim: int
    inner: int

    def half(self) -> LayerSizes:
        """Those of a branch: of an odd number of heads the greater half."""
        key_heads = (self.key_heads + 1) // 2
        per_key = self.heads // self.key_heads
        heads = key_heads * per_key if self.key_heads > 1 else (self.heads + 1) // 2
        return LayerSizes(self.width // 2, heads, key_heads, self.head_dim, self.inner // 2)


def axes_of(family: Family, module: str) -> tuple[str, str] | None:
    """Output and input axis of a linear map, by its path in a layer; None for anything else, such as a norm."""
    return family.axes.get(module) or AXES.get(module.rpartition(".")[2])


@dataclass(frozen=True)
class Cut:
    """Which rows and columns of a tensor are taken (all columns where None), and the factor that goes with them."""

    rows: Tensor
    columns: Tensor | None = None
    factor: float = 1.0

    @property
    def last_row(self) -> int:
        return int(self.rows.max())

    def shape(self, source: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of what is taken of a tensor of that shape."""
        columns = source[1:] if self.columns is None else (len(self.columns),)
        return (len(self.rows), *columns)


def cut_of(
    shape: tuple[int, ...],
    module: str,
    *,
    family: Family,
    role: str,
    sizes: LayerSizes,
    transposed: bool,
    norm: bool,
) -> Cut:
    """What of a layer's tensor belongs to a branch.

    Args:
        shape: that of the layer's weight or bias.
        module: the path in the layer of the module that it belongs to.
        family: where the axes of its maps are named.
        role: `f` or `g`.
        sizes: those of the layer.
        transposed: the module stores its weight as `(input, output)`.
        norm: it normalises the stream, so that its gains go with what the branch reads.
    """
    indices = _indices(sizes, role)
    if norm:
        return Cut(indices["read"])
    axes = axes_of(family, module)
    if axes is None:  # a norm of single heads, for instance
        return Cut(torch.arange(shape[0]))
    output = _along(axes[0].replace("x", "w"), indices, sizes)
    if len(shape) == 1:
        return Cut(output)
    read = _along(axes[1].replace("x", "r"), indices, sizes)
    factor = math.sqrt(2.0) if axes[1] == "x" else 1.0  # half as many terms are summed
    return Cut(read, output, factor) if transposed else Cut(output, read, factor)


def _indices(sizes: LayerSizes, role: str) -> Mapping[str, Tensor]:
    """Which entries of each axis a branch takes: read, written, of queries, of keys and values, hidden."""
    half, first = sizes.half(), role == "f"
    a, b = torch.arange(half.width), torch.arange(half.width, 2 * half.width)

    def heads(count: int, total: int) -> Tensor:
        start = 0 if first else total - count
        return torch.arange(start * sizes.head_dim, (start + count) * sizes.head_dim)

    return {
        "read": b if first else a,
        "written": a if first else b,
        "queries": heads(half.heads, sizes.heads),
        "keys": heads(half.key_heads, sizes.key_heads),
        "hidden": torch.arange(sizes.inner)[int(first) :: 2][: half.inner],
    }


_LETTERS = {"r": "read", "w": "written", "q": "queries", "k": "keys", "m": "hidden"}


def _along(letters: str, indices: Mapping[str, Tensor], sizes: LayerSizes) -> Tensor:
    """The entries of an axis on which several maps may stand side by side."""
    length = {
        "r": sizes.width,
        "w": sizes.width,
        "q": sizes.heads * sizes.head_dim,
        "k": sizes.key_heads * sizes.head_dim,
        "m": sizes.inner,
    }
    parts, start = [], 0
    for letter in letters:
        parts.append(start + indices[_LETTERS[letter]])
        start += length[letter]
    return torch.cat(parts)
