"""Parquet files and saved data sets: arrow tables whose columns are named, or guessed from names and types."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from ppdgrow.config.schema import DataConfig
from ppdgrow.data.dataset import Split
from ppdgrow.data.local.files import Files
from ppdgrow.data.local.source import ImageSource, Sample, TextSource
from ppdgrow.data.local.splitting import Parts, few, parts_of, split_of_name
from ppdgrow.data.location import reading
from ppdgrow.errors import ConfigError, InvalidInputError, first_line

TEXT_NAMES = ("text", "content", "document", "article", "story", "sentence", "code")
IMAGE_NAMES = ("image", "img", "picture", "photo")
LABEL_NAMES = ("label", "labels", "class", "target", "fine_label", "category")


@dataclass(frozen=True)
class Tables:
    """Named tables that share the columns in use.

    Attributes:
        where: the path, for messages.
        parts: names of tables by the split that they are named for.
        schema_of: gives the pyarrow schema of a table.
        read: `read(name, column)` gives the values of a column, a pyarrow chunked array.
    """

    where: str
    parts: Parts
    schema_of: Callable[[str], Any]
    read: Callable[[str, str], Any]

    @property
    def schema(self) -> Any:
        """The schema of the first table.

        Raises:
            InvalidInputError: two columns have one name.
        """
        schema = self.schema_of(self.names[0])
        if len(set(schema.names)) < len(schema.names):
            raise InvalidInputError(f"data {self.where!r}: two columns have one name ({few(schema.names)}): rename one")
        return schema

    @property
    def names(self) -> list[str]:
        """All tables."""
        return [name for names in self.parts.values() for name in names]

    def column(self, part: Split | None, column: str) -> list[tuple[str, Any]]:
        """The values of a column in each table of a part, with the table's name.

        Raises:
            InvalidInputError: a table cannot be read, or lacks the column.
        """
        for name in self.parts[part]:
            if column not in self.schema_of(name).names:
                raise InvalidInputError(
                    f"data {self.where!r}: {name!r} has no column {column!r} as the other tables have "
                    f"({few(self.schema_of(name).names)}): take it away"
                )
        return [(name, self.read(name, column)) for name in self.parts[part]]


def open_parquet(files: Files) -> Tables:
    """Parquet files as tables.

    Raises:
        InvalidInputError: the first cannot be read.
    """
    import pyarrow.parquet

    @cache
    def schema_of(name: str) -> Any:
        with reading("data", files.root / name), pyarrow.parquet.ParquetFile(files.root / name) as file:
            return file.schema_arrow

    def read(name: str, column: str) -> Any:
        with reading("data", files.root / name), pyarrow.parquet.ParquetFile(files.root / name) as file:
            return file.read(columns=[column]).column(column)

    where = str(files.root / files.names[0]) if len(files.names) == 1 else str(files.root)
    return Tables(where, parts_of(files.names, files.split_of, where), schema_of, read)


def open_saved(files: Files) -> Tables:
    """A folder of `datasets.Dataset.save_to_disk` or `DatasetDict.save_to_disk` as tables.

    Raises:
        InvalidInputError: it cannot be loaded.
    """
    import datasets

    datasets.disable_progress_bars()
    where = str(files.root)
    try:
        loaded = datasets.load_from_disk(where)
        whole = loaded if isinstance(loaded, dict) else {"": loaded}
        tables = {name: dataset.with_format("arrow") for name, dataset in whole.items()}
        schemas = {name: table.features.arrow_schema for name, table in tables.items()}
    except Exception as error:  # the library passes on whatever its readers raise
        raise InvalidInputError(
            f"data {where!r}: the saved data set cannot be read ({first_line(error)}): save it again with save_to_disk"
        ) from None

    def read(name: str, column: str) -> Any:
        with reading("data", Path(where)):
            return tables[name].select_columns([column])[:].column(column)

    parts = parts_of(list(tables), partial(split_of_name, folder=True), where)
    return Tables(where, parts, schemas.__getitem__, read)


class TextColumn(TextSource):
    """A column of text; each row is a document, nulls are left out."""

    def __init__(self, tables: Tables, column: str) -> None:
        self._tables, self._column = tables, column
        self.parts, self.skipped = tables.parts, {}

    def text(self, part: Split | None) -> str:
        """All rows of the part in their order, each with a newline at its end."""
        documents, count = [], 0
        for name, values in self._tables.column(part, self._column):
            with reading("data", Path(self._tables.where) / name):
                rows = values.to_pylist()
            documents += [row for row in rows if row]
            count += len(rows)
        if not documents:
            raise InvalidInputError(
                f"data {self._tables.where!r}: found {count} rows and no text in the column {self._column!r}: use "
                "other data, or name another column with -o data.text_column=NAME"
            )
        return "".join(row if row.endswith("\n") else f"{row}\n" for row in documents).replace("\r\n", "\n")


class ImageColumn(ImageSource):
    """A column of encoded images and one of labels. The classes are those of the training data."""

    def __init__(self, tables: Tables, image: str, label: str) -> None:
        self._tables, self._image, self._label = tables, image, label
        self.parts = tables.parts
        self._names = {name: _class_names(tables.schema_of(name), label) for name in tables.names}
        if len({names is None for names in self._names.values()}) > 1:
            raise InvalidInputError(
                f"data {tables.where!r}: some tables name the classes of {label!r} and others do not, so that their "
                "numbers may mean different classes: save them all in one way"
            )
        self._known: dict[Split | None, list[str]] = {}
        listed = dict.fromkeys(name for names in self._names.values() for name in names or ())
        training: Split | None = "train" if "train" in self.parts else None
        self.classes = tuple(listed or sorted(set(self._labels(training)), key=_by_number))

    def samples(self, part: Split | None) -> list[Sample]:
        """The rows of the part in their order."""
        known = set(self.classes)
        labels = self._labels(part)
        strange = next((label for label in labels if label not in known), None)
        if strange is not None:
            raise InvalidInputError(
                f"data {self._tables.where!r}: the label {strange!r} in {part} does not occur in the training data: "
                "take its rows out, or add such images to train"
            )
        found: list[Sample] = []
        for name, values in self._tables.column(part, self._image):
            found += [
                Sample(_row(name, number), labels[len(found) + number], partial(_encoded, values, number))
                for number in range(len(values))
            ]
        return found

    def _labels(self, part: Split | None) -> list[str]:
        if part not in self._known:
            self._known[part] = self._read_labels(part)
        return self._known[part]

    def _read_labels(self, part: Split | None) -> list[str]:
        found = []
        for name, values in self._tables.column(part, self._label):
            with reading("data", Path(self._tables.where) / name):
                rows = values.to_pylist()
            found += [self._class_of(value, name, number) for number, value in enumerate(rows)]
        return found

    def _class_of(self, value: Any, table: str, number: int) -> str:
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


def _row(table: str, number: int) -> str:
    return f"{table} row {number}".lstrip()


def _encoded(values: Any, number: int) -> bytes:
    value = values[number].as_py()
    encoded = value.get("bytes") if isinstance(value, dict) else value
    if not isinstance(encoded, bytes) or not encoded:
        raise ValueError("the row has no bytes of an image")
    return encoded


def _by_number(name: str) -> tuple[int, int, str]:
    return (0, int(name), name) if name.lstrip("-").isdecimal() else (1, 0, name)


def image_columns(tables: Tables, config: DataConfig) -> tuple[str, str] | None:
    """The columns of images and labels, if the tables have both.

    Raises:
        ConfigError: a named column is not there, or is not of the type.
    """
    schema = tables.schema
    if config.text_column is not None and config.image_column is None:
        return None
    image = _column(tables, "image_column", config.image_column, IMAGE_NAMES, _holds_images)
    if image is None:
        return None
    label = _column(tables, "label_column", config.label_column, LABEL_NAMES, _holds_labels, only=False)
    if label is None:
        raise ConfigError(
            f"data {tables.where!r}: found images in {image!r} and no labels among {_columns(schema)}, expected a "
            "column of whole numbers or names: name it with -o data.label_column=NAME, or cast it"
        )
    return image, label


def text_column(tables: Tables, config: DataConfig) -> str:
    """The column of the text.

    Raises:
        ConfigError: it is not there, or there are several that could be meant.
    """
    column = _column(tables, "text_column", config.text_column, TEXT_NAMES, _holds_text)
    if column is None:
        raise ConfigError(
            f"data {tables.where!r}: found {_columns(tables.schema)}, of which none is clearly the text, expected one "
            "of strings: name it with -o data.text_column=NAME, or use other data"
        )
    return column


def _column(
    tables: Tables,
    key: str,
    given: str | None,
    names: Sequence[str],
    fits: Callable[[Any], bool],
    *,
    only: bool = True,
) -> str | None:
    """The given column, else the first of the usual names, else with `only` the only one of the type."""
    schema = tables.schema
    fitting = [field.name for field in schema if fits(field.type)]
    if given is not None:
        if given in fitting:
            return given
        what = f"is of type {schema.field(given).type}" if given in schema.names else "is not there"
        kind = key.partition("_")[0]
        choice = f"one of {few(fitting)}" if fitting else f"other data: it has no column of {kind}s"
        raise ConfigError(f"data.{key} is {given!r}, which {what} in {tables.where!r}: expected {choice}")
    lowered = {name.lower(): name for name in fitting}
    usual = next((lowered[name] for name in names if name in lowered), None)
    return usual or (fitting[0] if only and len(fitting) == 1 else None)


def _columns(schema: Any) -> str:
    """The columns with their types."""
    return f"the columns {few([f'{field.name} ({_plain_type(field.type)})' for field in schema])}"


def _plain_type(kind: Any) -> Any:
    """What values of a type are, whether or not each is stored once (as categories of pandas are)."""
    import pyarrow.types as types

    return kind.value_type if types.is_dictionary(kind) else kind


def _holds_text(kind: Any) -> bool:
    import pyarrow.types as types

    kind = _plain_type(kind)
    return types.is_string(kind) or types.is_large_string(kind)


def _holds_images(kind: Any) -> bool:
    import pyarrow.types as types

    encoded = kind.field("bytes").type if types.is_struct(kind) and kind.get_field_index("bytes") >= 0 else kind
    return types.is_binary(encoded) or types.is_large_binary(encoded)


def _holds_labels(kind: Any) -> bool:
    import pyarrow.types as types

    kind = _plain_type(kind)
    return types.is_integer(kind) or types.is_boolean(kind) or _holds_text(kind)


def _class_names(schema: Any, label: str) -> tuple[str, ...] | None:
    """The names that the `datasets` library stores with a column of class numbers."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        names = features[label]["names"]
    except (KeyError, ValueError, TypeError):
        return None
    usable = isinstance(names, list) and all(isinstance(name, str) for name in names)
    return tuple(names) if usable and len(set(names)) == len(names) else None
