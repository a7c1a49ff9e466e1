"""Batches as a pure function of (seed, step), from data that stays on the device.

Shapes: B batch, T tokens, C channels, H height, W width, N examples per epoch.

Every choice is drawn on the CPU, so it does not depend on the device, and copied without waiting for it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from ppdgrow.errors import InvalidInputError
from ppdgrow.seeding import generator

NO_TARGET = -100
Augment = Callable[[Tensor, torch.Generator], Tensor]


@dataclass(frozen=True)
class Batch:
    """Inputs and targets of one step.

    `inputs` are token ids `(B, T)` int64 or images `(B, C, H, W)` float32; `targets` are token ids `(B, T)`
    or classes `(B,)`, both int64, with `NO_TARGET` where no loss is taken.
    """

    inputs: Tensor
    targets: Tensor


class Examples(ABC):
    """A split on a device. A position, an int64 on the CPU, names one example: its index, unless a subclass differs."""

    num_examples: int  # per epoch, N
    unit: str  # what an example is, for messages, such as `windows of 129 tokens`

    def epoch(self, draw: torch.Generator) -> Tensor:
        """Positions `(N,)` of one epoch in the order in which they are seen."""
        return torch.randperm(self.num_examples, generator=draw)

    def spread(self, count: int) -> Tensor:
        """Positions of `count` fixed examples, evenly spread, or of all if there are fewer."""
        return evenly_spread(count, self.num_examples)

    @abstractmethod
    def batch(self, positions: Tensor, draw: torch.Generator) -> Batch:
        """The examples at `positions`; `draw` decides what is masked, if anything is."""


class Batches:
    """Training batches: epoch after epoch a new permutation of all examples, cut into batches.

    Example j of step i is number k = i * batch_size + j in the endless sequence of epochs; it belongs to epoch
    k // N. A batch may lie across two epochs. `augmentation` is applied to the inputs, with a generator of the step.
    Fewer examples than one batch are an InvalidInputError that calls them `name`.
    """

    def __init__(
        self, examples: Examples, *, batch_size: int, seed: int, name: str, augmentation: Augment | None = None
    ) -> None:
        if examples.num_examples < batch_size:
            raise InvalidInputError(
                f"{name}: found {examples.num_examples} {examples.unit}, expected at least one batch of {batch_size}: "
                "lower train.batch_size or use more data"
            )
        self._examples, self._batch_size, self._seed = examples, batch_size, seed
        self._augmentation = augmentation
        self._order = lru_cache(maxsize=2)(lambda epoch: examples.epoch(generator(seed, "epoch", epoch)))

    def at(self, step: int) -> Batch:
        """The batch of a step, whatever was asked for before."""
        epoch, offset = divmod(step * self._batch_size, self._examples.num_examples)
        positions = self._order(epoch)[offset : offset + self._batch_size]
        missing = self._batch_size - len(positions)
        if missing:
            positions = torch.cat([positions, self._order(epoch + 1)[:missing]])
        batch = self._examples.batch(positions, generator(self._seed, "mask", step))
        if self._augmentation is None:
            return batch
        return Batch(self._augmentation(batch.inputs, generator(self._seed, "augment", step)), batch.targets)


def evaluation_batches(examples: Examples, *, batch_size: int, num_batches: int, microbatches: int = 1) -> list[Batch]:
    """Fixed batches of evenly spread examples, the same for every seed and every way of cutting them."""
    whole = examples.batch(examples.spread(batch_size * num_batches), generator("evaluation"))
    at_once = -(-batch_size // microbatches)
    cut = zip(torch.split(whole.inputs, at_once), torch.split(whole.targets, at_once), strict=True)
    return [Batch(inputs, targets) for inputs, targets in cut]


def evenly_spread(count: int, available: int) -> Tensor:
    """`count` different indices below `available`, evenly spread; all of them if there are fewer."""
    count = min(count, available)
    return torch.arange(count) * available // count


def to_device(choices: Tensor, device: torch.device) -> Tensor:
    """Copy a small CPU tensor without waiting: from pinned memory, as only then is the copy asynchronous."""
    if device.type == "cuda":
        choices = choices.pin_memory()
    return choices.to(device, non_blocking=True)
