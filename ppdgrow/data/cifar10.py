"""`cifar10`: 60,000 images of 32x32 pixels in ten classes (Krizhevsky 2009)."""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ppdgrow.data.dataset import Split
from ppdgrow.data.images import ImageDataset, LabelledImages
from ppdgrow.data.location import data_directory, download, missing_data, reading
from ppdgrow.errors import InvalidInputError

HUB = ("uoft-cs/cifar10", "plain_text")
PARQUET_FOLDER = Path("cifar10") / "plain_text"
PICKLE_FOLDER = "cifar-10-batches-py"
SIZES = {"train": 50_000, "test": 10_000}
NUM_VALIDATION = 5_000


class Cifar10(ImageDataset):
    """Parquet files as on the hub or the official Python files below the data directory, else the hub's copy.

    The last 5,000 training images in the official order are the validation split.
    """

    name = "cifar10"
    classes = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
    image_size = (3, 32, 32)
    flips = True
    mean = (0.4914, 0.4822, 0.4465)
    std = (0.2470, 0.2435, 0.2616)

    def read(self, split: Split) -> LabelledImages:
        """Images of a split; only these are decoded."""
        rows = _rows(split)
        part = "test" if split == "test" else "train"
        folder = data_directory(self.config)
        if folder is None:
            table = download(self.name, *HUB, part)
            return _from_arrow(table.data.table.slice(rows.start, len(rows)), HUB[0])
        paths = sorted((folder / PARQUET_FOLDER).glob(f"{part}-*.parquet"))
        if paths:
            return _from_parquet(paths, part, rows)
        if (folder / PICKLE_FOLDER).is_dir():
            return _from_pickles(folder, part, rows)
        raise missing_data(
            self.name,
            f"{str(folder / PARQUET_FOLDER / f'{part}-*.parquet')!r} or {str(folder / PICKLE_FOLDER)!r}",
        )


def _rows(split: Split) -> range:
    """Rows of the official train or test set that make a split."""
    if split == "test":
        return range(SIZES["test"])
    cut = SIZES["train"] - NUM_VALIDATION
    return range(cut) if split == "train" else range(cut, SIZES["train"])


def _from_parquet(paths: Sequence[Path], part: str, rows: range) -> LabelledImages:
    """The wanted rows out of files that follow each other, reading only the row groups that hold some."""
    import pyarrow
    import pyarrow.parquet

    tables, first, start = [], None, 0
    for path in paths:
        with reading("cifar10", path), pyarrow.parquet.ParquetFile(path) as file:
            for group in range(file.metadata.num_row_groups):
                stop = start + file.metadata.row_group(group).num_rows
                if start < rows.stop and stop > rows.start:
                    tables.append(file.read_row_group(group, columns=["img", "label"]))
                    first = start if first is None else first
                start = stop
    if start != SIZES[part] or first is None:
        raise InvalidInputError(
            f"cifar10: found {start} images in {str(paths[0].parent / f'{part}-*.parquet')!r}, expected "
            f"{SIZES[part]}: copy the missing files, or name another folder with --data-dir"
        )
    return _from_arrow(pyarrow.concat_tables(tables).slice(rows.start - first, len(rows)), str(paths[0].parent))


def _from_arrow(table: Any, origin: str) -> LabelledImages:
    """Decode the column `img`, a struct with the file's `bytes`, and take the column `label`."""
    with reading("cifar10", Path(origin)):
        encoded = [image["bytes"] for image in table.column("img").to_pylist()]
        labels = torch.tensor(table.column("label").to_pylist(), dtype=torch.int64)
        return _checked(torch.stack([_decode(image) for image in encoded]), labels)


def _decode(image: bytes) -> Tensor:
    """Pixels `(C, H, W)` of a PNG or JPEG file."""
    from PIL import Image

    with Image.open(io.BytesIO(image)) as decoded:
        return torch.from_numpy(np.array(decoded.convert("RGB"))).permute(2, 0, 1)


def _from_pickles(folder: Path, part: str, rows: range) -> LabelledImages:
    """The official Python files, whose checksums torchvision verifies before it unpickles anything."""
    from torchvision.datasets import CIFAR10

    with reading("cifar10", folder / PICKLE_FOLDER), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy 2.4 finds fault with arrays pickled by older versions
        official = CIFAR10(root=str(folder), train=part == "train", download=False)
        pixels = torch.from_numpy(official.data[rows.start : rows.stop]).permute(0, 3, 1, 2).contiguous()
        return _checked(pixels, torch.tensor(official.targets[rows.start : rows.stop], dtype=torch.int64))


def _checked(pixels: Tensor, labels: Tensor) -> LabelledImages:
    if tuple(pixels.shape[1:]) != Cifar10.image_size or not 0 <= int(labels.min()) <= int(labels.max()) < 10:
        raise ValueError(
            f"found images {tuple(pixels.shape[1:])} with labels {int(labels.min())} to {int(labels.max())}, "
            "expected (3, 32, 32) and 0 to 9"
        )
    return LabelledImages(pixels, labels)
