"""Tables of named columns: parquet files, saved data sets, and rows as text (CSV, JSON lines)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any

from ppdgrow.config.schema import DataConfig
from ppdgrow.data.dataset import Split
from ppdgrow.data.local.files import Files, read_text
from ppdgrow.data.local.splits import Parts, few, parts_of, split_of_name
from ppdgrow.data.location import reading, refuse_pointer
from ppdgrow.errors import InvalidInputError, first_line

_LARGEST_BLOCK = 2**31 - 1  # of Arrow's readers, in bytes


@dataclass(frozen=True)
class Tables:
    """Named tables that share the columns in use.

    Attributes:
        where: the path, for messages.
        root: the folder from which paths in the tables start.
        parts: names of tables by the split that they are named for.
        schema_of: gives the pyarrow schema of a table.
        read: as `column`, of a column that is there.
        notes: what a user should know of what was found so far.
        keys: of the recipe's `data` that are of use, beside names of columns.
    """

    where: str
    root: Path
    parts: Parts
    schema_of: Callable[[str], Any]
    read: Callable[[str, str], Any]
    notes: list[str]
    keys: tuple[str, ...] = ()

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
        return [name for names in self.parts.values() for name in names]

    def column(self, name: str, column: str) -> Any:
        """The values of a column of a table, a pyarrow chunked array.

        Raises:
            InvalidInputError: the table cannot be read, or lacks the column.
        """
        if column not in self.schema_of(name).names:
            raise InvalidInputError(
                f"data {self.where!r}: {name!r} has no column {column!r} as the other tables have "
                f"({few(self.schema_of(name).names)}): move it elsewhere"
            )
        return self.read(name, column)

    def rows(self, part: Split | None, column: str) -> Iterator[tuple[str, list[Any]]]:
        """The values of a column in each table of a part as Python has them, with the table's name."""
        for name in self.parts[part]:
            values = self.column(name, column)
            with reading("data", Path(self.where) / name):
                plain = values.to_pylist()
            yield name, plain


def open_tables(files: Files, config: DataConfig) -> Tables:
    """The tables at a path, of the kind that its files are.

    Raises:
        InvalidInputError: the first cannot be read.
    """
    if files.kind == "saved":
        return _open_saved(files)
    rows = files.kind == "rows"
    schema_of, read = _rows(files, config) if rows else _parquet(files)
    where = str(files.root / files.names[0]) if len(files.names) == 1 else str(files.root)
    parts = parts_of(files.names, files.split_of, where)
    keys = ("encoding",) if rows else ()
    return Tables(where, files.root, parts, schema_of, read, files.left_out("what is no table of that kind"), keys)


def _parquet(files: Files) -> tuple[Callable[[str], Any], Callable[[str, str], Any]]:
    from pyarrow.parquet import ParquetFile

    @cache
    def schema_of(name: str) -> Any:
        with reading("data", files.root / name), ParquetFile(files.root / name) as file:
            return file.schema_arrow

    def read(name: str, column: str) -> Any:
        with reading("data", files.root / name), ParquetFile(files.root / name) as file:
            return file.read(columns=[column]).column(column)

    return schema_of, read


def _rows(files: Files, config: DataConfig) -> tuple[Callable[[str], Any], Callable[[str, str], Any]]:
    """Files without a schema of their own: each is parsed whole, the last one is kept."""

    @lru_cache(maxsize=1)
    def table_of(name: str) -> Any:
        path = files.root / name
        raw = read_text(path, config.encoding).encode()
        with reading("data", path):
            return _parse_rows(raw, path.suffix.lower())

    return cache(lambda name: table_of(name).schema), lambda name, column: table_of(name).column(column)


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


def _open_saved(files: Files) -> Tables:
    """A folder of `datasets.Dataset.save_to_disk` or `DatasetDict.save_to_disk` as tables."""
    import datasets

    datasets.disable_progress_bars()
    where = str(files.root)
    refuse_pointer("data", files.root)
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
        with reading("data", files.root):
            return tables[name].select_columns([column])[:].column(column)

    parts = parts_of(list(tables), partial(split_of_name, folder=True), where)
    return Tables(where, files.root, parts, schemas.__getitem__, read, [])
