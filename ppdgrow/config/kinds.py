"""The closed registry of kinds: what blocks are made of, and which of them fit which model family.

A kind is one line here, its branches one class each in `nn.branches` and one cost in `accounting`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Family = Literal["transformer", "mlp", "sequence"]
Task = Literal["lm", "mlm", "classify"]
BranchName = Literal["mlp", "attention", "recurrence", "convolution", "depthwise", "affine"]
PairKind = Literal["ffn", "attention", "depthwise", "recurrent", "convolution", "orthogonal", "linear"]
# What `--pair` takes: kinds, and a rule that picks one.
PairName = Literal[
    "ffn", "attention", "attention-first", "depthwise", "recurrent", "convolution", "orthogonal", "linear"
]

# The branches f and g of each coupling kind.
COUPLINGS: dict[str, tuple[BranchName, BranchName]] = {
    "ffn": ("mlp", "mlp"),
    "attention": ("attention", "mlp"),
    "recurrent": ("recurrence", "mlp"),
    "convolution": ("convolution", "mlp"),
    "depthwise": ("depthwise", "depthwise"),
}
# Pairs of linear maps on the full vector: no branches, no coupling.
LINEAR = ("orthogonal", "linear")


@dataclass(frozen=True)
class FamilyRules:
    """What a family is made of: kinds of its layers (the first is the default), of its pairs, and its tasks."""

    layers: tuple[str, ...]
    pairs: tuple[PairKind, ...]
    tasks: tuple[Task, ...]


TOKEN_PAIRS: tuple[PairKind, ...] = (
    "ffn",
    "attention",
    "depthwise",
    "recurrent",
    "convolution",
    "orthogonal",
    "linear",
)
FAMILIES: dict[str, FamilyRules] = {
    "transformer": FamilyRules(("attention",), TOKEN_PAIRS, ("lm", "mlm", "classify")),
    "mlp": FamilyRules(("ffn",), ("ffn", "depthwise", "orthogonal", "linear"), ("classify",)),
    "sequence": FamilyRules(("recurrent", "convolution"), TOKEN_PAIRS, ("lm",)),
}


def branches_of(family: str, kind: str) -> tuple[BranchName, ...]:
    """The branches of a kind in a family: f and g, or none for a pair of linear maps.

    On the plain vectors of `mlp` there is no token axis: `depthwise` is an affine map there.
    """
    if kind in LINEAR:
        return ()
    if family == "mlp" and kind == "depthwise":
        return ("affine", "affine")
    return COUPLINGS[kind]
