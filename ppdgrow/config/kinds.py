"""The closed registries of kinds and families: what blocks are made of, and what a family reads, does and leaves out.

A new kind is one line in `KINDS`, where its branches are named as their classes in `nn.branches` are, in lower case.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import AfterValidator, WithJsonSchema

Family = Literal["transformer", "mlp", "sequence", "pretrained"]
Task = Literal["lm", "mlm", "classify"]

# Data sets by name; every other `data.name` is a path.
DATA_NAMES = ("stdlib", "wikitext2", "cifar10", "digits")

TOKENS = ("transformer", "sequence")
ALL = ("transformer", "mlp", "sequence")
PRETRAINED = "pretrained"  # the family of models of Transformers, which are never trained from scratch here
# A rule that picks a kind, where `--pair` takes one.
ATTENTION_FIRST = "attention-first"


@dataclass(frozen=True)
class Kind:
    """What a block is made of: the branches f and g of a coupling on halves, or one linear map on the whole vector."""

    parts: tuple[str, ...]
    families: tuple[str, ...]  # that take such pairs
    heads: bool = False  # whether the channels of a branch are divided among attention heads
    on_vectors: tuple[str, ...] | None = None  # the parts where there is no token axis, if they are others

    @property
    def additive(self) -> bool:
        """Whether terms are added to halves; if not, a pair is a linear map on the whole vector."""
        return len(self.parts) == 2


KINDS: dict[str, Kind] = {
    "ffn": Kind(("mlp", "mlp"), (*ALL, PRETRAINED)),
    "attention": Kind(("attention", "mlp"), (*TOKENS, PRETRAINED), heads=True),
    "recurrent": Kind(("recurrence", "mlp"), TOKENS),
    "convolution": Kind(("convolution", "mlp"), TOKENS),
    "depthwise": Kind(("depthwise", "depthwise"), ALL, on_vectors=("affine", "affine")),
    "orthogonal": Kind(("orthogonal",), (*ALL, PRETRAINED)),
    "linear": Kind(("linear",), ALL),
}
PAIR_NAMES = (*KINDS, ATTENTION_FIRST)


@dataclass(frozen=True)
class FamilyRules:
    """What is particular to a family. The modules that embed its inputs are in `nn.ends`."""

    name: str
    layers: tuple[str, ...]  # kinds, the default first
    tasks: tuple[Task, ...]
    embeddings: Mapping[str, Literal["tokens", "patches", "vector"]]  # by the kind of input
    ignored: tuple[str, ...]  # keys of the recipe that do nothing
    positions: bool = False  # whether tokens get learned positions, as their mixer has no order of its own
    mixers: Mapping[str, str] = field(default_factory=dict)  # kinds of layers by `model.mixer`, where that decides

    @property
    def pairs(self) -> tuple[str, ...]:
        """The kinds of pairs that fit."""
        return tuple(name for name, kind in KINDS.items() if self.name in kind.families)

    def layer_kind(self, mixer: str) -> str:
        """The kind of the layers of a new model."""
        return self.mixers.get(mixer, self.layers[0])


_MIXERS = {"recurrence": "recurrent", "convolution": "convolution"}
FAMILIES: dict[str, FamilyRules] = {
    rules.name: rules
    for rules in (
        FamilyRules(
            "transformer",
            layers=("attention",),
            tasks=("lm", "mlm", "classify"),
            embeddings={"tokens": "tokens", "images": "patches"},
            ignored=("model.mixer",),
            positions=True,
        ),
        FamilyRules(
            "mlp",
            layers=("ffn",),
            tasks=("classify",),
            embeddings={"images": "vector", "vectors": "vector"},
            ignored=("model.mixer", "model.patch_size", "model.heads", "model.kernel_size", "model.tie_embeddings"),
        ),
        FamilyRules(
            "sequence",
            layers=tuple(_MIXERS.values()),
            tasks=("lm",),
            embeddings={"tokens": "tokens"},
            ignored=("model.patch_size",),
            mixers=_MIXERS,
        ),
        FamilyRules(
            PRETRAINED,
            layers=("attention",),
            tasks=("lm", "mlm"),
            embeddings={"tokens": "tokens"},
            ignored=tuple(
                f"model.{key}"
                for key in (
                    "heads",
                    "ffn_multiplier",
                    "norm",
                    "dropout",
                    "tie_embeddings",
                    "patch_size",
                    "mixer",
                    "kernel_size",
                )
            ),
        ),
    )
}


def parts_of(family: str, kind: str) -> tuple[str, ...]:
    """The branches f and g of a kind in a family, or its one linear map."""
    spec = KINDS[kind]
    on_vectors = "vector" in FAMILIES[family].embeddings.values()
    return spec.on_vectors if on_vectors and spec.on_vectors is not None else spec.parts


def _check_pair_name(name: str) -> str:
    if name in PAIR_NAMES:
        return name
    raise ValueError(f"found {name!r}, expected one of {', '.join(PAIR_NAMES)}")


PairName = Annotated[str, AfterValidator(_check_pair_name), WithJsonSchema({"enum": [*PAIR_NAMES]})]
