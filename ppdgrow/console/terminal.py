"""Stderr as a terminal or a file: what fits it, what its encoding can show, and what becomes of it when it is gone."""

from __future__ import annotations

import os
import re
import sys
from typing import Any, TextIO

from rich.console import Console
from rich.control import Control
from rich.segment import ControlType
from rich.text import Text

from ppdgrow.console.tables import wrap_words

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class Stderr(Console):
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
            force_terminal=is_terminal(sys.stderr),
            _environ={name: value for name, value in os.environ.items() if name not in broken},
        )

    transient = ""  # a line that vanishes, without its end

    def show_transient(self, text: str) -> None:
        """Put a line at the bottom that stays there until another one, or none, takes its place."""
        if self.transient:
            self.control(Control(ControlType.CARRIAGE_RETURN, (ControlType.ERASE_IN_LINE, 2)))
        self.transient = wrap_words(text, terminal_width(self.file) - 1).partition("\n")[0]
        if self.transient:
            self.print(Text(self.transient), end="", soft_wrap=True)

    def show(self, text: str, *, label: str = "", style: str = "", wrap: bool = True) -> None:
        """Print text behind a styled label; on a terminal it is wrapped at words, elsewhere never."""
        transient = self.transient
        self.show_transient("")
        whole = f"{label} {text}" if label else text
        if wrap and is_terminal(self.file):
            whole = wrap_words(encodable(whole, self.file), terminal_width(self.file))
        page = Text(whole)
        page.stylize(style, 0, len(label))
        self.print(page, soft_wrap=True)
        self.show_transient(transient)

    def can_show(self, text: str) -> bool:
        """Whether a text appears as it is: without control characters, in the encoding of the terminal."""
        return text.isprintable() and text == text.encode(self.encoding, "replace").decode(self.encoding)

    def __exit__(self, *raised: Any) -> None:
        """Write what is buffered; everything goes through here, the bar too."""
        try:
            super().__exit__(*raised)
        except OSError:  # a full disk; or a terminal that was closed under a run that outlives it
            self.on_broken_pipe()

    def on_broken_pipe(self) -> None:
        """Go on quietly, where Rich would end the process."""
        self.quiet = True
        discard(sys.stderr)


def discard(stream: TextIO) -> None:
    """Send what is buffered, and all that follows, nowhere, so that the exit of Python does not fail on it."""
    try:
        descriptor = os.open(os.devnull, os.O_WRONLY)
        os.dup2(descriptor, stream.fileno())
        os.close(descriptor)
    except (OSError, ValueError):
        pass


def is_terminal(stream: Any) -> bool:
    """Whether a stream goes to one; FORCE_COLOR, for which Rich says yes, is not worth a bar in a log file."""
    stream = getattr(stream, "rich_proxied_file", stream)
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError):
        return False


def terminal_width(stream: Any) -> int:
    """COLUMNS, if it is a width; else that of the terminal; 80 where there is none, or it does not say."""
    if not is_terminal(stream):
        return 80
    try:
        measured = os.get_terminal_size(getattr(stream, "rich_proxied_file", stream).fileno()).columns
    except (AttributeError, OSError, ValueError):
        measured = 0
    return _positive(os.environ.get("COLUMNS", "")) or measured or 80


def _positive(digits: str) -> int | None:
    return int(digits) if re.fullmatch("0*[1-9][0-9]{0,5}", digits) else None


def encodable(text: str, stream: Any) -> str:
    """The text as the stream will show it: a character that it cannot encode is an escape of several columns."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def clean(text: str) -> str:
    r"""The text with control characters, such as those of a hostile file name, shown as `\x1b`."""
    return _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)
