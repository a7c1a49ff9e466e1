"""`digits`: 1,797 handwritten digits of 8 x 8 pixels (Alpaydin & Kaynak 1998), as they come with scikit-learn."""

from __future__ import annotations

import torch

from ppdgrow.data.dataset import Split
from ppdgrow.data.images import ImageDataset, LabelledImages
from ppdgrow.errors import ConfigError

NUM_VALIDATION = NUM_TEST = 180


class Digits(ImageDataset):
    """The last 180 images are the test split, the 180 before them validation; grey levels 0 to 16 become 0 to 255."""

    name = "digits"
    classes = tuple("0123456789")
    image_size = (1, 8, 8)
    flips = False
    mean = (0.305,)  # of the training images, measured
    std = (0.377,)

    def read(self, split: Split) -> LabelledImages:
        """The images of a split, out of the package's own file."""
        try:
            from sklearn.datasets import load_digits
        except ImportError:
            raise ConfigError(
                "data.name digits comes with scikit-learn, which is not installed: pip install 'ppdgrow[digits]', or "
                "use other data"
            ) from None
        content = load_digits()
        pixels = torch.from_numpy(content.images).mul(255 / 16).round().to(torch.uint8).unsqueeze(1)
        rows = _rows(split, len(pixels))
        labels = torch.from_numpy(content.target).to(torch.int64)
        return LabelledImages(pixels[rows], labels[rows])


def _rows(split: Split, count: int) -> slice:
    cut = count - NUM_TEST
    return {
        "train": slice(0, cut - NUM_VALIDATION),
        "validation": slice(cut - NUM_VALIDATION, cut),
        "test": slice(cut, count),
    }[split]
