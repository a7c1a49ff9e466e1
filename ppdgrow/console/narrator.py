"""What a person and a pipe see: data on stdout, narration and progress on stderr.

Names and messages are shown as they are: never as markup, never highlighted, control characters escaped.
"""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.text import Text

from ppdgrow.console.tables import TextColumn, render, split_table, wrap_words
from ppdgrow.console.terminal import Stderr, clean, discard, encodable, is_terminal, terminal_width
from ppdgrow.errors import StorageError
from ppdgrow.units import format_count, format_seconds

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class ProgressBar:
    """Where a loop stands, below some lines of text. Shows nothing unless it was made for a terminal."""

    def __init__(
        self, description: str, total: int, display: Progress | None = None, header: Text | None = None
    ) -> None:
        self._description, self._total, self._display, self._header = description, total, display, header
        self._task: TaskID | None = None if display is None else display.add_task(description, total=total)
        self._first: tuple[float, int, float] | None = None

    def update(self, completed: int, **fields: Any) -> None:
        """Move to `completed`, with figures to show beside it; `tokens` is a running count, shown per second."""
        if self._display is None or self._task is None:
            return
        now, tokens = time.monotonic(), float(fields.pop("tokens", None) or 0)
        # Speed counts from the first update: what a resumed run did earlier took no time here.
        started, first, first_tokens = self._first = self._first or (now, completed, tokens)
        parts = [f"{self._description}  {completed}/{self._total}"]
        parts += [_figure(name, value) for name, value in fields.items() if value is not None]
        if completed > first and now > started:
            if tokens > first_tokens:
                parts.append(f"{format_count((tokens - first_tokens) / (now - started))} tok/s")
            left = (self._total - completed) * (now - started) / (completed - first)
            parts.append(f"{format_seconds(max(0.0, left))} left")
        self._display.update(self._task, completed=completed, description="  ".join(parts))

    def show(self, text: Callable[[], str]) -> None:
        """Put these lines above the bar; they are made only where somebody sees them."""
        if self._header is not None:
            lines = clean(text()).rstrip("\n")
            self._header.plain = f"{lines}\n" if lines else ""


def table_columns(
    rows: Sequence[Sequence[str]], header: Sequence[str] | None = None, align: str | None = None
) -> list[TextColumn]:
    """The columns of a table as stdout will show them."""
    filled = [list(header or ()), *(list(row) for row in rows)]
    width = max(map(len, filled))
    letters = (align or "l").ljust(width, "r")
    shown = [[encodable(clean(cell), sys.stdout) for cell in row] + [""] * (width - len(row)) for row in filled]
    columns = zip(zip(*shown, strict=True), letters, strict=False)
    return [TextColumn(head, tuple(cells), letter) for (head, *cells), letter in columns]


def _figure(name: str, value: Any) -> str:
    style = "" if not isinstance(value, float) else ".1e" if name == "lr" else ".4g"
    return f"{name} {value:{style}}"


class Narrator:
    """Speaks for one command.

    Args:
        quiet: no narration and no progress; warnings and data stay.
        json: nothing but one JSON document on stdout, and errors.
    """

    def __init__(self, quiet: bool = False, json: bool = False) -> None:
        self.quiet, self.json = quiet, json
        self._silent = quiet or json
        self._stderr = Stderr()
        self._warned: set[str] = set()
        self._progressing = self._busy = False

    def say(self, text: str) -> None:
        """A message on stderr: one line, wrapped only on a terminal."""
        if not self._silent:
            self._stderr.show(clean(text))

    def warn(self, text: str, *, once: bool = False) -> None:
        """`warning: ...` on stderr, also with `--quiet`; not again if it was said and is to be said `once`."""
        if not self.json and not (once and text in self._warned):
            self._warned.add(text)
            self._stderr.show(clean(text), label="warning:", style="yellow")

    def propose(self, why: str, *commands: Sequence[str]) -> None:
        """Commands of this program that come next, each on a line of its own and ready to paste into a shell.

        None of them is shown if one has a name that this terminal cannot show as it is.
        """
        lines = [shlex.join(["ppdgrow", *command]) for command in commands]
        if not self._silent and all(map(self._stderr.can_show, lines)):
            self._stderr.show(f"{clean(why)}:")
            for line in lines:  # wrapped, it would be pasted as several
                self._stderr.show(f"  {line}", wrap=False)

    @contextmanager
    def status(self, what: str) -> Iterator[None]:
        """Say on a terminal what is being done while the block runs, on a line that vanishes; elsewhere nothing."""
        self._busy = self._live and not self._progressing
        self.now(what)
        try:
            yield
        finally:
            self.now("")
            self._busy = False

    def now(self, what: str) -> None:
        """Within `status`: say what is being done from now on."""
        if self._busy:
            self._stderr.show_transient(f"{clean(what)} .." if what else "")

    @contextmanager
    def progress(self, total: int, description: str) -> Iterator[ProgressBar]:
        """A live bar while the block runs on a terminal, and nothing elsewhere."""
        if not self._live or self._progressing:
            yield ProgressBar(description, total)
            return
        from rich.console import Group
        from rich.live import Live
        from rich.progress import BarColumn, Progress, TextColumn
        from rich.table import Column

        text = TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="crop"))
        bar = Progress(text, BarColumn(bar_width=16), console=self._stderr)
        header = Text(no_wrap=True, overflow="crop", end="")
        self.now("")
        self._busy, self._progressing = False, True
        try:
            # Stdout stays itself: Rich would send it to stderr while the bar is up.
            with Live(
                Group(header, bar), console=self._stderr, transient=True, redirect_stdout=False, refresh_per_second=10
            ):
                yield ProgressBar(clean(description), total, bar, header)
        finally:
            self._progressing = False

    def table(
        self, rows: Sequence[Sequence[str]], *, header: Sequence[str] | None = None, align: str | None = None
    ) -> None:
        """Columns on stdout, aligned by spaces alone; nothing with `--json`.

        A terminal gets blocks of columns that fit it (see `split_table`), all else each row on one line whatever its
        width. Short rows are filled up. `align` has one letter per column, `l`, `r`, or `w` for text to be wrapped; the
        default is `l` for the first and `r` for the others.
        """
        if self.json:
            return
        columns = table_columns(rows, header, align)
        blocks = [columns] if self.width is None else split_table(columns, self.width)
        shown = {"header": header is not None, "terminal": is_terminal(sys.stdout)}
        write_stdout("\n".join(render(block, **shown) for block in blocks))

    @property
    def width(self) -> int | None:
        """Columns of the terminal that stdout is; None where it is none, and lines may be of any length."""
        return terminal_width(sys.stdout) if is_terminal(sys.stdout) else None

    def text(self, text: str) -> None:
        """Sentences on stdout, wrapped at words on a terminal; nothing with `--json`."""
        self.data(clean(text) if self.width is None else wrap_words(encodable(clean(text), sys.stdout), self.width))

    def data(self, text: str) -> None:
        """One raw line on stdout, such as the path that the next command needs; nothing with `--json`."""
        if not self.json:
            write_stdout(f"{text}\n")

    def document(self, document: Mapping[str, Any]) -> None:
        """The command's JSON document, on one line of stdout; nothing without `--json`.

        A figure that is not finite, which JSON cannot say, is a `ValueError`.
        """
        if self.json:
            write_stdout(f"{json.dumps(document, allow_nan=False)}\n")

    @property
    def columns(self) -> int:
        """Width for narration: that of the terminal, or 80 where there is none."""
        return terminal_width(self._stderr.file)

    @property
    def _live(self) -> bool:
        return not self._silent and is_terminal(self._stderr.file) and not self._stderr.is_dumb_terminal


def report_error(message: str, exit_code: int, *, as_json: bool, traceback: str | None = None) -> None:
    """The last word of a failed command, on stderr: `error: ...`, or one JSON document."""
    console = Stderr()
    if as_json:
        document = {"schema": 1, "error": message, "exit_code": exit_code}
        console.show(json.dumps(document | ({} if traceback is None else {"traceback": traceback})), wrap=False)
        return
    if traceback is not None:
        console.show(clean(traceback.rstrip()), wrap=False)
    console.show(clean(message), label="error:", style="bold red")


def prepare_streams() -> None:
    """Let a character that the terminal cannot encode be shown as an escape, not end the command."""
    for stream in (sys.stdout, sys.stderr):
        if getattr(stream, "errors", None) == "strict" and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def write_stdout(text: str) -> None:
    """Write and flush data. A reader that left is no failure, a full disk is a `StorageError`."""
    if sys.stdout is None:  # started with stdout closed
        return
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        discard(sys.stdout)
    except OSError as error:
        discard(sys.stdout)
        raise StorageError(f"cannot write to standard output: {error.strerror or error}; free some space") from error
