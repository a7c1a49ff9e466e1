"""Ctrl-C and SIGTERM as a flag that the loops look at, so that a run ends with its state saved."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class StopFlag:
    """Set by the first signal. A second one ends the process at once."""

    def __init__(self) -> None:
        self.signal_number: int | None = None

    def __bool__(self) -> bool:
        return self.signal_number is not None

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Signal handler: remember the first signal, die of the second."""
        if self.signal_number is not None:
            os._exit(128 + number)
        self.signal_number = number


class StoppedError(Exception):
    """Raised inside evaluation when the stop flag is set; never seen by a user."""


@contextmanager
def stop_flag() -> Iterator[StopFlag]:
    """Catch SIGINT and SIGTERM into a flag while the body runs (main thread only, elsewhere never set)."""
    flag = StopFlag()
    try:
        previous = {number: signal.signal(number, flag.handle) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not the main thread
        yield flag
        return
    try:
        yield flag
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
