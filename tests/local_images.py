"""Image folders for tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image


def write_image(path: Path, size: tuple[int, int] = (8, 8), mode: str = "RGB", seed: int = 0) -> Path:
    """Noise of a size (height, width), in any of Pillow's modes, in the format of the suffix."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)
    Image.fromarray(pixels).convert(mode).save(path)
    return path


def write_classes(folder: Path, classes: Sequence[str] = ("cat", "dog"), count: int = 20) -> Path:
    """A folder per class with `count` images of 8 x 8."""
    for place, name in enumerate(classes):
        for number in range(count):
            write_image(folder / name / f"{number}.png", seed=100 * place + number)
    return folder
