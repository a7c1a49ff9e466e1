"""The data sets that have a name; every other `data.name` is a path (`local`).

Adding one is a class and a line in `DATASETS` here, and one in `kinds`.
"""

from __future__ import annotations

import os
import sysconfig
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from ppdgrow.data.dataset import Dataset, Split
from ppdgrow.data.images import ImageDataset, LabelledImages, decode
from ppdgrow.data.local.splits import by_hash
from ppdgrow.data.location import data_directory, download, missing_data, reading
from ppdgrow.data.text import TextDataset
from ppdgrow.errors import ConfigError, InvalidInputError


class Stdlib(TextDataset):
    """The running interpreter's own standard-library sources, several MB of real text without a network.

    Files are dealt to the splits by the hash of their names, so a file never changes its split.
    """

    name = "stdlib"
    default_tokenizer = "byte"
    # Installed packages, generated caches, and tests, which are long tables rather than text.
    skipped_folders = frozenset(["site-packages", "dist-packages", "__pycache__", "test", "tests", "idlelib"])

    def read(self, split: Split) -> bytes:
        """The files of a split in the order of their names, joined by newlines."""
        folder = Path(sysconfig.get_path("stdlib"))
        paths = [folder / name for name in self.source_files(folder) if self.split_of(name) == split]
        if not paths:
            raise InvalidInputError(
                f"stdlib: found no sources (*.py) for the {split} split below {str(folder)!r}: this Python came "
                "without its library's sources; use another Python, or --data wikitext2"
            )
        texts = []
        for path in paths:
            with reading("stdlib", path):
                texts.append(path.read_bytes().decode("utf-8", "replace").encode())
        return b"\n".join(texts)

    @classmethod
    def source_files(cls, folder: Path) -> list[str]:
        """Relative posix paths of the sources below a standard library, sorted."""
        found = []
        for current, folders, files in os.walk(folder):
            folders[:] = [name for name in folders if name not in cls.skipped_folders]
            # _sysconfigdata is written when Python is built: settings of that machine, no source
            sources = [name for name in files if name.endswith(".py") and not name.startswith("_sysconfigdata")]
            found += [(Path(current) / name).relative_to(folder).as_posix() for name in sources]
        return sorted(found)

    @staticmethod
    def split_of(name: str) -> Split:
        """5 % validation, 5 % test, by the sha256 of the relative path."""
        share = int(by_hash(name)[:8], 16) / 2**32
        return "validation" if share < 0.05 else "test" if share < 0.1 else "train"


class WikiText2(TextDataset):
    """WikiText-2 (Merity et al. 2016): `wikitext-2/{train,valid,test}.txt` of the data directory, else from the hub."""

    name = "wikitext2"
    default_tokenizer = "bpe:4096"
    hub = ("Salesforce/wikitext", "wikitext-2-v1")

    def read(self, split: Split) -> bytes:
        """The text of the official release."""
        folder = data_directory(self.config)
        if folder is None:
            return self.join_rows(download(self.name, *self.hub, split)["text"])
        path = folder / "wikitext-2" / f"{'valid' if split == 'validation' else split}.txt"
        if not path.is_file():
            raise missing_data(self.name, repr(str(path)))
        with reading(self.name, path):
            return path.read_bytes()

    @staticmethod
    def join_rows(rows: Iterable[str]) -> bytes:
        r"""The official file from the hub's rows, which hold a blank line (` \n`) as an empty string."""
        return "".join(row or " \n" for row in rows).encode()


class Cifar10(ImageDataset):
    """CIFAR-10 (Krizhevsky 2009): parquet or the official Python files of the data directory, else from the hub.

    The last 5,000 training images in the official order are the validation split.
    """

    name = "cifar10"
    class_names = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
    image_size = (3, 32, 32)
    flips = True
    mean = (0.4914, 0.4822, 0.4465)
    std = (0.2470, 0.2435, 0.2616)
    hub = ("uoft-cs/cifar10", "plain_text")
    sizes: ClassVar = {"train": 50_000, "test": 10_000}
    rows: ClassVar[dict[Split, range]] = {  # of the official train or test set
        "train": range(45_000),
        "validation": range(45_000, 50_000),
        "test": range(10_000),
    }

    def read(self, split: Split) -> LabelledImages:
        """Images of a split; only these are decoded."""
        rows, part = self.rows[split], "test" if split == "test" else "train"
        folder = data_directory(self.config)
        if folder is None:
            table = download(self.name, *self.hub, part)
            return self._decoded(table.data.table.slice(rows.start, len(rows)), Path(self.hub[0]))
        pattern = folder / "cifar10" / "plain_text" / f"{part}-*.parquet"
        pickles = folder / "cifar-10-batches-py"
        if any(pattern.parent.glob(pattern.name)):
            return self._decoded(self._read_parquet(pattern, self.sizes[part], rows), pattern.parent)
        if not pickles.is_dir():
            raise missing_data(self.name, f"{str(pattern)!r} or {str(pickles)!r}")
        # torchvision verifies checksums before it unpickles anything.
        from torchvision.datasets import CIFAR10

        with reading(self.name, pickles), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # numpy 2.4 finds fault with arrays pickled by older versions
            official = CIFAR10(root=str(folder), train=part == "train", download=False)
            pixels = torch.from_numpy(official.data[rows.start : rows.stop]).permute(0, 3, 1, 2).contiguous()
            return self._checked(pixels, official.targets[rows.start : rows.stop])

    def _read_parquet(self, pattern: Path, size: int, rows: range) -> Any:
        """The wanted rows out of files that follow each other, reading only the files that hold some."""
        import pyarrow
        from pyarrow.parquet import ParquetFile

        tables, start = [], 0
        for path in sorted(pattern.parent.glob(pattern.name)):
            with reading(self.name, path), ParquetFile(path) as file:
                stop = start + file.metadata.num_rows
                first, last = max(start, rows.start), min(stop, rows.stop)
                if first < last:
                    tables.append(file.read(columns=["img", "label"]).slice(first - start, last - first))
                start = stop
        if start != size:
            raise InvalidInputError(
                f"cifar10: found {start} images in {str(pattern)!r}, expected {size}: copy the missing files, or name "
                "another folder with --data-dir"
            )
        return pyarrow.concat_tables(tables)

    def _decoded(self, table: Any, origin: Path) -> LabelledImages:
        """From the column `img`, a struct with the file's `bytes`, and the column `label`."""
        with reading(self.name, origin):
            images = [decode(image["bytes"]) for image in table.column("img").to_pylist()]
            return self._checked(torch.stack(images), table.column("label").to_pylist())

    def _checked(self, pixels: Tensor, classes: Sequence[int]) -> LabelledImages:
        labels = torch.tensor(classes, dtype=torch.int64)
        if tuple(pixels.shape[1:]) != self.image_size or not 0 <= int(labels.min()) <= int(labels.max()) < 10:
            raise ValueError(
                f"found images {tuple(pixels.shape[1:])} with labels {int(labels.min())} to {int(labels.max())}, "
                "expected (3, 32, 32) and 0 to 9"
            )
        return LabelledImages(pixels, labels)


class Digits(ImageDataset):
    """1,797 handwritten digits (Alpaydin & Kaynak 1998) of scikit-learn; grey levels 0 to 16 become 0 to 255."""

    name = "digits"
    class_names = tuple("0123456789")
    image_size = (1, 8, 8)
    flips = False
    mean = (0.305,)  # of the training images, measured
    std = (0.377,)
    rows: ClassVar[dict[Split, range]] = {
        "train": range(1437),
        "validation": range(1437, 1617),
        "test": range(1617, 1797),
    }

    def read(self, split: Split) -> LabelledImages:
        """The images of a split, out of the package's own file."""
        try:
            from sklearn.datasets import load_digits
        except ImportError:
            raise ConfigError(
                "data.name digits comes with scikit-learn, which is not installed: pip install 'ppdgrow[digits]', or "
                "use other data"
            ) from None
        content, rows = load_digits(), slice(self.rows[split].start, self.rows[split].stop)
        pixels = torch.from_numpy(content.images).mul(255 / 16).round().to(torch.uint8).unsqueeze(1)
        return LabelledImages(pixels[rows], torch.from_numpy(content.target).to(torch.int64)[rows])


DATASETS: dict[str, type[Dataset]] = {kind.name: kind for kind in (Stdlib, WikiText2, Cifar10, Digits)}
