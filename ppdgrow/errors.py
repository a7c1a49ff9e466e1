"""Errors that a user can meet, each with the exit code of the command that raised it.

A message says which key, file, tensor or flag is wrong, what was found, what was expected, and one way out.
"""

from __future__ import annotations

import re

_ADDRESS = re.compile(r"\s*<[^<>]* at 0x[0-9a-fA-F]+>")


def first_line(error: BaseException) -> str:
    """What a library's error says, on one line, without the addresses of objects; its type where it says nothing."""
    lines = _ADDRESS.sub("", str(error)).strip().splitlines()
    return lines[0] if lines else type(error).__name__


class PPDGrowError(Exception):
    """Base of every expected failure: it ends a command with one line on stderr and `exit_code`."""

    exit_code = 1


class ConfigError(PPDGrowError):
    """Usage or configuration: a wrong flag, recipe key or combination of inputs."""

    exit_code = 2


class InvalidInputError(PPDGrowError):
    """An input or checkpoint that is missing, cut off, altered or not what it should be."""

    exit_code = 4


class DivergedError(PPDGrowError):
    """The loss or a gradient became non-finite; the update was not applied. `step` is that of a training run."""

    exit_code = 5

    def __init__(self, message: str, step: int | None = None) -> None:
        super().__init__(message)
        self.step = step


class StorageError(PPDGrowError):
    """The file system refused: full, read-only or vanished."""

    exit_code = 6


class CheckFailedError(PPDGrowError):
    """A promise that the tool checks does not hold, such as a pair that is not the identity."""

    exit_code = 7


class InterruptedRunError(PPDGrowError):
    """A signal stopped the run after its state was saved: exit code 129 (SIGHUP), 130 (SIGINT) or 143 (SIGTERM)."""

    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + signal_number
