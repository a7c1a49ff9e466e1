"""Somebody's text: files, or a column of tables."""

from __future__ import annotations

from abc import abstractmethod
from functools import cache
from pathlib import Path

from ppdgrow.config.kinds import Task
from ppdgrow.config.schema import DataConfig
from ppdgrow.data.dataset import Split
from ppdgrow.data.local.files import ROWS, SKIP, Files, read_text
from ppdgrow.data.local.splits import Parts, by_hash, cut_of, few, is_about, parts_of, split_of_file, split_of_folder
from ppdgrow.data.local.tables import Tables, text_column
from ppdgrow.data.text import TextDataset
from ppdgrow.data.token_cache import few_lines
from ppdgrow.errors import InvalidInputError

SHARE = 0.05  # of validation and test, where they are cut off


class LocalText(TextDataset):
    """Text in named parts; where a split is cut off one, the cuts lie at line ends."""

    default_tokenizer = "byte"
    parts: Parts

    def __init__(self, config: DataConfig, task: Task | None, tokenizer_json: str | None) -> None:
        super().__init__(config, task, tokenizer_json)
        self._encoded = cache(lambda part: self.text(part).encode())

    @abstractmethod
    def text(self, part: Split | None) -> str:
        """The text of a part, or of everything, with lines that end in a newline alone."""

    def read(self, split: Split) -> bytes:
        """The named part, or the share of one, cut at line ends."""
        part, start, stop = cut_of(self.parts, split, SHARE, self.config.name)
        whole = self._encoded(part)
        return whole[_line_end(whole, start) : _line_end(whole, stop)]


def _line_end(text: bytes, share: float) -> int:
    """Where to cut: after the next line end from a share on, else (far from one) between two characters there."""
    place = round(share * len(text))
    if place in (0, len(text)):
        return place
    after = text.find(b"\n", place - 1, place + round(SHARE / 2 * len(text))) + 1
    if after:
        return after
    while place < len(text) and text[place] & 0xC0 == 0x80:  # within a character of several bytes
        place += 1
    return place


class TextFiles(LocalText):
    """One text file, or all below a folder. Where splits are cut, files come in an order that is as good as random."""

    def __init__(self, files: Files, config: DataConfig, task: Task | None, tokenizer_json: str | None) -> None:
        super().__init__(config, task, tokenizer_json)
        self.keys += ("encoding", "skip_broken")
        self._root = files.root
        # Among others, a file in a folder of no split says nothing by its own name: it may be code, like src/train.py.
        all_named = all(split_of_file(name) or is_about(name) for name in files.names)
        split_of = split_of_file if all_named else _split_of_text
        self.parts = parts_of(files.names, split_of, str(files.root), lone=True)
        rows = [name for name in files.names if Path(name).suffix.lower() in (*ROWS, ".json")]
        if rows:
            self.notes.append(
                f"{few(rows)} read as plain text, names of columns and all: name one {', '.join(ROWS)} or parquet file "
                "itself to read a column of it"
            )
        named = [name for name in files.names if split_of(name)]
        if None in self.parts and 0 < len(named) < len(files.names):
            self.notes.append(f"{few(named)} is named for a split, and read like the others, which are not")
        self._skip = "" if len(files.names) == 1 else f", {SKIP}"

    def text(self, part: Split | None) -> str:
        """All files of the part, joined by newlines."""
        names = self.parts[part] if part is not None else sorted(self.parts[part], key=by_hash)
        texts = []
        for name in names:
            try:
                texts.append(read_text(self._root / name, self.config.encoding))
            except InvalidInputError as error:
                if not self.config.skip_broken:
                    raise InvalidInputError(f"{error}{self._skip}") from None
                self.skipped[name] = str(error)
        if not any(texts):
            reasons = [self.skipped.get(name, f"{name!r} is empty").removeprefix("data: ") for name in names]
            of_part = f" of {part}" if part else ""
            raise InvalidInputError(
                f"data {self.config.name!r}: no file{of_part} could be read: {'; '.join(few_lines(reasons))}; "
                "use other data"
            )
        return "\n".join(texts)


def _split_of_text(name: str) -> Split | None:
    return split_of_folder(name) if "/" in name else split_of_file(name)


class TextColumn(LocalText):
    """A column of text; each row is a document, nulls are left out."""

    def __init__(self, tables: Tables, config: DataConfig, task: Task | None, tokenizer_json: str | None) -> None:
        super().__init__(config, task, tokenizer_json)
        self._tables, self._column = tables, text_column(tables, config)
        self.parts, self.notes = tables.parts, tables.notes
        self.keys += ("text_column", *tables.keys)

    def text(self, part: Split | None) -> str:
        """All rows of the part in their order, each with a newline at its end."""
        documents, count = [], 0
        for _, rows in self._tables.rows(part, self._column):
            documents += [row for row in rows if row]
            count += len(rows)
        if not documents:
            raise InvalidInputError(
                f"data {self._tables.where!r}: found {count} rows and no text in the column {self._column!r}: use "
                "other data, or name another column with -o data.text_column=NAME"
            )
        without = count - len(documents)
        self._tables.note_left_out(without, count, part, f"that have no text in {self._column!r}")
        return "".join(row if row.endswith("\n") else f"{row}\n" for row in documents).replace("\r\n", "\n")
