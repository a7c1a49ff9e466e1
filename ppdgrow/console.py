"""What a person and a pipe see: data on stdout, narration and progress on stderr.

Names and messages are shown as they are: never as markup, never highlighted, control characters escaped.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from rich.console import Console
from rich.text import Text

from ppdgrow.errors import StorageError
from ppdgrow.layout import TextColumn, render, split_table, wrap_words

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_COUNT_UNITS = ("", " k", " M", " B", " T")
_FLOP_UNITS = (" FLOP", " kFLOP", " MFLOP", " GFLOP", " TFLOP", " PFLOP", " EFLOP", " ZFLOP")


class _Stderr(Console):
    """Stderr, plain. If its reader leaves or its disk is full, the work goes on unheard."""

    def __init__(self) -> None:
        # Rich takes every string of digits for a size: at 0 it prints nothing, and at a superscript 2 it fails.
        broken = [name for name in ("COLUMNS", "LINES") if _positive(os.environ.get(name, "")) is None]
        super().__init__(
            stderr=True,
            markup=False,
            highlight=False,
            emoji=False,
            # FORCE_COLOR must not put escape codes into a log file.
            force_terminal=_is_terminal(sys.stderr),
            _environ={name: value for name, value in os.environ.items() if name not in broken},
        )

    def tell(self, text: str, *, label: str = "", style: str = "", wrap: bool = True) -> None:
        """Print text behind a styled label; on a terminal it is wrapped at words, elsewhere never."""
        whole = f"{label} {text}" if label else text
        if wrap and _is_terminal(self.file):
            whole = wrap_words(_encodable(whole, self.file), _terminal_width(self.file))
        page = Text(whole)
        page.stylize(style, 0, len(label))
        self.print(page, soft_wrap=True)

    def __exit__(self, *raised: Any) -> None:
        """Write what is buffered; everything goes through here, the bar too."""
        try:
            super().__exit__(*raised)
        except OSError:  # a full disk; or a terminal that was closed under a run that outlives it
            self.on_broken_pipe()

    def on_broken_pipe(self) -> None:
        """Go on quietly, where Rich would end the process."""
        self.quiet = True
        _discard(sys.stderr)


class ProgressBar:
    """Where a loop stands, below some lines of text. Shows nothing unless it was made for a terminal."""

    def __init__(
        self, description: str, total: int, display: Progress | None = None, header: Text | None = None
    ) -> None:
        self._description, self._total, self._display, self._header = description, total, display, header
        self._task: TaskID | None = None if display is None else display.add_task(description, total=total)
        self._first: tuple[float, int, float] | None = None

    def update(self, completed: int, **fields: Any) -> None:
        """Move to `completed`, with figures to show beside it.

        Args:
            completed: of the total.
            **fields: figures by name. `lr` is shown as a rate, `tokens` (a running count) as tokens per
                second, None not at all.
        """
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
    shown = [[_encodable(clean(cell), sys.stdout) for cell in row] + [""] * (width - len(row)) for row in filled]
    columns = zip(zip(*shown, strict=True), letters, strict=False)
    return [TextColumn(head, tuple(cells), letter) for (head, *cells), letter in columns]


def _figure(name: str, value: Any) -> str:
    if isinstance(value, float):
        return f"{name} {value:.1e}" if name == "lr" else f"{name} {value:.4g}"
    return f"{name} {value}"


class Narrator:
    """Speaks for one command.

    Args:
        quiet: no narration and no progress; warnings and data stay.
        json: nothing but one JSON document on stdout, and errors.
    """

    def __init__(self, quiet: bool = False, json: bool = False) -> None:
        self.quiet, self.json = quiet, json
        self._stderr = _Stderr()
        self._progressing = False

    def say(self, text: str) -> None:
        """A message on stderr: one line, wrapped only on a terminal."""
        if not (self.quiet or self.json):
            self._stderr.tell(clean(text))

    def warn(self, text: str) -> None:
        """`warning: ...` on stderr, also with `--quiet`."""
        if not self.json:
            self._stderr.tell(clean(text), label="warning:", style="yellow")

    def milestone(self, text: str) -> None:
        """A line of progress for a log file; a terminal has the bar instead."""
        if not self._live:
            self.say(text)

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
        self._progressing = True
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
        width.

        Args:
            rows: cells; short rows are filled up.
            header: column names, bold on a terminal.
            align: one letter per column, `l`, `r`, or `w` for text to be wrapped; the default is `l` for the first and
                `r` for the others.
        """
        if self.json:
            return
        columns = table_columns(rows, header, align)
        blocks = [columns] if self.width is None else split_table(columns, self.width)
        shown = {"header": header is not None, "terminal": _is_terminal(sys.stdout)}
        write_stdout("\n".join(render(block, **shown) for block in blocks))

    @property
    def width(self) -> int | None:
        """Columns of the terminal that stdout is; None where it is none, and lines may be of any length."""
        return _terminal_width(sys.stdout) if _is_terminal(sys.stdout) else None

    def text(self, text: str) -> None:
        """Sentences on stdout, wrapped at words on a terminal; nothing with `--json`."""
        self.data(clean(text) if self.width is None else wrap_words(_encodable(clean(text), sys.stdout), self.width))

    def data(self, text: str) -> None:
        """One raw line on stdout, such as the path that the next command needs; nothing with `--json`."""
        if not self.json:
            write_stdout(f"{text}\n")

    def document(self, document: Mapping[str, Any]) -> None:
        """The command's JSON document, on one line of stdout; nothing without `--json`.

        Raises:
            ValueError: a figure is not finite, which JSON cannot say.
        """
        if self.json:
            write_stdout(f"{json.dumps(document, allow_nan=False)}\n")

    @property
    def columns(self) -> int:
        """Width for narration: that of the terminal, or 80 where there is none."""
        return _terminal_width(self._stderr.file)

    @property
    def _live(self) -> bool:
        shown = not (self.quiet or self.json)
        return shown and _is_terminal(self._stderr.file) and not self._stderr.is_dumb_terminal


def report_error(message: str, exit_code: int, *, as_json: bool, traceback: str | None = None) -> None:
    """The last word of a failed command, on stderr: `error: ...`, or one JSON document."""
    console = _Stderr()
    if as_json:
        document = {"schema": 1, "error": message, "exit_code": exit_code}
        console.tell(json.dumps(document | ({} if traceback is None else {"traceback": traceback})), wrap=False)
        return
    if traceback is not None:
        console.tell(clean(traceback.rstrip()), wrap=False)
    console.tell(clean(message), label="error:", style="bold red")


def prepare_streams() -> None:
    """Let a character that the terminal cannot encode be shown as an escape, not end the command."""
    for stream in (sys.stdout, sys.stderr):
        if getattr(stream, "errors", None) == "strict" and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def write_stdout(text: str) -> None:
    """Write and flush data. A reader that left is no failure.

    Raises:
        StorageError: stdout is a file on a full disk.
    """
    if sys.stdout is None:  # started with stdout closed
        return
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        _discard(sys.stdout)
    except OSError as error:
        _discard(sys.stdout)
        raise StorageError(f"cannot write to standard output: {error.strerror or error}; free some space") from error


def _discard(stream: TextIO) -> None:
    """Send what is buffered, and all that follows, nowhere, so that the exit of Python does not fail on it."""
    try:
        descriptor = os.open(os.devnull, os.O_WRONLY)
        os.dup2(descriptor, stream.fileno())
        os.close(descriptor)
    except (OSError, ValueError):
        pass


def _is_terminal(stream: Any) -> bool:
    # Rich also says yes when FORCE_COLOR is set, which a bar in a log file is not worth.
    stream = getattr(stream, "rich_proxied_file", stream)
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError):
        return False


def _terminal_width(stream: Any) -> int:
    """COLUMNS, if it is a width; else that of the terminal; 80 where there is none, or it does not say."""
    if not _is_terminal(stream):
        return 80
    try:
        measured = os.get_terminal_size(getattr(stream, "rich_proxied_file", stream).fileno()).columns
    except (AttributeError, OSError, ValueError):
        measured = 0
    return _positive(os.environ.get("COLUMNS", "")) or measured or 80


def _encodable(text: str, stream: Any) -> str:
    """The text as the stream will show it: a character that it cannot encode is an escape of several columns."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def _positive(digits: str) -> int | None:
    return int(digits) if re.fullmatch("0*[1-9][0-9]{0,5}", digits) else None


def clean(text: str) -> str:
    r"""The text with control characters, such as those of a hostile file name, shown as `\x1b`."""
    return _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


def format_count(count: float) -> str:
    """Three significant digits: 999, 1.5 k, 2.3 M, 70 B."""
    return _scaled(count, _COUNT_UNITS)


def format_flops(flops: float) -> str:
    """Three significant digits: 13.9 MFLOP."""
    return _scaled(flops, _FLOP_UNITS)


def _scaled(value: float, units: Sequence[str]) -> str:
    size = 0
    while abs(value) >= 999.5 and size < len(units) - 1:
        value, size = value / 1000, size + 1
    return f"{value:.3g}{units[size]}" if abs(value) < 999.5 else f"{value:.0f}{units[size]}"


def format_seconds(seconds: float) -> str:
    """`8.4 s`, `41 s`, `1 m 51 s`, `2 h 3 m 5 s`, `1 d 4 h 0 m`."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h {minutes} m"
    if hours:
        return f"{hours} h {minutes} m {rest} s"
    return f"{minutes} m {rest} s" if minutes else f"{rest} s"
