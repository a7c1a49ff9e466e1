"""Somebody's labelled images: folders that are called like classes, or columns of tables.

Shapes: N images, C channels, H height, W width.
"""

from __future__ import annotations

import json
import os
from abc import abstractmethod
from collections.abc import Callable, Sequence, Set
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch

from ppdgrow.config.kinds import Task
from ppdgrow.config.schema import DataConfig
from ppdgrow.data.dataset import Split
from ppdgrow.data.images import ImageDataset, LabelledImages, decode, size_of
from ppdgrow.data.local.files import SKIP, Files
from ppdgrow.data.local.splits import Parts, by_hash, cut_of, few, parts_of, split_of_folder, split_of_name
from ppdgrow.data.local.tables import Tables
from ppdgrow.data.location import find
from ppdgrow.data.token_cache import few_lines
from ppdgrow.errors import InvalidInputError, first_line

SHARE = 0.1  # of validation and test, where they are cut off
MIXED_SIZE = 64
NO_LABEL = (-1, "-1")  # as test splits on the hub have it
Result = TypeVar("Result")


class Sample(NamedTuple):
    """An encoded image, read when it is needed, and the name of its class."""

    name: str
    label: str
    read: Callable[[], bytes]


class LocalImages(ImageDataset):
    """Images in named parts, in memory at one size; `class_names` are the classes of the training data."""

    mean = (0.5, 0.5, 0.5)
    std = (0.25, 0.25, 0.25)
    flips = True
    keys = (*ImageDataset.keys, "image_size", "skip_broken")
    parts: Parts

    @abstractmethod
    def samples(self, part: Split | None) -> list[Sample]:
        """The images of a part, or of everything, in the order of their names or rows."""

    @cached_property
    def image_size(self) -> tuple[int, int, int]:
        """`data.image_size`, else the size that all images of train and validation have, else 64 x 64."""
        side = self.config.image_size
        if side is not None:
            return 3, side, side
        sizes: set[tuple[int, int]] = set()
        for part in dict.fromkeys([self._cut("train")[0], self._cut("validation")[0]]):
            found = (self._attempt(sample, size_of) for sample in self.samples(part))
            sizes |= {size for size in found if size is not None}
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
        if split != "train":
            self._refuse_untrained(chosen, {sample.label for sample in self._chosen("train")[0]})
        decoded = [(self._attempt(sample, partial(decode, size=(height, width))), sample.label) for sample in chosen]
        images = [pixels for pixels, _ in decoded if pixels is not None]
        labels = [label for pixels, label in decoded if pixels is not None]
        if not images:
            raise self._none_readable()
        if split == "train":
            self._refuse_untrained(samples, set(labels))
            unused = [name for name in self.class_names if name not in set(labels)]
            self.notes += [f"no image has the class {few(unused)}, which the table names"] if unused else []
        number = {name: index for index, name in enumerate(self.class_names)}
        return LabelledImages(torch.stack(images), torch.tensor([number[label] for label in labels]))

    def _cut(self, split: Split) -> tuple[Split | None, float, float]:
        return cut_of(self.parts, split, SHARE, self.config.name)

    def _chosen(self, split: Split) -> tuple[list[Sample], list[Sample]]:
        """The images of a split, and those of the part that it is cut from."""
        part, start, stop = self._cut(split)
        samples = self.samples(part)
        if (start, stop) != (0.0, 1.0):
            place = find(self.config)
            own = place.name if place.is_file() else ""  # a file that is renamed is cut as before
            samples.sort(key=lambda sample: by_hash(sample.name.removeprefix(own)))
        return samples[round(start * len(samples)) : round(stop * len(samples))], samples

    def _refuse_one_class(self) -> None:
        if len(self.class_names) < 2:
            found = f"the one class {self.class_names[0]!r}" if self.class_names else "no class"
            raise InvalidInputError(
                f"data {self.config.name!r}: found {'; '.join([found, *self.notes])}, expected at least two classes: "
                "add images of another class"
            )

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


class ImageFolder(LocalImages):
    """Images in folders that are called like their classes; below them any depth, above them perhaps splits."""

    def __init__(self, files: Files, config: DataConfig, task: Task | None) -> None:
        super().__init__(config, task)
        self.notes = files.left_out("files that are not images")
        self._root = files.root
        # By the first folder alone: a class of trains lies below one that is called train.
        self.parts = parts_of(files.names, split_of_folder, str(files.root))
        level = 1 if all(map(split_of_folder, files.names)) else 0  # of the folder that names the class
        self._labels = {}
        for name in (name for names in self.parts.values() for name in names):
            folders = name.split("/")[:-1]
            below = [folder for folder in folders[level + 1 :] if split_of_name(folder, folder=True)]
            if len(folders) <= level or below:
                raise InvalidInputError(
                    f"data {str(files.root)!r}: found the image {name!r}, expected CLASS/IMAGE or train/CLASS/IMAGE: "
                    "sort the images into folders that are called like their classes"
                    + (f", below those of the splits such as {below[0]!r}" if below else "")
                )
            self._labels[name] = folders[level]
        self.class_names = tuple(sorted({sample.label for sample in self.samples(self._cut("train")[0])}))
        self._refuse_one_class()

    def samples(self, part: Split | None) -> list[Sample]:
        return [Sample(name, self._labels[name], (self._root / name).read_bytes) for name in self.parts[part]]


class ImageColumn(LocalImages):
    """A column of encoded images, or of their paths, and one of labels; rows without a label are left out."""

    def __init__(self, tables: Tables, image: str, label: str, config: DataConfig, task: Task | None) -> None:
        super().__init__(config, task)
        self._tables, self._image, self._label = tables, image, label
        self.parts, self.notes = tables.parts, tables.notes
        self.keys += ("image_column", "label_column", *tables.keys)
        self._names = {name: _class_names(tables.schema_of(name), label) for name in tables.names}
        if len({names is None for names in self._names.values()}) > 1:
            raise InvalidInputError(
                f"data {tables.where!r}: some tables name the classes of {label!r} and others do not, so that their "
                "numbers may mean different classes: save them all in one way"
            )
        self._labels_of = cache(self._read_labels)
        training = self._cut("train")[0]
        listed = dict.fromkeys(name for names in self._names.values() for name in names or ())
        # With 1 alone, -1 is a class.
        self._signed = not listed and {str(v) for _, rows in tables.rows(training, label) for v in rows} == {"-1", "1"}
        found = {name for _, _, name in self._labels_of(training) if name is not None}
        self.class_names = tuple(listed or sorted(found, key=_by_number))
        self._refuse_one_class()

    def samples(self, part: Split | None) -> list[Sample]:
        images = {name: cache(partial(self._tables.column, name, self._image)) for name in self.parts[part]}
        return [
            Sample(_row(name, number), label, partial(_encoded, images[name], number, self._tables.root))
            for name, number, label in self._labels_of(part)
            if label is not None
        ]

    def _read_labels(self, part: Split | None) -> list[tuple[str, int, str | None]]:
        """Table, number and class of each row of a part."""
        found = [
            (name, number, self._class_of(value, name, number))
            for name, rows in self._tables.rows(part, self._label)
            for number, value in enumerate(rows)
        ]
        without = sum(label is None for _, _, label in found)
        self._tables.note_left_out(without, len(found), part, f"whose {self._label!r} is -1, the mark of no label")
        return found

    def _class_of(self, value: Any, table: str, number: int) -> str | None:
        if value in NO_LABEL and not self._signed:
            return None
        names = self._names[table]
        if names is None and isinstance(value, str | int) and value != "":
            return str(value)
        if names is not None and isinstance(value, int) and 0 <= value < len(names):
            return names[value]
        expected = "a whole number or a name" if names is None else f"a class number below {len(names)}"
        raise InvalidInputError(
            f"data {self._tables.where!r}: {_row(table, number)} has the label {value!r}, expected {expected}: take "
            "the row out, or name another column with data.label_column"
        )


def _row(table: str, number: int) -> str:
    return f"{table} row {number}".lstrip()


def _encoded(column: Callable[[], Any], number: int, root: Path) -> bytes:
    """The bytes of an image, from the file where the row has only its path."""
    value = column()[number].as_py()
    found = (value.get("bytes") or value.get("path")) if isinstance(value, dict) else value
    if isinstance(found, str) and found:
        path = root / found
        if not path.is_file():
            raise ValueError(f"the row has only the path {found!r}, and no file is there")
        return path.read_bytes()
    if not isinstance(found, bytes) or not found:
        raise ValueError("the row has no bytes of an image")
    return found


def _by_number(name: str) -> tuple[int, int, str]:
    return (0, int(name), name) if name.lstrip("-").isdecimal() else (1, 0, name)


def _class_names(schema: Any, label: str) -> tuple[str, ...] | None:
    """The names that the `datasets` library stores with a column of class numbers."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        names = features[label]["names"]
    except (KeyError, ValueError, TypeError):
        return None
    usable = isinstance(names, list) and all(isinstance(name, str) for name in names)
    return tuple(names) if usable and len(set(names)) == len(names) else None
