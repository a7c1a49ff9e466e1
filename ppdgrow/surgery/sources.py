"""Where theta_0 comes from: for each new branch, the old branch that it copies or is cut from.

Cuts are plain slices per dimension. With width D, h = D/2: half a is [0:h], half b is [h:2h]. f reads b and
writes a; g reads a and writes b.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from ppdgrow.config.architecture import Architecture
from ppdgrow.nn.branches import OUTPUT_PROJECTION
from ppdgrow.nn.parts import BlockNames, BlockPart, block_parts

Cut = tuple[slice, ...]


@dataclass(frozen=True)
class Origin:
    """How a new tensor of a part is made: a (scaled) cut of an old tensor, zeros, or a random draw."""

    name: str
    part: BlockPart
    tensor: str
    how: Literal["copy", "zero", "random"]
    source: str | None = None
    cut: Cut = ()
    factor: float = 1.0

    @property
    def in_words(self) -> str:
        if self.how == "copy":
            return "sliced" if self.cut else "copied"
        return "drawn at random" if self.how == "random" else "zeroed"


def part_origins(new: BlockPart, old: BlockPart | None, *, scale: float, names: BlockNames) -> Iterator[Origin]:
    """Origins of the tensors of a new branch or linear map; `scale` is a factor on its output projection.

    It copies `old` where the widths are equal, is cut from it where that has the full width, and is drawn without one.
    """
    for tensor in new.shapes:
        factor = scale if tensor in OUTPUT_PROJECTION else 1.0
        name = new.called(tensor, names)
        if old is None:
            yield Origin(name, new, tensor, "random", factor=factor)
        else:
            whole = old.config.channels == new.config.channels
            cut, cut_factor = ((), 1.0) if whole else slice_cut(new, tensor)
            yield Origin(name, new, tensor, "copy", old.called(tensor, names), cut, factor * cut_factor)


def nearest_part(architecture: Architecture, place: int, wanted: BlockPart) -> BlockPart | None:
    """The nearest preceding branch (or linear map) of the same name, else the nearest following one, else None.

    Where a block has two such branches (`ffn` pairs), the one in the same role is taken.
    """
    blocks = architecture.blocks
    for block in (*reversed(blocks[:place]), *blocks[place:]):
        candidates = [part for part in block_parts(architecture, block) if part.name == wanted.name]
        if candidates:
            return next((part for part in candidates if part.role == wanted.role), candidates[0])
    return None


def slice_cut(new: BlockPart, tensor: str) -> tuple[Cut, float]:
    """The cut of a full-width branch's tensor for a half-width branch, and the factor that goes with it.

    Input columns are those of the half that the branch reads, times sqrt 2 (half as many terms are summed);
    output rows those of the half that it writes; of the inner units f takes the odd ones, g the even ones.
    """
    half = new.config.channels
    a, b = slice(0, half), slice(half, 2 * half)
    cuts = {"input": b, "output": a, "inner": slice(1, None, 2)}
    if new.role == "g":
        cuts = {"input": a, "output": b, "inner": slice(0, None, 2)}
    module, _, kind = tensor.rpartition(".")
    axes = new.module.axes[module][: 1 if kind == "bias" else None]
    return tuple(cuts[axis] for axis in axes), math.sqrt(2.0) if axes[1:] == ("input",) else 1.0
