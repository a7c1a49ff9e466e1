"""One handler for the two signals that end a run: Ctrl-C (SIGINT) and SIGTERM."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def handling(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Handle SIGINT and SIGTERM by `handler` while the body runs; outside the main thread nothing is changed."""
    try:
        before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not the main thread
        before = {}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
