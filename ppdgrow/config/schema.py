"""The recipe: every key, its type, its range and its default. An unknown key is an error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from ppdgrow.config.base import Fraction, Frozen, NonNegativeInt, PositiveInt
from ppdgrow.config.growth import GrowthConfig
from ppdgrow.config.kinds import FAMILIES, KINDS, Family, Task

StreamName = Literal["coupled", "residual"]


class ModelConfig(Frozen):
    """The shape of a model built from scratch."""

    family: Family = Field(
        "transformer", description="transformer, mlp (whole images) or sequence (a causal mixer that is not attention)"
    )
    stream: StreamName = Field("coupled", description="coupled halves, or residual: the standard same-width layer")
    task: Task | None = Field(None, description="null: from the data")
    layers: Annotated[int, Field(ge=1, le=4096)] = Field(
        6, description="layers of a new model; of a checkpoint, the layers that it has"
    )
    width: Annotated[int, Field(ge=1, le=2**20)] = Field(256, description="channels of the stream")
    heads: Annotated[int, Field(ge=1, le=4096)] = Field(
        4, description="attention heads; they divide the width of a branch (half the stream's if it is coupled)"
    )
    ffn_multiplier: Annotated[int, Field(ge=1, le=64)] = Field(4, description="hidden over outer width of an MLP")
    norm: Literal["layer", "rms"] = Field("layer", description="LayerNorm or RMSNorm")
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = Field(
        0.0, description="on the outputs of branches and the embedding, never inside a pair"
    )
    tie_embeddings: bool = Field(False, description="the output projection is the token embedding")
    patch_size: PositiveInt = Field(4, description="pixels, of images in a transformer")
    mixer: Literal["recurrence", "convolution"] = Field("recurrence", description="of a sequence model")
    kernel_size: Annotated[int, Field(ge=1, le=4096)] = Field(4, description="taps of a depthwise convolution")

    @model_validator(mode="after")
    def _check_widths(self) -> ModelConfig:
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

    name: str = Field("stdlib", description="stdlib, wikitext2, cifar10, digits, or a path")
    directory: str | None = Field(
        None, description="local copies of the data sets; null: PPDGROW_DATA, else a download"
    )
    tokenizer: str | None = Field(None, description="byte, bpe:N or word; null: from the data")
    sequence_length: Annotated[int, Field(ge=1, le=2**20)] = Field(128, description="tokens per sequence")
    mask_fraction: Annotated[float, Field(gt=0.0, le=1.0)] = Field(
        0.15, description="share of the tokens that mlm predicts"
    )
    augment: bool = Field(True, description="training images flipped (digits are not) and cropped at random")
    image_size: Annotated[int, Field(ge=1, le=4096)] | None = Field(
        None, description="side in pixels of images at a path; null: their own if all have one, else 64"
    )
    encoding: str = Field("utf-8", description="of text files at a path, such as cp1252 or utf-16")
    text_column: str | None = Field(None, description="null: guessed from names and types")
    image_column: str | None = Field(None, description="null: guessed from names and types")
    label_column: str | None = Field(None, description="null: guessed from names and types")
    skip_broken: bool = Field(
        False, description="leave out files that cannot be read, with a warning, instead of stopping"
    )

    @field_validator("tokenizer")
    @classmethod
    def _check_tokenizer(cls, value: str | None) -> str | None:
        if value is None or value in ("byte", "word"):
            return value
        name, _, size = value.partition(":")
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

    steps: PositiveInt = Field(1000, description="further optimizer steps of this command")
    horizon: PositiveInt | None = Field(
        None, description="absolute step at which the schedule ends; null: with this run"
    )
    decay: bool = Field(True, description="decay the learning rate at the end")
    batch_size: Annotated[int, Field(ge=1, le=2**24)] = Field(16, description="sequences or images per step")
    accumulate: Annotated[int, Field(ge=1, le=2**24)] = Field(
        1, description="microbatches in which a batch is computed, for less memory; may change in a run"
    )
    lr: Annotated[float, Field(gt=0.0, le=100.0)] = Field(2e-3, description="peak learning rate")
    schedule: Literal["wsd", "cosine"] = Field("wsd", description="warm-up, stable, decay; or cosine")
    warmup_steps: NonNegativeInt = Field(100, description="at most a tenth of the schedule")
    decay_fraction: Fraction = Field(0.3, description="share of the schedule that decays, under wsd")
    betas: tuple[Annotated[float, Field(ge=0.0, lt=1.0)], Annotated[float, Field(ge=0.0, lt=1.0)]] = Field(
        (0.9, 0.95), strict=False, description="of AdamW"
    )
    weight_decay: Annotated[float, Field(ge=0.0, le=100.0)] = Field(0.1, description="on matrices")
    clip_norm: Annotated[float, Field(gt=0.0)] = Field(
        1.0, description="largest gradient norm, of old and new parameters apart"
    )
    precision: Literal["auto", "fp32", "bf16"] = Field(
        "auto", description="auto: bf16 on a GPU; on a CPU from width 256 up if measured 1.5x faster"
    )
    seed: Annotated[int, Field(ge=0, lt=2**63)] = Field(0, description="of weights and batches")
    eval_every: PositiveInt = Field(250, description="steps between evaluations")
    eval_batches: PositiveInt = Field(16, description="fixed validation batches")
    save_every: PositiveInt = Field(500, description="steps between checkpoints")
    keep: PositiveInt = Field(
        2, description="newest checkpoints kept, beside the one with the lowest validation loss; may change in a run"
    )
    pair_lr: Annotated[float, Field(ge=0.0, le=1000.0)] = Field(
        1.0, description="factor on the rate of the newest blocks"
    )
    pair_warmup_steps: NonNegativeInt = Field(
        0, description="linear warm-up of the newest blocks, from their insertion"
    )
    pair_weight_decay: Annotated[float, Field(ge=0.0, le=100.0)] | None = Field(
        None, description="of the newest blocks; null: as weight_decay"
    )
    only: Literal["all", "pairs"] = Field("all", description="train all, or the newest blocks alone")
    reset_optimizer: bool = Field(False, description="go on from a checkpoint with empty moments")
    optimizer: Literal["adamw", "muon"] = Field(
        "adamw", description="adamw; or muon: of the matrices within blocks, and adamw of the rest"
    )

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
    growth: tuple[GrowthConfig, ...] = Field(
        (), strict=False, description="growths with a decision, each an entry with the keys below"
    )

    @model_validator(mode="after")
    def _check_order(self) -> Recipe:
        free_from, previous = 0, 0
        for number, entry in enumerate(self.growth):
            if entry.at != "plateau":
                if entry.at < free_from:
                    raise ValueError(
                        f"growth[{number}].at is {entry.at}, but the trial of growth[{previous}] lasts until step "
                        f"{free_from}: give the growths in order, at steps that leave room for each trial"
                    )
                free_from, previous = entry.at + entry.trial.steps, number
            else:
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
        section, dot, key = dotted.partition(".")
        if dot:
            nested.setdefault(section, {})[key] = value
        else:
            nested[section] = value
    return nested
