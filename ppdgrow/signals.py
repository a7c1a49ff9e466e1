"""One handler for the signals that end a run: Ctrl-C (SIGINT), SIGTERM and a closed terminal (SIGHUP).

Imported before everything else, so that it imports almost nothing.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

# A closed terminal hangs up; under nohup that is ignored, and stays so.
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_received: list[int] = []
_IMPORT_MACHINERY = "<frozen importlib._bootstrap"


@contextmanager
def handling(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Handle the ending signals by `handler` while the body runs; outside the main thread nothing is changed."""
    try:
        before = {number: signal.signal(number, handler) for number in _handled()}
    except ValueError:  # not the main thread
        before = {}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


def _handled() -> list[signal.Signals]:
    ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return [number for number in ENDING if number != signal.SIGHUP or not ignored]


def end_at_signals() -> None:
    """Let these signals end the process in one line until something has begun; Python itself would show a traceback."""
    for number in _handled():
        signal.signal(number, lambda number, frame: _end(number))


@contextmanager
def interrupts() -> Iterator[list[int]]:
    """The ending signals raise KeyboardInterrupt, and which one it was is kept.

    Within an import they end the process instead: nothing has begun there, and a library that is being initialised
    could swallow the exception, turn it into one of its own, or abort (elsewhere see `raise_if_interrupted`).
    """

    def handle(number: int, frame: FrameType | None) -> None:
        _received.append(number)
        if _imports(frame):
            _end(number)
        raise KeyboardInterrupt

    try:
        with handling(handle):
            yield _received
    finally:
        _received.clear()


def raise_if_interrupted() -> None:
    """Raise the KeyboardInterrupt of a signal that came earlier within `interrupts` and that a library swallowed."""
    if _received:
        raise KeyboardInterrupt


def _imports(frame: FrameType | None) -> bool:
    """Whether a stack is within an import."""
    while frame is not None:
        if frame.f_code.co_filename.startswith(_IMPORT_MACHINERY):
            return True
        frame = frame.f_back
    return False


def _end(number: int) -> NoReturn:
    """The last word of a command, without any library, and its exit code."""
    code = 128 + number
    as_json = "--json" in sys.argv
    text = f'{{"schema": 1, "error": "interrupted", "exit_code": {code}}}' if as_json else "error: interrupted"
    before = "\n" if os.isatty(2) else ""  # behind what stands there, such as ^C
    try:
        os.write(2, f"{before}{text}\n".encode())
    finally:
        os._exit(code)
