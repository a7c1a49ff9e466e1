"""Encoded images to pixels.

Shapes: C channels (3: RGB), H height, W width.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ppdgrow.atomic import LFS_POINTER, is_lfs_pointer

if TYPE_CHECKING:
    from PIL.Image import Image

_TURNED = range(5, 9)  # values of the EXIF orientation that swap the sides
_DEEP = ("I", "I;16", "I;16B", "I;16L")


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
        image.load()
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
