"""The recipe: every key, its type, its range and its default. An unknown key is an error."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from ppdgrow.config.base import Fraction, Frozen, NonNegativeInt, PositiveInt, key
from ppdgrow.config.growth import GrowthConfig
from ppdgrow.config.kinds import FAMILIES, KINDS, PRETRAINED, Family, Task

StreamName = Literal["coupled", "residual"]
BLOCK_IDS = r"[lp][1-9][0-9]{0,8}(,[lp][1-9][0-9]{0,8})*"
Beta = Annotated[float, Field(ge=0.0, lt=1.0)]


class ModelConfig(Frozen):
    """The shape of a model built from scratch."""

    family: Family = key(
        "transformer",
        "transformer, mlp (whole images) or sequence (a causal mixer that is not attention); pretrained: of a "
        "folder of Transformers",
    )
    stream: StreamName = key("coupled", "coupled halves, or residual: the standard same-width layer")
    task: Task | None = key(None, "null: from the data")
    layers: int = key(6, "layers of a new model; of a checkpoint, the layers that it has", ge=1, le=4096)
    width: int = key(256, "channels of the stream", ge=1, le=2**20)
    heads: int = key(
        4, "attention heads; they divide the width of a branch (half the stream's if it is coupled)", ge=1, le=4096
    )
    ffn_multiplier: int = key(4, "hidden over outer width of an MLP", ge=1, le=64)
    norm: Literal["layer", "rms"] = key("layer", "LayerNorm or RMSNorm")
    dropout: float = key(0.0, "on the outputs of branches and the embedding, never inside a pair", ge=0.0, lt=1.0)
    tie_embeddings: bool = key(False, "the output projection is the token embedding")
    patch_size: PositiveInt = key(4, "pixels, of images in a transformer")
    mixer: Literal["recurrence", "convolution"] = key("recurrence", "of a sequence model")
    kernel_size: int = key(4, "taps of a depthwise convolution", ge=1, le=4096)

    @model_validator(mode="after")
    def _check_widths(self) -> ModelConfig:
        if self.family == PRETRAINED:
            return self  # its config.json is held against its tensors
        branch = self.width
        if self.stream == "coupled":
            if self.width % 2:
                raise ValueError(
                    f"model.width is {self.width}, but a coupled stream is split into two equal halves: "
                    f"use an even width, such as {self.width + 1}"
                )
            branch = self.width // 2
        if branch < 2:
            raise ValueError(
                f"model.width is {self.width}, which leaves a branch one channel, whose norm is a constant: use a "
                f"width of at least {4 if self.stream == 'coupled' else 2}"
            )
        if KINDS[FAMILIES[self.family].layer_kind(self.mixer)].heads and branch % self.heads:
            raise ValueError(
                f"model.heads is {self.heads}, which does not divide the branch width {branch} "
                f"({self.stream} stream, model.width {self.width}): choose heads that divide {branch}"
            )
        return self


class DataConfig(Frozen):
    """Where the examples come from and how they are cut."""

    name: str = key("stdlib", "stdlib, wikitext2, cifar10, digits, or a path")
    directory: str | None = key(None, "local copies of the data sets; null: PPDGROW_DATA, else a download")
    tokenizer: str | None = key(None, "byte, bpe:N or word; null: from the data")
    sequence_length: int = key(128, "tokens per sequence", ge=1, le=2**20)
    mask_fraction: float = key(0.15, "share of the tokens that mlm predicts", gt=0.0, le=1.0)
    augment: bool = key(True, "training images flipped (digits are not) and cropped at random")
    image_size: int | None = key(
        None, "side in pixels of images at a path; null: their own if all have one, else 64", ge=1, le=4096
    )
    encoding: str = key("utf-8", "of text files at a path, such as cp1252 or utf-16")
    text_column: str | None = key(None, "null: guessed from names and types")
    image_column: str | None = key(None, "null: guessed from names and types")
    label_column: str | None = key(None, "null: guessed from names and types")
    skip_broken: bool = key(False, "leave out files that cannot be read, with a warning, instead of stopping")

    @field_validator("tokenizer")
    @classmethod
    def _check_tokenizer(cls, value: str | None) -> str | None:
        if value is None or value in ("byte", "word"):
            return value
        name, _, size = value.partition(":")
        if name == PRETRAINED and re.fullmatch(r"[0-9a-f]{8}", size):  # the first digits of its digest
            return value
        if name == "bpe" and size.isascii() and size.isdigit() and 257 <= int(size) <= 2**20:
            return value
        raise ValueError(f"found {value!r}, expected byte, word or bpe:N with N at least 257, such as bpe:4096")

    @field_validator("encoding")
    @classmethod
    def _check_encoding(cls, value: str) -> str:
        try:
            "".encode(value)  # refuses codecs that are not of text, such as hex
        except (LookupError, ValueError):
            raise ValueError(
                f"found {value!r}, expected the name of a text encoding, such as utf-8 or cp1252"
            ) from None
        return value


class TrainConfig(Frozen):
    """How long, how fast and how often."""

    steps: PositiveInt = key(1000, "further optimizer steps of this command")
    horizon: PositiveInt | None = key(None, "absolute step at which the schedule ends; null: with this run")
    decay: bool = key(True, "decay the learning rate at the end")
    batch_size: int = key(16, "sequences or images per step", ge=1, le=2**24)
    accumulate: int = key(
        1, "microbatches in which a batch is computed, for less memory; may change in a run", ge=1, le=2**24
    )
    lr: float = key(2e-3, "peak learning rate", gt=0.0, le=100.0)
    schedule: Literal["wsd", "cosine"] = key("wsd", "warm-up, stable, decay; or cosine")
    warmup_steps: NonNegativeInt = key(100, "at most a tenth of the schedule")
    decay_fraction: Fraction = key(0.3, "share of the schedule that decays, under wsd")
    betas: tuple[Beta, Beta] = key((0.9, 0.95), "of AdamW", strict=False)
    weight_decay: float = key(0.1, "on matrices", ge=0.0, le=100.0)
    clip_norm: float = key(1.0, "largest gradient norm, of old and new parameters apart", gt=0.0)
    precision: Literal["auto", "fp32", "bf16"] = key(
        "auto", "auto: bf16 on a GPU; on a CPU from width 256 up if measured 1.5x faster"
    )
    seed: int = key(0, "of weights and batches", ge=0, lt=2**63)
    eval_every: PositiveInt = key(250, "steps between evaluations")
    eval_batches: PositiveInt = key(16, "fixed validation batches")
    save_every: PositiveInt = key(500, "steps between checkpoints")
    keep: PositiveInt = key(
        2, "newest checkpoints kept, beside the one with the lowest validation loss; may change in a run"
    )
    pair_lr: float = key(1.0, "factor on the rate of the newest blocks", ge=0.0, le=1000.0)
    pair_warmup_steps: NonNegativeInt = key(0, "linear warm-up of the newest blocks, from their insertion")
    pair_weight_decay: float | None = key(None, "of the newest blocks; null: as weight_decay", ge=0.0, le=100.0)
    only: Literal["all", "pairs"] | str = key("all", "all, pairs (the newest blocks), or the ids of blocks: l5,l6")
    reset_optimizer: bool = key(False, "go on from a checkpoint with empty moments")
    optimizer: Literal["adamw", "muon"] = key(
        "adamw", "adamw; or muon: of the matrices within blocks, and adamw of the rest"
    )

    @field_validator("only", mode="before")
    @classmethod
    def _check_only(cls, value: Any) -> Any:
        if isinstance(value, str) and (value in ("all", "pairs") or re.fullmatch(BLOCK_IDS, value)):
            return value
        raise ValueError(f"found {value!r}, expected all, pairs or the ids of blocks, such as l5,l6")

    @model_validator(mode="after")
    def _check_accumulate(self) -> TrainConfig:
        if self.accumulate > self.batch_size:
            raise ValueError(
                f"train.accumulate is {self.accumulate}, but a batch of train.batch_size {self.batch_size} cannot be "
                f"cut into more than {self.batch_size} microbatches: lower it"
            )
        return self


class Recipe(Frozen):
    """One run: model, data, training, and the points at which it grows."""

    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    train: TrainConfig = TrainConfig()
    growth: tuple[GrowthConfig, ...] = key(
        (), "growths with a decision, each an entry with the keys below", strict=False
    )

    @model_validator(mode="after")
    def _check_order(self) -> Recipe:
        free_from, previous = 0, 0
        for number, entry in enumerate(self.growth):
            if entry.step is not None:
                if entry.step < free_from:
                    raise ValueError(
                        f"growth[{number}].at is {entry.at}, but the trial of growth[{previous}] lasts until step "
                        f"{free_from}: give the growths in order, at steps that leave room for each trial"
                    )
                free_from, previous = entry.step + entry.trial.steps, number
            elif entry.at == "plateau":
                free_from += entry.trial.steps
        return self


# A checkpoint hands its recipe on to the next `train CKPT`, except for these keys.
NOT_INHERITED = (
    "train.steps",
    "train.horizon",
    "train.decay",
    "train.only",
    "train.pair_lr",
    "train.reset_optimizer",
    "growth",
)


def recipe_keys() -> dict[str, Any]:
    """Every dotted recipe key with its default, in the order of the schema."""
    return flatten(Recipe().model_dump())


def flatten(nested: Mapping[str, Any]) -> dict[str, Any]:
    """`{"train": {"lr": 1}, "growth": []}` -> `{"train.lr": 1, "growth": []}` (recipes have two levels)."""
    flat: dict[str, Any] = {}
    for section, content in nested.items():
        if isinstance(content, Mapping) and section != "growth":
            flat |= {f"{section}.{key}": value for key, value in content.items()}
        else:
            flat[section] = content
    return flat


def nest(flat: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `flatten`."""
    nested: dict[str, Any] = {}
    for dotted, value in flat.items():
        section, _, name = dotted.partition(".")
        nested[section] = {**nested.get(section, {}), name: value} if name else value
    return nested
