"""What every data set offers: three splits, training batches, fixed evaluation batches, and an identity."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch

from ppdgrow.config.architecture import ImageInput, TokenInput
from ppdgrow.config.kinds import Task
from ppdgrow.config.schema import DataConfig
from ppdgrow.config.state import DataIdentity
from ppdgrow.data.batches import Augment, Batch, Batches, Examples, evaluation_batches
from ppdgrow.data.token_cache import few_lines

Split = Literal["train", "validation", "test"]


class Dataset(ABC):
    """A data set under one task. Splits are read lazily: what is never asked for is never touched."""

    name: str  # what figures call it: of data at a path, the last part of that
    tasks: ClassVar[tuple[Task, ...]]  # the first is the default
    keys: tuple[str, ...]  # of the recipe's `data` that are of use here, beside `name` and `directory`
    default_tokenizer: ClassVar[str | None] = None
    tokenizer_spec: str | None = None  # `byte`, `bpe:N` or `word`; None for images
    sequence_length: int | None = None  # tokens of an example; None for images
    class_names: tuple[str, ...] | None = None  # in the order of their numbers; None for text
    augmentation: Augment | None = None  # what is done to the inputs of training batches

    def __init__(self, config: DataConfig, task: Task | None = None, tokenizer_json: str | None = None) -> None:
        self.config = config
        self.name = Path(config.name).name or Path(config.name).resolve().name or "data"
        self.task = task or self.tasks[0]
        self.notes: list[str] = []  # what a user should know of what was read so far
        self.skipped: dict[str, str] = {}  # what was left out under `data.skip_broken`: names and reasons
        self.report: Callable[[str], object] = lambda doing: None  # hears what is done where that takes a while
        self._given_tokenizer = tokenizer_json
        self._splits: dict[Split, Any] = {}  # what was read so far, on the CPU, each with its `sha256`
        self._on = cache(self._examples_of)

    @property
    def warnings(self) -> list[str]:
        """The notes, and what was skipped: the first few, and where all are listed."""
        skipped = [f"skipped: {reason.removeprefix('data: ')}" for _, reason in sorted(self.skipped.items())]
        return [*self.notes, *few_lines(skipped)]

    @abstractmethod
    def input_spec(self, patch_size: int) -> TokenInput | ImageInput:
        """What a model of this data takes in. A tokenizer that is trained reads the train split for it."""

    @abstractmethod
    def describe(self) -> str:
        """One line for people: sizes of the train and validation splits (which this reads), tokenizer or classes."""

    def identity(self, validation_examples: int) -> DataIdentity:
        """Which data this is, with a digest of each split that was read so far."""
        return DataIdentity(
            name=self.name,
            tokenizer=self.tokenizer_spec,
            sequence_length=self.sequence_length,
            sha256={split: data.sha256 for split, data in sorted(self._splits.items())},
            validation_examples=validation_examples,
        )

    def bytes_per_token(self, split: Split) -> float | None:
        """Raw bytes of a split per target, or None where bits per byte have no meaning (images, masked tokens)."""
        return None

    @property
    def tokenizer_json(self) -> str | None:
        """The trained tokenizer in the format of the `tokenizers` library, or None if there is nothing to keep."""
        return None

    def batches(self, split: Split, *, batch_size: int, seed: int, device: torch.device) -> Batches:
        """Training batches as a pure function of (seed, step).

        Raises:
            InvalidInputError: the data is not there, damaged, or smaller than one batch.
        """
        name = f"{self.name} {split}"
        examples = self._on(split, device)
        return Batches(examples, batch_size=batch_size, seed=seed, name=name, augmentation=self.augmentation)

    def evaluation(
        self, split: Split, *, batch_size: int, num_batches: int, device: torch.device, microbatches: int = 1
    ) -> list[Batch]:
        """Fixed batches, evenly spread over a split; they depend on no seed. Each may be cut into `microbatches`.

        The examples and their masks depend only on `batch_size * num_batches`; a split that has fewer gives all.

        Raises:
            InvalidInputError: the data is not there, damaged, or smaller than one example.
        """
        examples = self._on(split, device)
        return evaluation_batches(examples, batch_size=batch_size, num_batches=num_batches, microbatches=microbatches)

    @abstractmethod
    def _examples_of(self, split: Split, device: torch.device) -> Examples:
        """A split laid onto a device."""
