"""Ctrl-C and SIGTERM as a flag that the loops look at, so that a run ends with its state saved."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from ppdgrow.signals import handling, raise_if_interrupted


class StopFlag:
    """Set by the first signal. A second one ends the process at once."""

    def __init__(self) -> None:
        self.signal_number: int | None = None

    def __bool__(self) -> bool:
        return self.signal_number is not None

    def handle(self, number: int, frame: FrameType | None) -> None:
        if self.signal_number is not None:
            os._exit(128 + number)
        self.signal_number = number


class StoppedError(Exception):
    """Raised inside evaluation when the stop flag is set; never seen by a user."""


@contextmanager
def stop_flag() -> Iterator[StopFlag]:
    """Catch SIGINT and SIGTERM into a flag while the body runs (main thread only, elsewhere never set).

    Raises:
        KeyboardInterrupt: one came before, and a library that was being imported swallowed it.
    """
    flag = StopFlag()
    with handling(flag.handle):
        raise_if_interrupted()
        yield flag
