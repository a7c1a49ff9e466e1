"""Text that fits a width: lines broken at spaces, tables split into blocks. No word and no figure is ever broken."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

GAP = 3
_UNBOUNDED = 10**6
# Columns of the screen that running text gets at least, if it stands beside other cells.
TEXT = 24
# A header may be wider than its cells up to here, so that it is not wrapped into a tower of words.
_HEAD = 12
_WORD = re.compile(r"(\s*)(\S+)")
# A figure may be broken before its difference, interval, deviation or place, and nowhere else.
_PART = re.compile(r"(\s*)(\S.*?)(?=\s(?:[(\[]|at |sd |->)|$)")


@dataclass(frozen=True)
class TextColumn:
    """A column of a table; `align` is `l`, `r`, or `w` for running text to the left that may be wrapped."""

    head: str
    cells: tuple[str, ...]
    align: str

    @property
    def size(self) -> int:
        """The width that it takes."""
        return max(_size(text) for text in (self.head, *self.cells))


def table_width(columns: Sequence[TextColumn]) -> int:
    """The width of a table that is not split."""
    return sum(column.size for column in columns) + GAP * (len(columns) - 1)


def split_table(columns: Sequence[TextColumn], width: int) -> Iterator[list[TextColumn]]:
    """The table in blocks that fit, each with the first column; a table that fits is one block.

    Headers and running text are wrapped at words, a figure that is too wide alone between its parts.
    """
    if table_width(columns) <= width:
        yield list(columns)
        return
    label, *others = (column for column in columns if any((column.head, *column.cells)))
    room = width - label.size - GAP
    block: list[TextColumn] = []
    for column in (_narrowed(column, room) for column in others):
        needed = min(column.size, TEXT) if column.align == "w" else column.size
        used = sum(one.size + GAP for one in block)
        if block and used + needed > room:
            yield _block(label, block)
            block, used = [], 0
        if column.align == "w":
            column = replace(column, cells=tuple(wrap_words(cell, room - used) for cell in column.cells))
        block.append(column)
    if block:
        yield _block(label, block)


def _narrowed(column: TextColumn, room: int) -> TextColumn:
    """The column with its header wrapped to its cells, and cells that no block could hold in parts."""
    cells = column.cells
    if column.align != "w":
        cells = tuple(cell if _size(cell) <= room else wrap_words(cell, room, _PART) for cell in cells)
    return replace(column, head=wrap_words(column.head, max(_HEAD, *map(_size, cells))), cells=cells)


def _block(label: TextColumn, others: Sequence[TextColumn]) -> list[TextColumn]:
    """The columns with their headers on one level, and without rows in which none of them says anything."""
    shown = [row for row in range(len(label.cells)) if any(column.cells[row] for column in others)]
    lines = max(column.head.count("\n") for column in others)
    return [
        replace(
            column,
            head="\n" * (lines - column.head.count("\n")) + column.head,
            cells=tuple(column.cells[row] for row in shown),
        )
        for column in (label, *others)
    ]


def render(columns: Sequence[TextColumn], *, header: bool, terminal: bool) -> str:
    """The lines of a block; a terminal shows its header bold."""
    from rich.table import Table

    grid = Table(box=None, show_header=header, pad_edge=False, padding=(0, GAP, 0, 0))
    for column in columns:
        grid.add_column(Text(column.head), justify="right" if column.align == "r" else "left", no_wrap=True)
    for row in zip(*(column.cells for column in columns), strict=True):
        grid.add_row(*(Text(cell) for cell in row))
    page = io.StringIO()
    # Without a height Rich takes a dumb terminal for 80 columns wide, and crops.
    Console(file=page, width=_UNBOUNDED, height=_UNBOUNDED, force_terminal=terminal).print(grid)
    return "".join(f"{line.rstrip()}\n" for line in page.getvalue().split("\n")[:-1])


def _size(text: str) -> int:
    return max(map(cell_len, text.split("\n")))


def wrap_words(text: str, width: int, word: re.Pattern[str] = _WORD) -> str:
    """The text with its lines broken at spaces, so that they fit `width` columns.

    A word is never broken: a path that is too long runs over the edge, from where it can be copied whole.
    """
    wrapped = []
    for line in text.split("\n"):
        rows, used = [""], 0
        for space, piece in word.findall(line):
            size = cell_len(piece)
            if rows[-1] and used + len(space) + size > width:
                rows.append(piece)
                used = size
            else:
                rows[-1] += space + piece
                used += len(space) + size
        wrapped += rows
    return "\n".join(wrapped)
