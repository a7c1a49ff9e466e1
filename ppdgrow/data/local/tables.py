"""Tables of named columns: parquet files, saved data sets, and rows as text (CSV, JSON lines)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from ppdgrow.config.schema import DataConfig
from ppdgrow.data.dataset import Split
from ppdgrow.data.local.files import Files, read_text
from ppdgrow.data.local.splits import few, parts_of, split_of_file, split_of_name
from ppdgrow.data.location import reading, refuse_pointer
from ppdgrow.errors import InvalidInputError, first_line

_LARGEST_BLOCK = 2**31 - 1  # of Arrow's readers, in bytes


class _Table(NamedTuple):
    """What of a pyarrow table is used here, of one whose columns are read when they are asked for."""

    schema: Any
    column: Callable[[str], Any]


class Tables:
    """Named tables at a path, which share the columns in use.

    Attributes:
        where: the path, for messages.
        root: the folder from which paths in the tables start.
        names: of the tables.
        parts: the names by the split that they are named for.
        schema_of: gives the pyarrow schema of a table.
        notes: what a user should know of what was found so far.
        keys: of the recipe's `data` that are of use, beside names of columns.

    Raises:
        InvalidInputError: a saved data set cannot be read.
    """

    def __init__(self, files: Files, config: DataConfig) -> None:
        self.root, self.names = files.root, files.names
        self.where = str(files.root / files.names[0]) if len(files.names) == 1 else str(files.root)
        self.notes = files.left_out("what is no table of that kind")
        self.keys = ("encoding",) if files.kind == "rows" else ()
        split_of: Callable[[str], Split | None] = split_of_file
        if files.kind == "saved":
            saved = _load_saved(files.root)
            self.names, split_of, self._table = tuple(saved), partial(split_of_name, folder=True), saved.__getitem__
        else:  # a file of rows is parsed whole, and only the last one is kept
            self._table = lru_cache(maxsize=1)(partial(_open_file, files.root, config.encoding))
        self.schema_of = cache(self._read_schema)
        self.parts = parts_of(self.names, split_of, self.where)

    @property
    def schema(self) -> Any:
        """The schema of the first table.

        Raises:
            InvalidInputError: it cannot be read, or two columns have one name.
        """
        schema = self.schema_of(self.names[0])
        if len(set(schema.names)) < len(schema.names):
            raise InvalidInputError(f"data {self.where!r}: two columns have one name ({few(schema.names)}): rename one")
        return schema

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
        with reading("data", self.root / name):
            return self._table(name).column(column)

    def rows(self, part: Split | None, column: str) -> Iterator[tuple[str, list[Any]]]:
        """The values of a column in each table of a part as Python has them, with the table's name."""
        for name in self.parts[part]:
            values = self.column(name, column)
            with reading("data", self.root / name):
                plain = values.to_pylist()
            yield name, plain

    def _read_schema(self, name: str) -> Any:
        with reading("data", self.root / name):
            return self._table(name).schema


def left_out(some: int, count: int, part: Split | None, why: str) -> str:
    """The note that some of a number of rows are not used."""
    of_part = f" of {part}" if part else ""
    return f"left out {some:,} of {count:,} rows{of_part} {why}"


def _open_file(root: Path, encoding: str, name: str) -> Any:
    """A table out of a file, pyarrow's own or a `_Table`."""
    path = root / name
    suffix = path.suffix.lower()
    if suffix != ".parquet":
        return _parse_rows(read_text(path, encoding).encode(), suffix)
    from pyarrow.parquet import ParquetFile

    file = ParquetFile(path)
    return _Table(file.schema_arrow, lambda column: file.read(columns=[column]).column(column))


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


def _load_saved(root: Path) -> dict[str, _Table]:
    """A folder of `datasets.Dataset.save_to_disk` or `DatasetDict.save_to_disk` as tables by name."""
    import datasets

    def as_table(dataset: Any) -> _Table:
        rows = dataset.with_format("arrow")
        return _Table(rows.features.arrow_schema, lambda column: rows.select_columns([column])[:].column(column))

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
