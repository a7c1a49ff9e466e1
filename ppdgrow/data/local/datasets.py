"""A path as a data set: text for `lm` and `mlm`, labelled images for `classify`.

Shapes: N images, C channels, H height, W width.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import torch

from ppdgrow.config.kinds import Task
from ppdgrow.config.schema import DataConfig
from ppdgrow.data.dataset import Dataset, Split
from ppdgrow.data.decoding import decode, size_of
from ppdgrow.data.images import ImageDataset, LabelledImages
from ppdgrow.data.local.files import find, survey
from ppdgrow.data.local.folders import SKIP, ImageFolder, TextFiles
from ppdgrow.data.local.source import ImageSource, Sample, TextSource
from ppdgrow.data.local.splitting import Piece, by_hash, pieces
from ppdgrow.data.local.tables import ImageColumn, TextColumn, image_columns, open_parquet, open_saved, text_column
from ppdgrow.data.text import TextDataset
from ppdgrow.errors import InvalidInputError

TEXT_SHARE = 0.05
IMAGE_SHARE = 0.1
MIXED_SIZE = 64
Result = TypeVar("Result")


def open_source(config: DataConfig) -> TextSource | ImageSource:
    """What lies at `data.name`; lists files and reads schemas, no data.

    Raises:
        InvalidInputError: nothing, or nothing usable, lies there.
        ConfigError: a column that the recipe names is not there, or none can be guessed.
    """
    files = survey(find(config))
    if files.kind == "text":
        return TextFiles(files, config)
    if files.kind == "images":
        return ImageFolder(files)
    tables = open_parquet(files) if files.kind == "parquet" else open_saved(files)
    columns = image_columns(tables, config)
    return TextColumn(tables, text_column(tables, config)) if columns is None else ImageColumn(tables, *columns)


class LocalText(TextDataset):
    """Somebody's text."""

    default_tokenizer = "byte"

    def __init__(self, config: DataConfig, task: Task, tokenizer_json: str | None, source: TextSource) -> None:
        super().__init__(config, task, tokenizer_json)
        self.name = name_of(config)
        self._source = source
        self.warnings += source.notes
        self._texts: dict[Split | None, bytes] = {}

    @property
    def keys(self) -> tuple[str, ...]:
        """Of text files, or of a column of text."""
        own = ("encoding", "skip_broken") if isinstance(self._source, TextFiles) else ("text_column",)
        return (*super().keys, *own)

    def read(self, split: Split) -> bytes:
        """The named part, or the share of one, cut at line ends."""
        piece = _piece(self._source, split, TEXT_SHARE, self.config)
        if piece.part not in self._texts:
            told = set(self._source.skipped)
            self._texts[piece.part] = self._source.text(piece.part).encode()
            skipped = self._source.skipped.items()
            self.warnings += [f"skipped {reason}" for name, reason in skipped if name not in told]
        whole = self._texts[piece.part]
        return whole if piece.whole else whole[_line_end(whole, piece.start) : _line_end(whole, piece.stop)]


def _line_end(text: bytes, share: float) -> int:
    """Where to cut: after the next line end from a share on, else (far from one) between two characters there."""
    place = round(share * len(text))
    if place in (0, len(text)):
        return place
    after = text.find(b"\n", place - 1, place + round(TEXT_SHARE / 2 * len(text))) + 1
    if after:
        return after
    while place < len(text) and text[place] & 0xC0 == 0x80:  # within a character of several bytes
        place += 1
    return place


class LocalImages(ImageDataset):
    """Somebody's images, in memory at one size: their own if all have it, else cut to a square."""

    mean = (0.5, 0.5, 0.5)
    std = (0.25, 0.25, 0.25)
    flips = True

    def __init__(self, config: DataConfig, task: Task, tokenizer_json: str | None, source: ImageSource) -> None:
        super().__init__(config, task, tokenizer_json)
        self.name = name_of(config)
        self._source = source
        self.warnings += source.notes
        self._broken: set[str] = set()
        self.classes = source.classes
        if len(self.classes) < 2:
            raise InvalidInputError(
                f"data {config.name!r}: found the one class {self.classes[0]!r}, expected at least two: add images of "
                "another class"
            )

    @property
    def keys(self) -> tuple[str, ...]:
        """Of image files, or of columns of images and labels."""
        columns = ("image_column", "label_column") if isinstance(self._source, ImageColumn) else ()
        return (*super().keys, "image_size", "skip_broken", *columns)

    @cached_property
    def image_size(self) -> tuple[int, int, int]:
        """`data.image_size`, else the size that all images of train and validation have, else 64 x 64."""
        side = self.config.image_size
        if side is not None:
            return 3, side, side
        sizes = set()
        splits: tuple[Split, ...] = ("train", "validation")
        read = dict.fromkeys(_piece(self._source, split, IMAGE_SHARE, self.config).part for split in splits)
        for part in read:
            for sample in self._source.samples(part):
                size = self._attempt(sample, lambda sample: size_of(sample.read()))
                if size is not None:
                    sizes.add(size)
            if len(sizes) > 1:
                return 3, MIXED_SIZE, MIXED_SIZE
        if not sizes:
            raise InvalidInputError(f"data {self.config.name!r}: none of the images can be read: copy them again")
        return 3, *sizes.pop()

    def read(self, split: Split) -> LabelledImages:
        """The named part, or the share of one in an order that is as good as random; only this is decoded."""
        piece = _piece(self._source, split, IMAGE_SHARE, self.config)
        samples = list(self._source.samples(piece.part))
        if not piece.whole:
            place = find(self.config)
            own = place.name if place.is_file() else ""  # a file that is renamed is cut as before
            samples.sort(key=lambda sample: by_hash(sample.name.removeprefix(own)))
        chosen = [samples[index] for index in piece.of(len(samples))]
        _, height, width = self.image_size
        self._check_memory(len(chosen) * 3 * height * width)
        number = {name: index for index, name in enumerate(self.classes)}
        images, labels = [], []
        for sample in chosen:
            pixels = self._attempt(sample, lambda sample: decode(sample.read(), (height, width)))
            if pixels is not None:
                images.append(pixels)
                labels.append(number[sample.label])
        if not images:
            raise InvalidInputError(
                f"data {self.config.name!r}: found no image for the {split} split among {len(samples)}, expected at "
                "least one: add images, or make folders train, validation and test"
            )
        return LabelledImages(torch.stack(images), torch.tensor(labels, dtype=torch.int64))

    def _check_memory(self, needed: int) -> None:
        available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        if needed > available / 2:
            raise InvalidInputError(
                f"data {self.config.name!r}: the images take {needed / 1e9:.1f} GB decoded, expected at most half of "
                f"the memory ({available / 1e9:.1f} GB): set a smaller -o data.image_size, such as 64"
            )

    def _attempt(self, sample: Sample, work: Callable[[Sample], Result]) -> Result | None:
        """The outcome of work on a sample, or None if it is broken and `data.skip_broken` says to go on."""
        try:
            return work(sample)
        except Exception as error:  # decoders raise whatever they like
            reason = " ".join(str(error).split()) or type(error).__name__
            message = f"data {self.config.name!r}: the image {sample.name!r} cannot be read ({reason})"
            if not self.config.skip_broken:
                raise InvalidInputError(f"{message}: replace it, {SKIP}") from None
            if sample.name not in self._broken:
                self._broken.add(sample.name)
                self.warnings.append(f"skipped: {message}")
            return None


def _piece(source: TextSource | ImageSource, split: Split, share: float, config: DataConfig) -> Piece:
    found = pieces(source.parts, share)
    if split not in found:
        raise InvalidInputError(
            f"data {config.name!r} names the splits {', '.join(sorted(map(str, source.parts)))} and has no {split} "
            f"split: add one that is called {split}"
        )
    return found[split]


def name_of(config: DataConfig) -> str:
    """What figures call the data: the last part of its path."""
    return Path(config.name).name or Path(config.name).resolve().name or "data"


def open_local(config: DataConfig, task: Task, tokenizer_json: str | None) -> Dataset:
    """The data set at a path; whether it fits the task is the caller's to check.

    Raises:
        InvalidInputError, ConfigError: as `open_source`.
    """
    source = open_source(config)
    if isinstance(source, TextSource):
        return LocalText(config, task, tokenizer_json, source)
    return LocalImages(config, task, tokenizer_json, source)
