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


_received: list[int] = []


@contextmanager
def interrupts() -> Iterator[list[int]]:
    """SIGINT and SIGTERM raise KeyboardInterrupt, and which one it was is kept.

    Libraries that are being imported can turn the exception into one of their own, or swallow it: see
    `raise_if_interrupted`.
    """

    def handle(number: int, frame: FrameType | None) -> None:
        _received.append(number)
        raise KeyboardInterrupt

    try:
        with handling(handle):
            yield _received
    finally:
        _received.clear()


def raise_if_interrupted() -> None:
    """Raise the KeyboardInterrupt of a signal that came earlier within `interrupts` and was swallowed.

    Raises:
        KeyboardInterrupt: there was one.
    """
    if _received:
        raise KeyboardInterrupt
