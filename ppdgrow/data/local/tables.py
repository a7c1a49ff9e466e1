"""Tables of named columns: parquet files, saved data sets, and rows as text (CSV, JSON lines).

Which columns hold text, images and labels is named by the recipe, else guessed from names and types.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, lru_cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ppdgrow.config.schema import DataConfig
from ppdgrow.data.dataset import Split
from ppdgrow.data.local.files import IMAGES, Files, read_text
from ppdgrow.data.local.splits import few, parts_of, split_of_file, split_of_name
from ppdgrow.data.location import reading, refuse_pointer
from ppdgrow.errors import ConfigError, InvalidInputError, first_line

TEXT_NAMES = ("text", "content", "document", "article", "story", "sentence", "code")
IMAGE_NAMES = ("image", "img", "picture", "photo")
PATH_NAMES = (*IMAGE_NAMES, "file_name", "filename", "image_path", "path", "file")
LABEL_NAMES = ("label", "labels", "class", "target", "fine_label", "category")
_STRINGS = ("string", "large_string")
_BINARIES = ("binary", "large_binary")
_LABELS = (*_STRINGS, "bool", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)))
_LARGEST_BLOCK = 2**31 - 1  # of Arrow's readers, in bytes


class Tables:
    """Named tables at a path, which share the columns in use; notes and keys are as those of a `Dataset`."""

    def __init__(self, files: Files, config: DataConfig) -> None:
        self.root = files.root  # paths in the tables start here
        self.where = str(files.root / files.names[0]) if len(files.names) == 1 else str(files.root)
        self.notes = files.left_out("what is no table of that kind")
        self.keys = ("encoding",) if files.kind == "rows" else ()
        if files.kind == "saved":
            saved = _load_saved(files.root)
            self._table = saved.__getitem__
            self.parts = parts_of(list(saved), partial(split_of_name, folder=True), self.where)
        else:  # a file of rows is parsed whole, and only the last one is kept
            self._table = lru_cache(maxsize=1)(partial(_open_file, files.root, config.encoding))
            self.parts = parts_of(files.names, split_of_file, self.where)
        self.names = [name for names in self.parts.values() for name in names]
        self.schema_of = cache(self._read_schema)

    @property
    def schema(self) -> Any:
        """The schema of the first table; InvalidInputError if two of its columns have one name."""
        schema = self.schema_of(self.names[0])
        if len(set(schema.names)) < len(schema.names):
            raise InvalidInputError(f"data {self.where!r}: two columns have one name ({few(schema.names)}): rename one")
        return schema

    def column(self, name: str, column: str) -> Any:
        """The values of a column of a table, a pyarrow chunked array; InvalidInputError if the table lacks it."""
        if column not in self.schema_of(name).names:
            raise InvalidInputError(
                f"data {self.where!r}: {name!r} has no column {column!r} as the other tables have "
                f"({few(self.schema_of(name).names)}): move it elsewhere"
            )
        with reading("data", self.root / name):
            return self._table(name).column(column)

    def rows(self, part: Split | None, column: str) -> Iterator[tuple[str, list[Any]]]:
        """The values of a column in each table of a part as Python has them, bytes as text, with the table's name."""
        for name in self.parts[part]:
            with reading("data", self.root / name):
                values = self.column(name, column).to_pylist()
                plain = [value.decode() if isinstance(value, bytes) else value for value in values]
            yield name, plain

    def note_left_out(self, some: int, count: int, part: Split | None, why: str) -> None:
        """Say that some of a number of rows, if there are any, are not used."""
        of_part = f" of {part}" if part else ""
        self.notes += [f"left out {some:,} of {count:,} rows{of_part} {why}"] if some else []

    def _read_schema(self, name: str) -> Any:
        with reading("data", self.root / name):
            return self._table(name).schema


def _open_file(root: Path, encoding: str, name: str) -> Any:
    """A pyarrow table out of a file, or what gives its schema and columns as one, each read when it is asked for."""
    path = root / name
    suffix = path.suffix.lower()
    if suffix != ".parquet":
        return _parse_rows(read_text(path, encoding).encode(), suffix)
    from pyarrow.parquet import ParquetFile

    file = ParquetFile(path)
    return SimpleNamespace(schema=file.schema_arrow, column=lambda column: file.read(columns=[column]).column(column))


def _parse_rows(raw: bytes, suffix: str) -> Any:
    """A pyarrow table; in one block, so that types come from all rows and a row may be of any length."""
    from pyarrow import BufferReader, csv, json

    whole: dict[str, Any] = {"use_threads": False, "block_size": min(len(raw) + 1, _LARGEST_BLOCK)}
    if suffix not in (".csv", ".tsv"):
        return json.read_json(BufferReader(raw), read_options=json.ReadOptions(**whole))
    header = raw.partition(b"\n")[0].decode()
    delimiter = "\t" if suffix == ".tsv" else max(",;\t", key=header.count)
    return csv.read_csv(
        BufferReader(raw),
        read_options=csv.ReadOptions(**whole),
        parse_options=csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
    )


def _load_saved(root: Path) -> dict[str, Any]:
    """A folder of `datasets.Dataset.save_to_disk` or `DatasetDict.save_to_disk` as such tables by name."""
    import datasets

    def as_table(dataset: Any) -> Any:
        rows = dataset.with_format("arrow")
        schema = rows.features.arrow_schema
        return SimpleNamespace(schema=schema, column=lambda column: rows.select_columns([column])[:].column(column))

    datasets.disable_progress_bars()
    refuse_pointer("data", root)
    try:
        loaded = datasets.load_from_disk(str(root))
        whole = loaded if isinstance(loaded, dict) else {"": loaded}
        return {name: as_table(dataset) for name, dataset in whole.items()}
    except Exception as error:  # the library passes on whatever its readers raise
        raise InvalidInputError(
            f"data {str(root)!r}: the saved data set cannot be read ({first_line(error)}): save it again with "
            "save_to_disk"
        ) from None


def image_columns(tables: Tables, config: DataConfig) -> tuple[str, str] | None:
    """The columns of images and labels, or None; ConfigError if a named one does not fit, or there are no labels."""
    given = config.image_column
    if config.text_column is not None and given is None:
        return None
    image = _choose(
        tables, "image", given, IMAGE_NAMES, _holds_images, lambda names: _only(names) or _path_column(tables)
    )
    if image is None:
        return None
    label = _choose(tables, "label", config.label_column, LABEL_NAMES, _holds_labels, lambda names: None)
    if label is None:
        raise ConfigError(
            f"data {tables.where!r}: found images in {image!r} and no labels among {_columns(tables)}, expected a "
            "column of whole numbers or names: name it with -o data.label_column=NAME, or cast it, or name a column "
            "of text with -o data.text_column=NAME"
        )
    return image, label


def text_column(tables: Tables, config: DataConfig) -> str:
    """The column of the text; ConfigError if a named one does not fit, or there are several that could be meant."""
    column = _choose(tables, "text", config.text_column, TEXT_NAMES, _holds_text, _only)
    if column is None:
        other = "rename it to .txt to read all of it" if "encoding" in tables.keys else "use other data"
        raise ConfigError(
            f"data {tables.where!r}: found {_columns(tables)}, of which none is clearly the text, expected one "
            f"of strings: name it with -o data.text_column=NAME, or {other}"
        )
    return column


def _choose(
    tables: Tables,
    kind: str,
    given: str | None,
    usual: tuple[str, ...],
    fits: Callable[[Any, bool], bool],
    otherwise: Callable[[list[str]], str | None],
) -> str | None:
    """The given column, else the first of the usual names, else what `otherwise` takes, of those whose type fits.

    A guess is noted where another column could be meant, or where it is not called as usual.
    """
    schema = tables.schema
    fitting = [field.name for field in schema if fits(field, given is not None)]
    if given in fitting:
        return given
    if given is not None:
        what = f"is of type {schema.field(given).type}" if given in schema.names else "is not there"
        choice = f"one of {few(fitting)}" if fitting else f"other data: it has no column of {kind}s"
        raise ConfigError(f"data.{kind}_column is {given!r}, which {what} in {tables.where!r}: expected {choice}")
    lowered = {name.lower(): name for name in fitting}
    taken = next((lowered[name] for name in usual if name in lowered), None) or otherwise(fitting)
    if taken is None:
        return None
    others = [name for name in fitting if name != taken]
    if kind == "label":  # any whole number or string could be one: only those that are called so are meant
        others = [name for name in others if {name.lower(), name.lower().rpartition("_")[2]} & set(usual)]
    if others or taken.lower() not in usual:
        instead = f", not from {few(others)}" if others else ""
        tables.notes.append(f"{kind} taken from the column {taken!r}{instead} (set data.{kind}_column to choose)")
    return taken


def _only(names: list[str]) -> str | None:
    return names[0] if len(names) == 1 else None


def _path_column(tables: Tables) -> str | None:
    """A column of strings that begins with the path of an image, where no column is called like text."""
    if any(field.name.lower() in TEXT_NAMES for field in tables.schema):
        return None
    names = {field.name.lower(): field.name for field in tables.schema if _type(field) in _STRINGS}
    for column in (names[name] for name in PATH_NAMES if name in names):
        values = tables.column(tables.names[0], column)
        if len(values) and Path(values[0].as_py() or "").suffix.lower() in IMAGES:
            return column
    return None


def _columns(tables: Tables) -> str:
    return f"the columns {few([f'{field.name} ({_type(field)})' for field in tables.schema])}"


def _type(field: Any) -> str:
    """What values of a column are, whether or not each is stored once (as categories of pandas are)."""
    import pyarrow.types

    return str(field.type.value_type if pyarrow.types.is_dictionary(field.type) else field.type)


def _holds_labels(field: Any, given: bool) -> bool:
    return _type(field) in _LABELS


def _holds_text(field: Any, given: bool) -> bool:
    """Strings; bytes only where the name, or the recipe, says that they are text."""
    return _type(field) in _STRINGS or (_type(field) in _BINARIES and (given or field.name.lower() in TEXT_NAMES))


def _holds_images(field: Any, given: bool) -> bool:
    """Bytes, alone or in a struct as of the `datasets` library; a path only where the name, or the recipe, says so."""
    import pyarrow.types

    name = field.name.lower()
    if pyarrow.types.is_struct(field.type):
        inner = {part.name: _type(part) for part in field.type}
        return inner.get("bytes") in _BINARIES or (inner.get("path") in _STRINGS and (given or name in IMAGE_NAMES))
    if given:
        return _type(field) in (*_STRINGS, *_BINARIES)
    return str(field.type) in _BINARIES and name not in TEXT_NAMES
