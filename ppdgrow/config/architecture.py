"""The architecture of a model as data: `config.json` of a checkpoint.

An explicit, ordered list of blocks with stable ids: growth only adds ids, removal only takes them away.
"""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import Field, model_validator

from ppdgrow.config.base import FORMAT, FormatNumber, Frozen, PositiveInt
from ppdgrow.config.kinds import FAMILIES, KINDS, Family, Task
from ppdgrow.config.schema import ModelConfig, StreamName

PairState = Literal["tied", "untied"]
OWN_KEY = "ppdgrow"  # of a config.json of Transformers


class TokenInput(Frozen):
    """Sequences of token ids, `(B, T)`, `T` at most `sequence_length`."""

    kind: Literal["tokens"] = "tokens"
    vocabulary_size: PositiveInt
    sequence_length: PositiveInt


class ImageInput(Frozen):
    """Images `(B, channels, height, width)`, cut into square patches."""

    kind: Literal["images"] = "images"
    channels: PositiveInt
    height: PositiveInt
    width: PositiveInt
    patch_size: PositiveInt
    num_classes: PositiveInt

    @model_validator(mode="after")
    def _check_patches(self) -> ImageInput:
        if self.height % self.patch_size or self.width % self.patch_size:
            raise ValueError(
                f"model.patch_size is {self.patch_size}, which does not divide the {self.height}x{self.width} "
                "images: choose a divisor of both sides (or, for images at a path, a data.image_size)"
            )
        return self

    @property
    def num_patches(self) -> int:
        return (self.height // self.patch_size) * (self.width // self.patch_size)


class VectorInput(Frozen):
    """Plain vectors, `(B, features)`."""

    kind: Literal["vectors"] = "vectors"
    features: PositiveInt
    num_classes: PositiveInt


InputSpec = TokenInput | ImageInput | VectorInput


class BlockSpec(Frozen):
    """One entry of the block list: an ordinary layer of the model's stream, or a pair, which counts as two."""

    id: str = Field(pattern=r"^[lp][1-9][0-9]{0,8}$")
    type: Literal["layer", "pair"]
    kind: str
    state: PairState | None = None
    born: int = Field(0, ge=0)  # the optimizer step at which growth inserted it; 0: there from the start

    @model_validator(mode="after")
    def _check_state(self) -> BlockSpec:
        if (self.type == "pair") != (self.state is not None) or (self.type == "pair") != (self.id[0] == "p"):
            raise ValueError(f"block {self.id!r}: a pair has an id p<N> and a state, a layer l<N> and none")
        return self


class Architecture(Frozen):
    """Everything that decides the names and shapes of a model's tensors and the function they compute."""

    format: FormatNumber = FORMAT
    family: Family
    stream: StreamName
    task: Task
    width: PositiveInt
    heads: PositiveInt
    ffn_multiplier: PositiveInt
    norm: Literal["layer", "rms"]
    dropout: float = Field(ge=0.0, lt=1.0)
    tie_embeddings: bool
    kernel_size: PositiveInt = 4
    input: InputSpec = Field(discriminator="kind")
    blocks: tuple[BlockSpec, ...] = Field(strict=False, min_length=1, max_length=65536)

    @model_validator(mode="after")
    def _check_blocks(self) -> Architecture:
        ids = [block.id for block in self.blocks]
        if len(set(ids)) != len(ids):
            raise ValueError("two blocks share one id")
        rules = FAMILIES[self.family]
        if (self.task == "classify") == (self.input.kind == "tokens") or self.task not in rules.tasks:
            raise ValueError(f"task {self.task!r} and {self.input.kind} as input do not fit the family {self.family!r}")
        if self.input.kind not in rules.embeddings:
            raise ValueError(f"a {self.family} reads {' or '.join(rules.embeddings)}, found {self.input.kind}")
        for block in self.blocks:
            fitting = rules.layers if block.type == "layer" else rules.pairs
            if block.kind not in fitting:
                raise ValueError(
                    f"block {block.id!r}: a {block.type} of kind {block.kind!r} does not fit the family "
                    f"{self.family!r}, expected one of {', '.join(fitting)}"
                )
        if self.tie_embeddings and self.input.kind != "tokens":
            raise ValueError("model.tie_embeddings needs token input")
        if (self.stream == "coupled" or self.pairs) and self.width % 2:
            raise ValueError(f"width {self.width} cannot be split into two halves")
        for block in self.blocks:
            channels = self.channels_of(block)
            if KINDS[block.kind].heads and channels % self.heads:
                raise ValueError(f"block {block.id!r}: {self.heads} heads do not divide its {channels} channels")
        return self

    @property
    def in_words(self) -> str:
        """Which sort of model it is."""
        return f"{self.family} ({self.stream})"

    @property
    def layer_kind(self) -> str:
        """The kind of the model's layers (the family's first where every layer is gone)."""
        layers = [block.kind for block in self.blocks if block.type == "layer"]
        return layers[0] if layers else FAMILIES[self.family].layers[0]

    def channels_of(self, block: BlockSpec) -> int:
        """Channels that a branch of a block reads and writes, or the linear map of a pair."""
        halved = self.stream == "coupled" if block.type == "layer" else KINDS[block.kind].additive
        return self.width // 2 if halved else self.width

    @property
    def num_layers(self) -> int:
        """Depth: a layer counts one, a pair two."""
        return sum(2 if block.type == "pair" else 1 for block in self.blocks)

    @property
    def pairs(self) -> tuple[BlockSpec, ...]:
        return tuple(block for block in self.blocks if block.type == "pair")

    @property
    def newest_ids(self) -> frozenset[str]:
        """Ids of the blocks that the latest growth inserted; empty for a model that never grew."""
        latest = max(block.born for block in self.blocks)
        return frozenset(block.id for block in self.blocks if latest and block.born == latest)

    def with_blocks(self, blocks: tuple[BlockSpec, ...]) -> Architecture:
        """The same model over another block list, validated anew."""
        return type(self).model_validate({**dict(self), "blocks": blocks})


class PretrainedArchitecture(Architecture):
    """A model of Transformers, by its own config, with what cannot be known of it without that library.

    Args:
        config: config.json as Transformers reads it.
        layers_prefix: what the names of the layers' tensors begin with, before the number, such as `model.layers.`.
        parameters: stored ones, tied ones once.
        longest: the most positions that it takes, if there is a limit.
        forward_flops: per token, in a sequence of `input.sequence_length`.
        newest: ids of the blocks that were grown since the model was last trained.
        drawn: names of the parameters that the folder lacked, such as those of a new head.
    """

    family: Literal["pretrained"] = "pretrained"
    stream: Literal["residual"] = "residual"
    heads: PositiveInt = 1
    ffn_multiplier: PositiveInt = 1
    norm: Literal["layer", "rms"] = "layer"
    dropout: float = 0.0
    tie_embeddings: bool = False
    input: TokenInput
    config: dict[str, Any]
    layers_prefix: str
    parameters: PositiveInt
    forward_flops: PositiveInt
    longest: PositiveInt | None = None
    newest: tuple[str, ...] = Field((), strict=False)
    drawn: tuple[str, ...] = Field((), strict=False)

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> PretrainedArchitecture:
        """Of the config.json of a checkpoint; pydantic's errors where it lacks what `document` adds."""
        own = document[OWN_KEY] if isinstance(document.get(OWN_KEY), dict) else {}
        training, rest = own.get("training"), {key: value for key, value in own.items() if key != "training"}
        config = {key: value for key, value in document.items() if key != OWN_KEY} | ({OWN_KEY: rest} if rest else {})
        return cls.model_validate({**(training if isinstance(training, dict) else {}), "config": config})

    def document(self) -> dict[str, Any]:
        """The config, as Transformers reads it, with the rest under a key of its own."""
        training = self.model_dump(mode="json", exclude={"config"})
        return {**self.config, OWN_KEY: {**self.config.get(OWN_KEY, {}), "training": training}}

    @property
    def in_words(self) -> str:
        return f"{self.config.get('base_model_type', self.config['model_type'])} of Transformers"

    @property
    def newest_ids(self) -> frozenset[str]:
        return frozenset(self.newest)

    def block_of(self, name: str) -> str | None:
        """The id of the layer or pair to which a parameter belongs, if to any."""
        found = re.match(re.escape(self.layers_prefix) + r"([0-9]+)\.(?:pairs\.([^.]+)\.)?", name)
        return None if found is None else found[2] or f"l{int(found[1]) + 1}"


def new_architecture(model: ModelConfig, task: Task, input_spec: InputSpec) -> Architecture:
    """The architecture of a model that is trained from scratch: `model.layers` layers `l1..lN`."""
    kind = FAMILIES[model.family].layer_kind(model.mixer)
    return Architecture(
        **model.model_dump(exclude={"task", "layers", "patch_size", "mixer"}),
        task=task,
        input=input_spec,
        blocks=tuple(BlockSpec(id=f"l{index + 1}", type="layer", kind=kind) for index in range(model.layers)),
    )
