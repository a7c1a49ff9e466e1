"""Python on a pseudo-terminal or between pipes, and what is to be seen there in the end."""

from __future__ import annotations

import os
import re
import struct
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from rich.cells import cell_len

ROOT = Path(__file__).parents[2]
SEQUENCE = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])")


@dataclass(frozen=True)
class Shown:
    """What a command wrote to a terminal or into two pipes."""

    code: int
    out: str
    err: str = ""


def environment(encoding: str, **changes: str) -> dict[str, str]:
    names = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
    kept = {name: value for name, value in os.environ.items() if name not in names}
    return kept | {"PYTHONPATH": str(ROOT), "TERM": "xterm", "PYTHONIOENCODING": encoding} | changes


def terminal(*arguments: str, width: int, encoding: str = "utf-8", cwd: Path | None = None, **changes: str) -> Shown:
    """Run Python on a pseudo-terminal of a width; both streams are shown on it."""
    pty, termios, fcntl = (pytest.importorskip(name) for name in ("pty", "termios", "fcntl"))
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, width, 0, 0))
    process = subprocess.Popen(
        [sys.executable, *arguments],
        env=environment(encoding, **changes),
        stdin=slave,
        stdout=slave,
        stderr=slave,
        cwd=cwd,
    )
    os.close(slave)
    shown = b"".join(pieces(master))
    os.close(master)
    return Shown(process.wait(timeout=120), shown.decode(encoding))


def pieces(descriptor: int) -> Iterator[bytes]:
    while True:
        try:
            piece = os.read(descriptor, 65536)
        except OSError:  # how Linux says that the other end is closed
            return
        if not piece:
            return
        yield piece


def piped(*arguments: str, encoding: str = "utf-8", cwd: Path | None = None, **changes: str) -> Shown:
    done = subprocess.run(
        [sys.executable, *arguments], env=environment(encoding, **changes), capture_output=True, cwd=cwd, timeout=120
    )
    return Shown(done.returncode, done.stdout.decode(encoding), done.stderr.decode(encoding))


def screen(shown: str, width: int) -> list[str]:
    """The lines that a terminal shows in the end: what moves the cursor or erases is obeyed."""
    lines: list[list[str]] = [[]]
    row = column = at = 0
    while at < len(shown):
        sequence = SEQUENCE.match(shown, at)
        if sequence:
            at = sequence.end()
            if sequence[2] == "A":
                row = max(0, row - int(sequence[1] or 1))
            elif sequence[2] == "K":
                assert sequence[1] == "2"
                lines[row] = []
            else:
                assert sequence[2] in "mhl", f"unknown sequence {sequence[0]!r}"
            continue
        sign, at = shown[at], at + 1
        if sign == "\r":
            column = 0
            continue
        if sign == "\n" or column + cell_len(sign) > width:
            row, column = row + 1, column if sign == "\n" else 0
            if row == len(lines):
                lines.append([])
        if sign != "\n":
            lines[row] += [" "] * (column - len(lines[row]))
            lines[row][column : column + 1] = [sign]
            column += cell_len(sign)
            lines[row] += [""] * (column - len(lines[row]))
    return ["".join(line).rstrip() for line in lines]


def colours(shown: str) -> list[str]:
    """Sequences that choose a colour; bold is none."""
    styles = [match for match in SEQUENCE.finditer(shown) if match[2] == "m"]
    return [style[0] for style in styles if any(int(number or 0) >= 30 for number in style[1].split(";"))]
