"""Columns of tables as text or as labelled images: named by the recipe, else guessed from names and types."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from ppdgrow.config.schema import DataConfig
from ppdgrow.data.dataset import Split
from ppdgrow.data.local.files import IMAGES
from ppdgrow.data.local.sources import ImageSource, Sample, TextSource
from ppdgrow.data.local.splits import few, training_part
from ppdgrow.data.local.tables import Tables
from ppdgrow.data.location import reading
from ppdgrow.errors import ConfigError, InvalidInputError

TEXT_NAMES = ("text", "content", "document", "article", "story", "sentence", "code")
IMAGE_NAMES = ("image", "img", "picture", "photo")
PATH_NAMES = (*IMAGE_NAMES, "file_name", "filename", "image_path", "path", "file")
LABEL_NAMES = ("label", "labels", "class", "target", "fine_label", "category")
NO_LABEL = (-1, "-1")  # as test splits on the hub have it
_STRINGS = ("string", "large_string")
_BINARIES = ("binary", "large_binary")
_LABELS = (*_STRINGS, "bool", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)))


class TextColumn(TextSource):
    """A column of text; each row is a document, nulls are left out."""

    def __init__(self, tables: Tables, column: str) -> None:
        super().__init__(tables.notes)
        self._tables, self._column = tables, column
        self.parts, self.keys = tables.parts, ("text_column", *tables.keys)

    def text(self, part: Split | None) -> str:
        """All rows of the part in their order, each with a newline at its end."""
        documents, count = [], 0
        for name, rows in self._tables.rows(part, self._column):
            with reading("data", Path(self._tables.where) / name):
                documents += [row.decode() if isinstance(row, bytes) else row for row in rows if row]
            count += len(rows)
        if not documents:
            raise InvalidInputError(
                f"data {self._tables.where!r}: found {count} rows and no text in the column {self._column!r}: use "
                "other data, or name another column with -o data.text_column=NAME"
            )
        if len(documents) < count:
            self.notes.append(_left_out(count - len(documents), count, part, f"that have no text in {self._column!r}"))
        return "".join(row if row.endswith("\n") else f"{row}\n" for row in documents).replace("\r\n", "\n")


class ImageColumn(ImageSource):
    """A column of encoded images, or of their paths, and one of labels. The classes are those of the training data."""

    def __init__(self, tables: Tables, image: str, label: str) -> None:
        super().__init__(tables.notes)
        self._tables, self._image, self._label = tables, image, label
        self.parts, self.keys = tables.parts, ("image_column", "label_column", *tables.keys)
        self._names = {name: _class_names(tables.schema_of(name), label) for name in tables.names}
        if len({names is None for names in self._names.values()}) > 1:
            raise InvalidInputError(
                f"data {tables.where!r}: some tables name the classes of {label!r} and others do not, so that their "
                "numbers may mean different classes: save them all in one way"
            )
        self._known: dict[Split | None, list[tuple[str, int, str | None]]] = {}
        training = training_part(self.parts)
        listed = dict.fromkeys(name for names in self._names.values() for name in names or ())
        # With 1 alone, -1 is a class.
        self._signed = not listed and {str(v) for _, rows in tables.rows(training, label) for v in rows} == {"-1", "1"}
        found = {name for _, _, name in self._labels(training) if name is not None}
        self.classes = tuple(listed or sorted(found, key=_by_number))

    def samples(self, part: Split | None) -> list[Sample]:
        """The rows of the part in their order, without those that have no label."""
        images = {name: cache(partial(self._tables.column, name, self._image)) for name in self.parts[part]}
        return [
            Sample(_row(name, number), label, partial(_encoded, images[name], number, self._tables.root))
            for name, number, label in self._labels(part)
            if label is not None
        ]

    def _labels(self, part: Split | None) -> list[tuple[str, int, str | None]]:
        """Table, number and class of each row of a part."""
        if part not in self._known:
            found = [
                (name, number, self._class_of(value, name, number))
                for name, rows in self._tables.rows(part, self._label)
                for number, value in enumerate(rows)
            ]
            self._known[part] = found
            without = sum(label is None for _, _, label in found)
            if without:
                self.notes.append(
                    _left_out(without, len(found), part, f"whose {self._label!r} is -1, the mark of no label")
                )
        return self._known[part]

    def _class_of(self, value: Any, table: str, number: int) -> str | None:
        if value in NO_LABEL and not self._signed:
            return None
        names = self._names[table]
        if names is not None:
            if isinstance(value, int) and 0 <= value < len(names):
                return names[value]
            expected = f"a class number below {len(names)}"
        else:
            if isinstance(value, str | int) and value != "":
                return str(value)
            expected = "a whole number or a name"
        raise InvalidInputError(
            f"data {self._tables.where!r}: {_row(table, number)} has the label {value!r}, expected {expected}: take "
            "the row out, or name another column with data.label_column"
        )


def _left_out(some: int, count: int, part: Split | None, why: str) -> str:
    of_part = f" of {part}" if part else ""
    return f"left out {some:,} of {count:,} rows{of_part} {why}"


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


@dataclass(frozen=True)
class _Search:
    """For the column of one `kind`: the name that the recipe gives, else usual names, among those whose type fits."""

    tables: Tables
    kind: str
    given: str | None
    usual: tuple[str, ...]
    fits: Callable[[Any], bool]

    def find(self, *, only: bool = True) -> str | None:
        """The given column, else the first of the usual names, else with `only` the only one that fits.

        Raises:
            ConfigError: the given one is not there, or is not of the type.
        """
        schema, given = self.tables.schema, self.given
        fitting = [field.name for field in schema if self.fits(field)]
        if given in fitting:
            return given
        if given is None:
            lowered = {name.lower(): name for name in fitting}
            usual = next((lowered[name] for name in self.usual if name in lowered), None)
            return usual or (fitting[0] if only and len(fitting) == 1 else None)
        what = f"is of type {schema.field(given).type}" if given in schema.names else "is not there"
        choice = f"one of {few(fitting)}" if fitting else f"other data: it has no column of {self.kind}s"
        raise ConfigError(
            f"data.{self.kind}_column is {given!r}, which {what} in {self.tables.where!r}: expected {choice}"
        )

    def note(self, taken: str) -> None:
        """Say which column was guessed where another could be meant, or where it is not called as usual."""
        others = [field.name for field in self.tables.schema if self.fits(field) and field.name != taken]
        if self.kind == "label":  # any whole number or string could be one: only those that are called so are meant
            others = [name for name in others if {name.lower(), name.lower().rpartition("_")[2]} & set(self.usual)]
        if self.given is None and (others or taken.lower() not in self.usual):
            instead = f", not from {few(others)}" if others else ""
            self.tables.notes.append(
                f"{self.kind} taken from the column {taken!r}{instead} (set data.{self.kind}_column to choose)"
            )


def image_columns(tables: Tables, config: DataConfig) -> tuple[str, str] | None:
    """The columns of images and labels, if the tables have both.

    Raises:
        ConfigError: a named column is not there, or is not of the type.
    """
    if config.text_column is not None and config.image_column is None:
        return None
    fits = _holds_images if config.image_column is None else _may_hold_images
    images = _Search(tables, "image", config.image_column, IMAGE_NAMES, fits)
    image = images.find() or _path_column(tables)
    if image is None:
        return None
    labels = _Search(tables, "label", config.label_column, LABEL_NAMES, lambda field: _type(field) in _LABELS)
    label = labels.find(only=False)
    if label is None:
        raise ConfigError(
            f"data {tables.where!r}: found images in {image!r} and no labels among {_columns(tables)}, expected a "
            "column of whole numbers or names: name it with -o data.label_column=NAME, or cast it, or name a column "
            "of text with -o data.text_column=NAME"
        )
    images.note(image)
    labels.note(label)
    return image, label


def text_column(tables: Tables, config: DataConfig) -> str:
    """The column of the text.

    Raises:
        ConfigError: it is not there, or there are several that could be meant.
    """
    fits = _holds_text if config.text_column is None else _may_hold_text
    texts = _Search(tables, "text", config.text_column, TEXT_NAMES, fits)
    column = texts.find()
    if column is None:
        other = "rename it to .txt to read all of it" if "encoding" in tables.keys else "use other data"
        raise ConfigError(
            f"data {tables.where!r}: found {_columns(tables)}, of which none is clearly the text, expected one "
            f"of strings: name it with -o data.text_column=NAME, or {other}"
        )
    texts.note(column)
    return column


def _path_column(tables: Tables) -> str | None:
    """A column of strings that begins with the path of an image, where no column is called like text."""
    if any(field.name.lower() in TEXT_NAMES for field in tables.schema):
        return None
    names = {field.name.lower(): field.name for field in tables.schema if _type(field) in _STRINGS}
    for column in (names[name] for name in PATH_NAMES if name in names):
        values = tables.read(tables.names[0], column)
        if len(values) and Path(values[0].as_py() or "").suffix.lower() in IMAGES:
            return column
    return None


def _columns(tables: Tables) -> str:
    return f"the columns {few([f'{field.name} ({_type(field)})' for field in tables.schema])}"


def _type(field: Any) -> str:
    """What values of a column are, whether or not each is stored once (as categories of pandas are)."""
    import pyarrow.types

    return str(field.type.value_type if pyarrow.types.is_dictionary(field.type) else field.type)


def _may_hold_text(field: Any) -> bool:
    return _type(field) in (*_STRINGS, *_BINARIES)


def _holds_text(field: Any) -> bool:
    """Strings; bytes only where the name says that they are text."""
    return _type(field) in _STRINGS or (_may_hold_text(field) and field.name.lower() in TEXT_NAMES)


def _holds_images(field: Any) -> bool:
    """Bytes, alone or in a struct as of the `datasets` library; a path without bytes where the name says so."""
    inner = _inner(field)
    if inner is None:
        return str(field.type) in _BINARIES and field.name.lower() not in TEXT_NAMES
    return inner.get("bytes") in _BINARIES or (inner.get("path") in _STRINGS and field.name.lower() in IMAGE_NAMES)


def _may_hold_images(field: Any) -> bool:
    return "path" in (_inner(field) or {}) or _holds_images(field) or _may_hold_text(field)


def _inner(field: Any) -> dict[str, str] | None:
    """The types within a struct, by name."""
    import pyarrow.types

    return {part.name: _type(part) for part in field.type} if pyarrow.types.is_struct(field.type) else None
