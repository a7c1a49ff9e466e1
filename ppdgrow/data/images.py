"""Image data sets: all images of a split on the device as bytes, normalised when they are gathered.

Shapes: N images, B batch, C channels, H height, W width.
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from pydantic import ValidationError
from torch import Tensor

from ppdgrow.config.architecture import ImageInput
from ppdgrow.config.kinds import Task
from ppdgrow.config.state import DataIdentity
from ppdgrow.data.augmentation import Augmentation
from ppdgrow.data.batches import Batch, evenly_spread, to_device
from ppdgrow.data.dataset import Dataset, Split
from ppdgrow.errors import ConfigError


@dataclass(frozen=True)
class LabelledImages:
    """Images `(N, C, H, W)` uint8 with classes `(N,)` int64."""

    pixels: Tensor
    labels: Tensor

    def to(self, device: torch.device) -> LabelledImages:
        """The same on a device."""
        return LabelledImages(self.pixels.to(device), self.labels.to(device))

    @cached_property
    def sha256(self) -> str:
        """Digest of the decoded pixels and the labels: what a model sees, whatever the container."""
        digest = hashlib.sha256(self.pixels.contiguous().numpy().data)
        digest.update(self.labels.numpy().astype("<i8").data)
        return digest.hexdigest()


class ImageExamples:
    """Images of a split on their device; the position of an image is its index."""

    def __init__(self, images: LabelledImages, mean: Sequence[float], std: Sequence[float]) -> None:
        self._images = images
        device = images.pixels.device
        self._mean = 255.0 * torch.tensor(mean, device=device)[:, None, None]
        self._std = 255.0 * torch.tensor(std, device=device)[:, None, None]

    @property
    def num_examples(self) -> int:
        """All images."""
        return len(self._images.labels)

    @property
    def unit(self) -> str:
        """What an example is."""
        return "images"

    def epoch(self, draw: torch.Generator) -> Tensor:
        """A permutation of the images."""
        return torch.randperm(self.num_examples, generator=draw)

    def spread(self, count: int) -> Tensor:
        """Evenly spread over the official order."""
        return evenly_spread(count, self.num_examples)

    def batch(self, positions: Tensor, draw: torch.Generator) -> Batch:
        """Images `(B, C, H, W)` normalised per channel, and their classes."""
        indices = to_device(positions, self._images.pixels.device)
        pixels = self._images.pixels[indices].float()
        return Batch(pixels.sub_(self._mean).div_(self._std), self._images.labels[indices])


class ImageDataset(Dataset):
    """Labelled images in three splits; a subclass says where they come from."""

    tasks: ClassVar[tuple[Task, ...]] = ("classify",)
    flips: ClassVar[bool]
    mean: ClassVar[tuple[float, ...]]
    std: ClassVar[tuple[float, ...]]
    classes: tuple[str, ...]

    @property
    @abstractmethod
    def image_size(self) -> tuple[int, int, int]:
        """`(C, H, W)` of all images."""

    @abstractmethod
    def read(self, split: Split) -> LabelledImages:
        """The decoded images of a split.

        Raises:
            InvalidInputError: they are not there or cannot be read.
        """

    @property
    def keys(self) -> tuple[str, ...]:
        """Images of one size whose columns are known."""
        return ("augment",)

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes in the order of their numbers."""
        return self.classes

    @property
    def augmentation(self) -> Augmentation | None:
        """Flip (where a mirror image keeps its class) and crop, unless the recipe says no."""
        return Augmentation(self.flips) if self.config.augment else None

    def input_spec(self, patch_size: int) -> ImageInput:
        """The size of an image.

        Raises:
            ConfigError: the patches do not divide it.
        """
        channels, height, width = self.image_size
        try:
            return ImageInput(
                channels=channels, height=height, width=width, patch_size=patch_size, num_classes=len(self.classes)
            )
        except ValidationError as error:
            raise ConfigError(error.errors()[0]["msg"].removeprefix("Value error, ")) from None

    def describe(self) -> str:
        """Images per split and the number of classes."""
        train, validation = (len(self.images(split).labels) for split in ("train", "validation"))
        _, height, width = self.image_size
        augmented = f", {self.augmentation.describe()}" if self.augmentation else ""
        return (
            f"{self.name}: {train:,} train, {validation:,} validation images of {height} x {width}, "
            f"{len(self.classes)} classes ({', '.join(self.classes[:3])}{', ..' if len(self.classes) > 3 else ''})"
            f"{augmented}"
        )

    def identity(self, validation_examples: int) -> DataIdentity:
        """Digests of the decoded images and their labels."""
        return DataIdentity(
            name=self.name,
            tokenizer=None,
            sequence_length=None,
            sha256={split: images.sha256 for split, images in sorted(self._splits.items())},
            validation_examples=validation_examples,
        )

    def bytes_per_token(self, split: Split) -> None:
        """Images have no tokens."""
        return

    def images(self, split: Split) -> LabelledImages:
        """A split on the CPU."""
        if split not in self._splits:
            self._splits[split] = self.read(split)
        return self._splits[split]

    @cached_property
    def _splits(self) -> dict[Split, LabelledImages]:
        return {}

    def _load_examples(self, split: Split, device: torch.device) -> ImageExamples:
        return ImageExamples(self.images(split).to(device), self.mean, self.std)
