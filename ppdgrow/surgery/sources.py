"""Where theta_0 comes from: for each new branch, the old branch that it copies or is cut from.

Cuts are plain slices per dimension. With width D, h = D/2: half a is [0:h], half b is [h:2h]. f reads b and
writes a; g reads a and writes b.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from ppdgrow.config.architecture import Architecture, BlockSpec
from ppdgrow.config.kinds import LINEAR, branches_of
from ppdgrow.nn.branches import OUTPUT_PROJECTION

Cut = tuple[slice, ...]
READS_SQRT2 = math.sqrt(2.0)


@dataclass(frozen=True)
class Origin:
    """How one new tensor is made: a (scaled) cut of an old tensor, zeros, or a random draw."""

    name: str
    how: Literal["copy", "zero", "random"]
    source: str | None = None
    cut: Cut = ()
    factor: float = 1.0


@dataclass(frozen=True)
class Branch:
    """One branch of a model: its tensor prefix, its role in the coupling, what it is and its width."""

    prefix: str
    role: Literal["f", "g"]
    name: str
    channels: int


def block_branches(architecture: Architecture, block: BlockSpec) -> tuple[Branch, ...]:
    """The branches of a block; of a pair, those of theta+; of a linear pair, its map as a whole."""
    prefix = f"blocks.{block.id}.plus" if block.type == "pair" else f"blocks.{block.id}"
    if block.kind in LINEAR:
        return (Branch(prefix, "f", block.kind, architecture.width),)
    channels = architecture.width // 2 if block.type == "pair" else architecture.layer_width
    f, g = branches_of(architecture.family, block.kind)
    return Branch(f"{prefix}.f", "f", f, channels), Branch(f"{prefix}.g", "g", g, channels)


def nearest_branch(architecture: Architecture, place: int, wanted: Branch) -> Branch | None:
    """The nearest preceding branch of the same kind, else the nearest following one, else None.

    Where a block has two such branches (`ffn` pairs), the one in the same role is taken.
    """
    blocks = architecture.blocks
    for block in (*reversed(blocks[:place]), *blocks[place:]):
        candidates = [branch for branch in block_branches(architecture, block) if branch.name == wanted.name]
        if candidates:
            return next((branch for branch in candidates if branch.role == wanted.role), candidates[0])
    return None


def slice_cut(tensor: str, role: Literal["f", "g"], width: int) -> tuple[Cut, float]:
    """The cut of a full-width branch's tensor for a half-width branch, and the factor that goes with it.

    Input columns are those of the half that the branch reads, times sqrt 2 (half as many terms are summed);
    output rows those of the half that it writes; of the inner units f takes the odd ones, g the even ones,
    which for attention are half of each head's channels.
    """
    a, b = slice(0, width // 2), slice(width // 2, width)
    reads, writes = (b, a) if role == "f" else (a, b)
    inner = slice(1, None, 2) if role == "f" else slice(0, None, 2)
    if tensor.startswith("norm."):
        return (reads,), 1.0
    if tensor in ("up.weight", "qkv.weight", "gates.weight"):
        return (inner, reads), READS_SQRT2
    if tensor in ("up.bias", "qkv.bias", "gates.bias", "mix.weight", "mix.bias"):
        return (inner,), 1.0
    if tensor == "out.weight":
        return (writes, inner), 1.0
    return (writes,), 1.0


def branch_origins(
    new: Branch, old: Branch | None, tensors: list[str], *, width: int, scale: float
) -> tuple[Origin, ...]:
    """Origins of the tensors of one new branch. `old` None draws it; `scale` goes on its output projection.

    Args:
        new: the branch to make.
        old: the branch to copy (equal widths) or to cut (full width), or None.
        tensors: names of the branch's tensors, relative to its prefix.
        width: the model's width D.
        scale: factor on the output projection.
    """
    origins = []
    for tensor in tensors:
        factor = scale if tensor in OUTPUT_PROJECTION else 1.0
        name = f"{new.prefix}.{tensor}"
        if old is None:
            origins.append(Origin(name, "random", factor=factor))
        elif old.channels == new.channels:
            origins.append(Origin(name, "copy", f"{old.prefix}.{tensor}", factor=factor))
        else:
            cut, cut_factor = slice_cut(tensor, new.role, width)
            origins.append(Origin(name, "copy", f"{old.prefix}.{tensor}", cut, factor * cut_factor))
    return tuple(origins)
