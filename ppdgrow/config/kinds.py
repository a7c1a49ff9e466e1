"""The closed registry of kinds: what blocks are made of, and which of them fit which model family.

A new kind is one line in `KINDS`, and one in `STYLES` of `experiment.probing.plot`; a new branch is one class and one
line in `nn.branches`, and two lines in `accounting`: its parameters and its FLOPs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import AfterValidator

Family = Literal["transformer", "mlp", "sequence"]
Task = Literal["lm", "mlm", "classify"]

# Data sets by name; every other `data.name` is a path.
DATA_NAMES = ("stdlib", "wikitext2", "cifar10", "digits")

TOKENS = ("transformer", "sequence")
ALL = ("transformer", "mlp", "sequence")
# A rule that picks a kind, where `--pair` takes one.
ATTENTION_FIRST = "attention-first"


@dataclass(frozen=True)
class Kind:
    """The branches f and g of a coupling, or none for a pair of linear maps; and the families that take such pairs."""

    branches: tuple[str, str] | None
    families: tuple[str, ...]


KINDS: dict[str, Kind] = {
    "ffn": Kind(("mlp", "mlp"), ALL),
    "attention": Kind(("attention", "mlp"), TOKENS),
    "recurrent": Kind(("recurrence", "mlp"), TOKENS),
    "convolution": Kind(("convolution", "mlp"), TOKENS),
    "depthwise": Kind(("depthwise", "depthwise"), ALL),
    "orthogonal": Kind(None, ALL),
    "linear": Kind(None, ALL),
}
LINEAR = tuple(name for name, kind in KINDS.items() if kind.branches is None)
PAIR_NAMES = (*KINDS, ATTENTION_FIRST)


@dataclass(frozen=True)
class FamilyRules:
    """What a family is made of: the kinds of its layers (the first is the default), and its tasks."""

    name: str
    layers: tuple[str, ...]
    tasks: tuple[Task, ...]

    @property
    def pairs(self) -> tuple[str, ...]:
        """The kinds of pairs that fit."""
        return tuple(name for name, kind in KINDS.items() if self.name in kind.families)


FAMILIES: dict[str, FamilyRules] = {
    "transformer": FamilyRules("transformer", ("attention",), ("lm", "mlm", "classify")),
    "mlp": FamilyRules("mlp", ("ffn",), ("classify",)),
    "sequence": FamilyRules("sequence", ("recurrent", "convolution"), ("lm",)),
}


def branches_of(family: str, kind: str) -> tuple[str, ...]:
    """The branches of a kind in a family: f and g, or none for a pair of linear maps.

    On the plain vectors of `mlp` there is no token axis: `depthwise` is an affine map there.
    """
    if family == "mlp" and kind == "depthwise":
        return ("affine", "affine")
    return KINDS[kind].branches or ()


def _check_pair_name(name: str) -> str:
    if name in PAIR_NAMES:
        return name
    raise ValueError(f"found {name!r}, expected one of {', '.join(PAIR_NAMES)}")


PairName = Annotated[str, AfterValidator(_check_pair_name)]
