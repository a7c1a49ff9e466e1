"""A path as a data set: text for `lm` and `mlm`, labelled images for `classify`.

Shapes: N images, C channels, H height, W width.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence, Set
from functools import cached_property, partial
from pathlib import Path
from typing import TypeVar

import torch

from ppdgrow.config.kinds import Task
from ppdgrow.config.schema import DataConfig
from ppdgrow.data.dataset import Dataset, Split
from ppdgrow.data.decoding import decode, size_of
from ppdgrow.data.images import ImageDataset, LabelledImages
from ppdgrow.data.local.columns import ImageColumn, TextColumn, image_columns, text_column
from ppdgrow.data.local.files import survey
from ppdgrow.data.local.sources import SKIP, ImageFolder, ImageSource, Sample, Source, TextFiles, TextSource
from ppdgrow.data.local.splits import PartRange, by_hash, few, split_ranges
from ppdgrow.data.local.tables import open_tables
from ppdgrow.data.location import find
from ppdgrow.data.text import TextDataset
from ppdgrow.data.token_cache import few_lines
from ppdgrow.errors import InvalidInputError, first_line

TEXT_SHARE = 0.05
IMAGE_SHARE = 0.1
MIXED_SIZE = 64
Result = TypeVar("Result")


def open_source(config: DataConfig) -> TextSource | ImageSource:
    """What lies at `data.name`; lists files and reads schemas, of CSV and JSON lines a file, and labels.

    Raises:
        InvalidInputError: nothing, or nothing usable, lies there.
        ConfigError: a column that the recipe names is not there, or none can be guessed.
    """
    files = survey(find(config))
    if files.kind == "text":
        return TextFiles(files, config)
    if files.kind == "images":
        return ImageFolder(files)
    tables = open_tables(files, config)
    columns = image_columns(tables, config)
    return TextColumn(tables, text_column(tables, config)) if columns is None else ImageColumn(tables, *columns)


class LocalText(TextDataset):
    """Somebody's text."""

    default_tokenizer = "byte"

    def __init__(self, config: DataConfig, task: Task, tokenizer_json: str | None, source: TextSource) -> None:
        super().__init__(config, task, tokenizer_json)
        self.name = name_of(config)
        self._source = source
        self.notes, self.skipped = source.notes, source.skipped
        self._texts: dict[Split | None, bytes] = {}

    @property
    def keys(self) -> tuple[str, ...]:
        return (*super().keys, *self._source.keys)

    def read(self, split: Split) -> bytes:
        """The named part, or the share of one, cut at line ends."""
        cut = _range_of(self._source, split, TEXT_SHARE, self.config)
        if cut.part not in self._texts:
            self._texts[cut.part] = self._source.text(cut.part).encode()
        whole = self._texts[cut.part]
        return whole if cut.whole else whole[_line_end(whole, cut.start) : _line_end(whole, cut.stop)]


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
        self.notes = source.notes
        self.classes = source.classes
        if len(self.classes) < 2:
            found = f"the one class {self.classes[0]!r}" if self.classes else "no class"
            raise InvalidInputError(
                f"data {config.name!r}: found {'; '.join([found, *self.notes])}, expected at least two classes: add "
                "images of another class"
            )

    @property
    def keys(self) -> tuple[str, ...]:
        return (*super().keys, "image_size", "skip_broken", *self._source.keys)

    @cached_property
    def image_size(self) -> tuple[int, int, int]:
        """`data.image_size`, else the size that all images of train and validation have, else 64 x 64."""
        side = self.config.image_size
        if side is not None:
            return 3, side, side
        sizes: set[tuple[int, int]] = set()
        splits: tuple[Split, ...] = ("train", "validation")
        for part in dict.fromkeys(_range_of(self._source, split, IMAGE_SHARE, self.config).part for split in splits):
            for sample in self._source.samples(part):
                size = self._attempt(sample, size_of)
                if size is not None:
                    sizes.add(size)
            if len(sizes) > 1:
                return 3, MIXED_SIZE, MIXED_SIZE
        if not sizes:
            raise self._none_readable()
        return 3, *sizes.pop()

    def read(self, split: Split) -> LabelledImages:
        """The named part, or the share of one in an order that is as good as random; only this is decoded."""
        chosen, samples = self._chosen(split)
        if not chosen:
            found = "; ".join([f"no image for the {split} split among {len(samples)}", *self.notes])
            raise InvalidInputError(
                f"data {self.config.name!r}: found {found}, expected at least one: add images, or make folders train, "
                "validation and test"
            )
        _, height, width = self.image_size
        self._check_memory(len(chosen) * 3 * height * width)
        images, labels = [], []
        if split != "train":
            self._refuse_untrained(chosen, {sample.label for sample in self._chosen("train")[0]})
        for sample in chosen:
            pixels = self._attempt(sample, partial(decode, size=(height, width)))
            if pixels is not None:
                images.append(pixels)
                labels.append(sample.label)
        if not images:
            raise self._none_readable()
        if split == "train":
            self._refuse_untrained(samples, set(labels))
            unused = [name for name in self.classes if name not in set(labels)]
            self.notes += [f"no image has the class {few(unused)}, which the table names"] if unused else []
        number = {name: index for index, name in enumerate(self.classes)}
        return LabelledImages(torch.stack(images), torch.tensor([number[label] for label in labels]))

    def _chosen(self, split: Split) -> tuple[list[Sample], list[Sample]]:
        """The images of a split, and those of the part that it is cut from."""
        cut = _range_of(self._source, split, IMAGE_SHARE, self.config)
        samples = list(self._source.samples(cut.part))
        if not cut.whole:
            place = find(self.config)
            own = place.name if place.is_file() else ""  # a file that is renamed is cut as before
            samples.sort(key=lambda sample: by_hash(sample.name.removeprefix(own)))
        return [samples[index] for index in cut.indices(len(samples))], samples

    def _refuse_untrained(self, samples: Sequence[Sample], trained: Set[str]) -> None:
        """A class that is judged but never trained makes every figure wrong."""
        lost = [sample for sample in samples if sample.label not in trained]
        if lost:
            of_class = [sample.name for sample in lost if sample.label == lost[0].label]
            skipped = sum(name in self.skipped for name in of_class)
            raise InvalidInputError(
                f"data {self.config.name!r}: the class {lost[0].label!r} has no image in the training split (found "
                f"{few(of_class)}{f', of which {skipped} cannot be read' if skipped else ''}): add images of it there, "
                "or take the class out"
            )

    def _none_readable(self) -> InvalidInputError:
        where = f"data {self.config.name!r}: "
        reasons = few_lines([reason.removeprefix(where) for reason in self.skipped.values()])
        return InvalidInputError(f"{where}no file could be read: {'; '.join(reasons)}: copy them again")

    def _check_memory(self, needed: int) -> None:
        available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        if needed > available / 2:
            raise InvalidInputError(
                f"data {self.config.name!r}: the images take {needed / 1e9:.1f} GB decoded, expected at most half of "
                f"the memory ({available / 1e9:.1f} GB): set a smaller -o data.image_size, such as 64"
            )

    def _attempt(self, sample: Sample, work: Callable[[bytes], Result]) -> Result | None:
        """The outcome of work on a sample, or None if it is broken and `data.skip_broken` says to go on."""
        try:
            return work(sample.read())
        except Exception as error:  # decoders raise whatever they like
            message = f"data {self.config.name!r}: the image {sample.name!r} cannot be read ({first_line(error)})"
            if not self.config.skip_broken:
                raise InvalidInputError(f"{message}: replace it, {SKIP}") from None
            self.skipped[sample.name] = message
            return None


def _range_of(source: Source, split: Split, share: float, config: DataConfig) -> PartRange:
    found = split_ranges(source.parts, share)
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
    """The data set at a path; whether it fits the task is the caller's to check."""
    source = open_source(config)
    if isinstance(source, TextSource):
        return LocalText(config, task, tokenizer_json, source)
    return LocalImages(config, task, tokenizer_json, source)
