"""The recipe: every key, its type, its range and its default. An unknown key is an error."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from ppdgrow.config.growth import GrowthConfig
from ppdgrow.config.kinds import Family, Task
from ppdgrow.config.section import Fraction, NonNegativeInt, PositiveInt, Section

StreamName = Literal["coupled", "residual"]


class ModelConfig(Section):
    """The shape of a model built from scratch."""

    family: Family = "transformer"
    stream: StreamName = "coupled"
    task: Task | None = Field(None, description="null: from the data")
    layers: Annotated[int, Field(ge=1, le=4096)] = 6
    width: Annotated[int, Field(ge=1, le=2**20)] = 256
    heads: Annotated[int, Field(ge=1, le=4096)] = 4
    ffn_multiplier: Annotated[int, Field(ge=1, le=64)] = 4
    norm: Literal["layer", "rms"] = "layer"
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    tie_embeddings: bool = False
    patch_size: PositiveInt = 4
    mixer: Literal["recurrence", "convolution"] = "recurrence"
    kernel_size: Annotated[int, Field(ge=1, le=4096)] = 4

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
        if self.family == "transformer" and branch % self.heads:
            raise ValueError(
                f"model.heads is {self.heads}, which does not divide the branch width {branch} "
                f"({self.stream} stream, model.width {self.width}): choose heads that divide {branch}"
            )
        return self


class DataConfig(Section):
    """Where the examples come from and how they are cut."""

    name: str = "stdlib"
    directory: str | None = Field(None, description="null: PPDGROW_DATA, else a download")
    tokenizer: str | None = Field(None, description="byte, bpe:N or word; null: from the data")
    sequence_length: Annotated[int, Field(ge=1, le=2**20)] = 128
    mask_fraction: Annotated[float, Field(gt=0.0, le=1.0)] = 0.15
    augment: bool = True
    image_size: Annotated[int, Field(ge=1, le=4096)] | None = None
    encoding: str = "utf-8"
    text_column: str | None = Field(None, description="null: guessed from names and types")
    image_column: str | None = Field(None, description="null: guessed from names and types")
    label_column: str | None = Field(None, description="null: guessed from names and types")
    skip_broken: bool = False

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


class TrainConfig(Section):
    """How long, how fast and how often."""

    steps: PositiveInt = Field(1000, description="further optimizer steps of this command")
    horizon: PositiveInt | None = Field(None, description="absolute step at which the schedule ends")
    decay: bool = True
    batch_size: Annotated[int, Field(ge=1, le=2**24)] = 16
    accumulate: Annotated[int, Field(ge=1, le=2**24)] = Field(1, description="pieces in which a batch is computed")
    lr: Annotated[float, Field(gt=0.0, le=100.0)] = 2e-3
    schedule: Literal["wsd", "cosine"] = "wsd"
    warmup_steps: NonNegativeInt = 100
    decay_fraction: Fraction = 0.3
    betas: tuple[Annotated[float, Field(ge=0.0, lt=1.0)], Annotated[float, Field(ge=0.0, lt=1.0)]] = Field(
        (0.9, 0.95), strict=False
    )
    weight_decay: Annotated[float, Field(ge=0.0, le=100.0)] = 0.1
    clip_norm: Annotated[float, Field(gt=0.0)] = 1.0
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    eval_every: PositiveInt = 250
    eval_batches: PositiveInt = 16
    save_every: PositiveInt = 500
    keep: PositiveInt = 2
    pair_lr: Annotated[float, Field(ge=0.0, le=1000.0)] = 1.0
    pair_warmup_steps: NonNegativeInt = 0
    pair_weight_decay: Annotated[float, Field(ge=0.0, le=100.0)] | None = None
    only: Literal["all", "pairs"] = "all"
    reset_optimizer: bool = False

    @model_validator(mode="after")
    def _check_pieces(self) -> TrainConfig:
        if self.accumulate > self.batch_size:
            raise ValueError(
                f"train.accumulate is {self.accumulate}, but a batch of train.batch_size {self.batch_size} cannot be "
                f"cut into more than {self.batch_size} pieces: lower it"
            )
        return self


class Recipe(Section):
    """One run: model, data, training, and the points at which it grows."""

    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    train: TrainConfig = TrainConfig()
    growth: tuple[GrowthConfig, ...] = Field((), strict=False)

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


def flatten(nested: dict[str, Any]) -> dict[str, Any]:
    """`{"train": {"lr": 1}, "growth": []}` -> `{"train.lr": 1, "growth": []}` (recipes have two levels)."""
    flat: dict[str, Any] = {}
    for section, content in nested.items():
        if isinstance(content, dict):
            flat |= {f"{section}.{key}": value for key, value in content.items()}
        else:
            flat[section] = content
    return flat


def nest(flat: dict[str, Any]) -> dict[str, Any]:
    """The inverse of `flatten`."""
    nested: dict[str, Any] = {}
    for dotted, value in flat.items():
        section, dot, key = dotted.partition(".")
        if dot:
            nested.setdefault(section, {})[key] = value
        else:
            nested[section] = value
    return nested
