"""Augmentation of training images: a random flip and a shifted crop (He et al. 2016, section 4.2), by torchvision.

Shapes: B batch, C channels, H height, W width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ppdgrow.data.batches import to_device

PADDING_SHARE = 8  # of a side: 4 pixels of the 32 of CIFAR-10


@dataclass(frozen=True)
class Augmentation:
    """Each image flipped left to right or not, padded by an eighth of its sides, and cropped back at a random place.

    Attributes:
        flip: whether the mirror image of a class still belongs to it (digits do not).
    """

    flip: bool

    def describe(self) -> str:
        """In words."""
        return "flipped and cropped at random" if self.flip else "cropped at random"

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
