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
from ppdgrow.config.state import DataIdentity
from ppdgrow.console import format_count
from ppdgrow.data.batches import NO_TARGET, Batch, evenly_spread, to_device
from ppdgrow.data.dataset import Dataset, Split
from ppdgrow.data.masking import draw_masks
from ppdgrow.data.token_cache import cached_tokenizer, cached_tokens
from ppdgrow.data.tokenization import Tokenizer, load_tokenizer
from ppdgrow.errors import ConfigError, InvalidInputError


@dataclass(frozen=True)
class TokenStream:
    """A tokenised split: ids `(tokens,)` in the smallest integer type, and what it was made from."""

    tokens: Tensor
    num_bytes: int
    sha256: str


@dataclass(frozen=True)
class MaskedTask:
    """What `mlm` needs beside the tokens."""

    num_tokens: int
    fraction: float


class TokenWindows:
    """Windows of T + 1 tokens of a stream on its device: T inputs and, one place on, T targets.

    In an epoch the windows start T apart, so that every token but the first of a window is a target once; a
    shift that is drawn for each epoch moves the cuts.
    """

    def __init__(self, stream: Tensor, length: int, masked: MaskedTask | None) -> None:
        self._stream, self._length, self._masked = stream, length, masked
        self._offsets = torch.arange(length + 1, device=stream.device)

    @property
    def num_examples(self) -> int:
        """Windows per epoch: as many as fit under every shift below T."""
        return max(1, len(self._stream) // self._length - 1)

    @property
    def unit(self) -> str:
        """What an example is."""
        return f"windows of {self._length + 1} tokens"

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
        masks = draw_masks(
            (len(positions), self._length),
            num_tokens=self._masked.num_tokens,
            mask_id=self._masked.num_tokens,
            fraction=self._masked.fraction,
            draw=draw,
        )
        selected = to_device(masks.selected, tokens.device)
        replacements = to_device(masks.replacements, tokens.device)
        return Batch(
            torch.where(replacements >= 0, replacements, tokens),
            torch.where(selected, tokens, NO_TARGET),
        )


class TextDataset(Dataset):
    """Text in three splits; a subclass says where their bytes come from."""

    tasks: ClassVar[tuple[Task, ...]] = ("lm", "mlm")

    @abstractmethod
    def read(self, split: Split) -> bytes:
        """The raw UTF-8 text of a split.

        Raises:
            InvalidInputError: it is not there or cannot be read.
        """

    @property
    def keys(self) -> tuple[str, ...]:
        """How text is cut, and under `mlm` masked."""
        return ("tokenizer", "sequence_length", *(("mask_fraction",) if self.task == "mlm" else ()))

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the checkpoint, else that of the recipe, trained on the train split."""
        if self._given_tokenizer is not None:
            return load_tokenizer(self._given_tokenizer)
        return cached_tokenizer(self._tokenizer_spec, lambda: self.read("train"), self.report)

    @property
    def tokenizer_json(self) -> str | None:
        """The trained tokenizer; None for bytes."""
        return self.tokenizer.json

    def input_spec(self, patch_size: int) -> TokenInput:
        """Vocabulary (under `mlm` with a mask token, the last id) and sequence length."""
        size = self.tokenizer.size + (1 if self.task == "mlm" else 0)
        return TokenInput(vocabulary_size=size, sequence_length=self.config.sequence_length)

    def describe(self) -> str:
        """Tokens per split and the tokenizer."""
        train, validation = (format_count(len(self.stream(split).tokens)) for split in ("train", "validation"))
        return f"{self.name}: {train} train, {validation} validation tokens, {self._tokenizer_spec}"

    def identity(self, validation_examples: int) -> DataIdentity:
        """Digests of the text before tokenisation."""
        return DataIdentity(
            name=self.name,
            tokenizer=self._tokenizer_spec,
            sequence_length=self.config.sequence_length,
            sha256={split: stream.sha256 for split, stream in sorted(self._streams.items())},
            validation_examples=validation_examples,
        )

    def bytes_per_token(self, split: Split) -> float | None:
        """Bytes of the raw text per token; None under `mlm`, whose loss is no code length."""
        if self.task == "mlm":
            return None
        stream = self.stream(split)
        return stream.num_bytes / max(1, len(stream.tokens))

    def stream(self, split: Split) -> TokenStream:
        """A split as tokens on the CPU."""
        if split not in self._streams:
            self.report(f"reading {self.name} {split}")
            raw = self.read(split)
            digest = hashlib.sha256(raw).hexdigest()
            self.report(f"tokenizing {self.name} {split}")
            tokens = cached_tokens(self.tokenizer, raw, digest, f"{self.name} {split}")
            self._streams[split] = TokenStream(tokens, len(raw), digest)
        return self._streams[split]

    @cached_property
    def _streams(self) -> dict[Split, TokenStream]:
        return {}

    @property
    def _tokenizer_spec(self) -> str:
        spec = self.config.tokenizer or self.default_tokenizer
        if spec is None:
            raise ConfigError(f"data.tokenizer is not set for {self.name}: expected byte, bpe:N or word")
        return spec

    def _load_examples(self, split: Split, device: torch.device) -> TokenWindows:
        tokens, length = self.stream(split).tokens, self.config.sequence_length
        if len(tokens) <= length:
            left_out = f" beside {len(self.skipped):,} skipped files" if self.skipped else ""
            raise InvalidInputError(
                f"{self.name} {split}: found {len(tokens)} tokens{left_out}, expected at least {length + 1} for one "
                "sequence: lower data.sequence_length or use more data"
            )
        masked = MaskedTask(self.tokenizer.size, self.config.mask_fraction) if self.task == "mlm" else None
        return TokenWindows(tokens.to(device), length, masked)
