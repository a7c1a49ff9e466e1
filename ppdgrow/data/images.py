"""Image data sets: encoded images to pixels, all of a split on the device as bytes, normalised when they are gathered.

Shapes: N images, B batch, C channels, H height, W width.
"""

from __future__ import annotations

import hashlib
import io
import warnings
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from pydantic import ValidationError
from torch import Tensor

from ppdgrow.atomic import LFS_POINTER, is_lfs_pointer
from ppdgrow.config.architecture import ImageInput
from ppdgrow.config.kinds import Task
from ppdgrow.config.schema import DataConfig
from ppdgrow.data.batches import Batch, Examples, to_device
from ppdgrow.data.dataset import Dataset, Split
from ppdgrow.errors import ConfigError

if TYPE_CHECKING:
    from PIL.Image import Image

_TURNED = range(5, 9)  # values of the EXIF orientation that swap the sides
_DEEP = ("I", "I;16", "I;16B", "I;16L")
PADDING_SHARE = 8  # of a side: 4 pixels of the 32 of CIFAR-10


@dataclass(frozen=True)
class Augmentation:
    """Each image flipped left to right or not, and shifted by up to an eighth of its sides (He et al. 2016, 4.2)."""

    flip: bool  # whether the mirror image of a class still belongs to it (digits do not)

    def __call__(self, images: Tensor, draw: torch.Generator) -> Tensor:
        """Augmented images `(B, C, H, W)`; all that is random comes from `draw`, on the CPU.

        The padding is 0, which is the mean of normalised images.
        """
        from torchvision.transforms.v2 import functional as F

        count, _, height, width = images.shape
        vertical, horizontal = height // PADDING_SHARE, width // PADDING_SHARE
        flips = torch.rand(count, generator=draw) < 0.5
        tops = torch.randint(2 * vertical + 1, (count,), generator=draw).tolist()
        lefts = torch.randint(2 * horizontal + 1, (count,), generator=draw).tolist()
        if self.flip:
            chosen = to_device(flips, images.device)[:, None, None, None]
            images = torch.where(chosen, F.horizontal_flip(images), images)
        padded = F.pad(images, [horizontal, vertical])
        crops = [F.crop(image, top, left, height, width) for image, top, left in zip(padded, tops, lefts, strict=True)]
        return torch.stack(crops)


@dataclass(frozen=True)
class LabelledImages:
    """Images `(N, C, H, W)` uint8 with classes `(N,)` int64."""

    pixels: Tensor
    labels: Tensor

    def to(self, device: torch.device) -> LabelledImages:
        return LabelledImages(self.pixels.to(device), self.labels.to(device))

    @cached_property
    def sha256(self) -> str:
        """Digest of the decoded pixels and the labels: what a model sees, whatever the container."""
        digest = hashlib.sha256(self.pixels.contiguous().numpy().data)
        digest.update(self.labels.numpy().astype("<i8").data)
        return digest.hexdigest()


class ImageExamples(Examples):
    """Images of a split on their device; the position of an image is its index."""

    unit = "images"

    def __init__(self, images: LabelledImages, mean: Sequence[float], std: Sequence[float]) -> None:
        self._images = images
        self.num_examples = len(images.labels)
        device = images.pixels.device
        self._mean = 255.0 * torch.tensor(mean, device=device)[:, None, None]
        self._std = 255.0 * torch.tensor(std, device=device)[:, None, None]

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
    keys: tuple[str, ...] = ("augment",)
    class_names: tuple[str, ...]
    _splits: dict[Split, LabelledImages]

    def __init__(self, config: DataConfig, task: Task | None = None, tokenizer_json: str | None = None) -> None:
        super().__init__(config, task, tokenizer_json)
        self.augmentation = Augmentation(self.flips) if config.augment else None

    @property
    @abstractmethod
    def image_size(self) -> tuple[int, int, int]:
        """`(C, H, W)` of all images."""

    @abstractmethod
    def read(self, split: Split) -> LabelledImages:
        """The decoded images of a split; InvalidInputError if they are not there or cannot be read."""

    def input_spec(self, patch_size: int) -> ImageInput:
        """The size of an image; ConfigError if the patches do not divide it."""
        channels, height, width = self.image_size
        try:
            return ImageInput(
                channels=channels, height=height, width=width, patch_size=patch_size, num_classes=len(self.class_names)
            )
        except ValidationError as error:
            raise ConfigError(error.errors()[0]["msg"].removeprefix("Value error, ")) from None

    def describe(self) -> str:
        train, validation = (len(self.images(split).labels) for split in ("train", "validation"))
        _, height, width = self.image_size
        more = ", .." if len(self.class_names) > 3 else ""
        augmented = f", {'flipped and ' if self.flips else ''}cropped at random" if self.augmentation else ""
        return (
            f"{self.name}: {train:,} train, {validation:,} validation images of {height} x {width}, "
            f"{len(self.class_names)} classes ({', '.join(self.class_names[:3])}{more}){augmented}"
        )

    def images(self, split: Split) -> LabelledImages:
        """A split on the CPU."""
        if split not in self._splits:
            self.report(f"reading {self.name} {split}")
            self._splits[split] = self.read(split)
        return self._splits[split]

    def _examples_of(self, split: Split, device: torch.device) -> ImageExamples:
        return ImageExamples(self.images(split).to(device), self.mean, self.std)


@contextmanager
def opened(encoded: bytes) -> Iterator[Image]:
    """An image file, its header read; any exception if it is none, or Pillow warns of it, as of absurd sizes."""
    import PIL.Image

    if not encoded:
        raise ValueError("it is empty")
    if is_lfs_pointer(encoded):
        raise ValueError(f"it is {LFS_POINTER}")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with PIL.Image.open(io.BytesIO(encoded)) as image:
            yield image


def size_of(encoded: bytes) -> tuple[int, int]:
    """Height and width in pixels, upright, from the header alone."""
    from PIL import ExifTags

    with opened(encoded) as image:
        width, height = image.size
        turned = image.getexif().get(ExifTags.Base.Orientation) in _TURNED
    return (width, height) if turned else (height, width)


def decode(encoded: bytes, size: tuple[int, int] | None = None) -> Tensor:
    """Pixels `(3, H, W)` uint8 of an upright image, scaled and cut at its centre to fit a size `(H, W)`.

    Grey and palette images become RGB; what is transparent is laid on white.
    """
    from PIL import ImageOps

    with opened(encoded) as image:
        upright = _to_rgb(ImageOps.exif_transpose(image))
    if size is not None and upright.size != size[::-1]:
        upright = ImageOps.fit(upright, size[::-1])
    return torch.from_numpy(np.array(upright)).permute(2, 0, 1)


def _to_rgb(image: Image) -> Image:
    import PIL.Image

    if image.mode in _DEEP:  # 16 bits, which Pillow would cut off at 255
        pixels = np.asarray(image).astype(np.int64)
        return PIL.Image.fromarray((pixels // 256 if pixels.max() > 255 else pixels).astype(np.uint8)).convert("RGB")
    if image.has_transparency_data:
        coloured = image.convert("RGBA")
        ground = PIL.Image.new("RGBA", coloured.size, "white")
        return PIL.Image.alpha_composite(ground, coloured).convert("RGB")
    return image.convert("RGB")
