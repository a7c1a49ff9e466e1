"""Text data sets: a stream of tokens, cut into windows.

Shapes: B batch, T tokens of a sequence.
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from ppdgrow.config.architecture import TokenInput
from ppdgrow.config.kinds import Task
from ppdgrow.config.schema import DataConfig
from ppdgrow.console import format_count
from ppdgrow.data.batches import NO_TARGET, Batch, Examples, evenly_spread, to_device
from ppdgrow.data.dataset import Dataset, Split
from ppdgrow.data.token_cache import cached_tokenizer, cached_tokens
from ppdgrow.data.tokenization import Tokenizer, load_tokenizer
from ppdgrow.errors import ConfigError, InvalidInputError

MASK_SHARE = 0.8
RANDOM_SHARE = 0.1


@dataclass(frozen=True)
class TokenStream:
    """A tokenised split: ids `(tokens,)` in the smallest integer type, and what it was made from."""

    tokens: Tensor
    num_bytes: int
    sha256: str


@dataclass(frozen=True)
class MaskedTask:
    """Masked language modelling (BERT, Devlin et al. 2019, section 3.1).

    `mask_id` replaces tokens, `frame` are the first and the last token of every sequence, if it has such.
    """

    num_tokens: int
    fraction: float
    mask_id: int
    frame: tuple[int, int] | None = None

    def draw(self, shape: tuple[int, int], draw: torch.Generator) -> tuple[Tensor, Tensor]:
        """Which positions `(B, T)` take a loss, and the ids `(B, T)` that replace tokens, -1 where a token stays.

        A position is selected with probability `fraction`, and at least one in each sequence. Of the selected, 80 %
        become the mask, 10 % a random token, 10 % stay.
        """
        chance = torch.rand(shape, generator=draw)
        if self.frame is not None:
            chance[:, [0, -1]] = 2.0
        selected = (chance < self.fraction) | (chance == chance.min(dim=1, keepdim=True).values)
        fate = torch.rand(shape, generator=draw)
        random_ids = torch.randint(self.num_tokens, shape, generator=draw)
        replacements = torch.where(fate < MASK_SHARE, self.mask_id, random_ids)
        return selected, torch.where(selected & (fate < MASK_SHARE + RANDOM_SHARE), replacements, -1)


class TokenWindows(Examples):
    """Windows of T + 1 tokens of a stream on its device: T inputs and, one place on, T targets.

    In an epoch they start T apart, so that a token is a target once; a shift drawn for each epoch moves the cuts.
    """

    def __init__(self, stream: Tensor, length: int, masked: MaskedTask | None) -> None:
        self._stream, self._length, self._masked = stream, length, masked
        self._offsets = torch.arange(length + 1, device=stream.device)
        self.num_examples = max(1, len(stream) // length - 1)  # as many as fit under every shift below T
        self.unit = f"windows of {length + 1} tokens"

    def epoch(self, draw: torch.Generator) -> Tensor:
        """Starts of the windows in a random order."""
        free = len(self._stream) - self.num_examples * self._length
        shift = torch.randint(min(self._length, free), (), generator=draw)
        return torch.randperm(self.num_examples, generator=draw) * self._length + shift

    def spread(self, count: int) -> Tensor:
        """Starts of windows that share no target."""
        return evenly_spread(count, (len(self._stream) - 1) // self._length) * self._length

    def batch(self, positions: Tensor, draw: torch.Generator) -> Batch:
        """Next-token targets, or with a masked task the masked tokens as targets."""
        starts = to_device(positions, self._stream.device)
        windows = self._stream[starts[:, None] + self._offsets].long()
        tokens = windows[:, :-1].contiguous()
        if self._masked is None:
            return Batch(tokens, windows[:, 1:].contiguous())
        if self._masked.frame is not None:
            tokens[:, 0], tokens[:, -1] = self._masked.frame
        drawn = self._masked.draw((len(positions), self._length), draw)
        selected, replacements = (to_device(choices, tokens.device) for choices in drawn)
        return Batch(torch.where(replacements >= 0, replacements, tokens), torch.where(selected, tokens, NO_TARGET))


class TextDataset(Dataset):
    """Text in three splits; a subclass says where their bytes come from."""

    tasks: ClassVar[tuple[Task, ...]] = ("lm", "mlm")
    default_tokenizer: ClassVar[str]
    tokenizer_spec: str
    sequence_length: int
    _splits: dict[Split, TokenStream]

    def __init__(self, config: DataConfig, task: Task | None = None, tokenizer_json: str | None = None) -> None:
        super().__init__(config, task, tokenizer_json)
        self.tokenizer_spec = config.tokenizer or self.default_tokenizer
        self.sequence_length = config.sequence_length
        self.keys = ("tokenizer", "sequence_length", *(("mask_fraction",) if self.task == "mlm" else ()))

    @abstractmethod
    def read(self, split: Split) -> bytes:
        """The raw UTF-8 text of a split; InvalidInputError if it is not there or cannot be read."""

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the checkpoint, else that of the recipe, trained on the train split."""
        if self._given_tokenizer is not None:
            return load_tokenizer(self._given_tokenizer)
        return cached_tokenizer(self.tokenizer_spec, lambda: self.read("train"), self.report)

    @property
    def tokenizer_json(self) -> str | None:
        return self._given_tokenizer or self.tokenizer.json

    def input_spec(self, patch_size: int) -> TokenInput:
        """Vocabulary (under `mlm` with a mask token, the last id if the tokenizer has none) and sequence length."""
        size = self.tokenizer.size + (1 if self.task == "mlm" and self.tokenizer.mask_id is None else 0)
        return TokenInput(vocabulary_size=size, sequence_length=self.sequence_length)

    def describe(self) -> str:
        train, validation = (format_count(len(self.stream(split).tokens)) for split in ("train", "validation"))
        return f"{self.name}: {train} train, {validation} validation tokens, {self.tokenizer_spec}"

    def bytes_per_token(self, split: Split) -> float | None:
        """Bytes of the raw text per token; None under `mlm`, whose loss is no code length."""
        if self.task == "mlm":
            return None
        return self.stream(split).num_bytes / max(1, len(self.stream(split).tokens))

    def stream(self, split: Split) -> TokenStream:
        """A split as tokens on the CPU."""
        if split not in self._splits:
            self.report(f"reading {self.name} {split}")
            raw = self.read(split)
            digest = hashlib.sha256(raw).hexdigest()
            self.report(f"tokenizing {self.name} {split}")
            tokens = cached_tokens(self.tokenizer, raw, digest, f"{self.name} {split}")
            self._splits[split] = TokenStream(tokens, len(raw), digest)
        return self._splits[split]

    def _examples_of(self, split: Split, device: torch.device) -> TokenWindows:
        tokens, length = self.stream(split).tokens, self.sequence_length
        if len(tokens) <= length:
            left_out = f" beside {len(self.skipped):,} skipped files" if self.skipped else ""
            raise InvalidInputError(
                f"{self.name} {split}: found {len(tokens)} tokens{left_out}, expected at least {length + 1} for one "
                "sequence: lower data.sequence_length or use more data"
            )
        return TokenWindows(tokens.to(device), length, self._masked_task() if self.task == "mlm" else None)

    def _masked_task(self) -> MaskedTask:
        tokenizer = self.tokenizer
        if tokenizer.mask_id is None:
            return MaskedTask(tokenizer.size, self.config.mask_fraction, tokenizer.size)
        if tokenizer.frame is not None and self.sequence_length < 3:
            raise ConfigError(
                f"data.sequence_length is {self.sequence_length}, of which the tokenizer's tokens at both ends leave "
                "nothing to predict: use at least 3"
            )
        return MaskedTask(tokenizer.size, self.config.mask_fraction, tokenizer.mask_id, tokenizer.frame)
