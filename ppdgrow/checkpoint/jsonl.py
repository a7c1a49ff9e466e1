"""Logs of one JSON object per line that survive a kill: a cut last line is dropped, never doubled or lost."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ppdgrow.atomic import storage_errors, write_file
from ppdgrow.checkpoint.files import one_line, refuse_lfs_pointer, strict_json
from ppdgrow.checkpoint.records import CHECKS
from ppdgrow.errors import InvalidInputError

# What is wrong with a line after the line before it; None if nothing.
Check = Callable[[Mapping[str, Any], Mapping[str, Any] | None], str | None]


def read_jsonl(path: Path, check: Check | None = None) -> list[dict[str, Any]]:
    """All whole lines; an absent file has none, and a last line without its newline is left out.

    Those of `metrics.jsonl` hold what `records` says; `check` says what is wrong with a line of another log.

    Raises:
        InvalidInputError: any other line is not a JSON object, or not one of this log, or it is a git-lfs pointer.
    """
    try:
        if path.exists() and not path.is_file():  # a pipe or device would never end
            raise InvalidInputError(f"cannot read {str(path)!r}: not a file; restore it from a copy of the run")
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise InvalidInputError(f"cannot read {str(path)!r}: {error.strerror}; check the run folder") from None
    refuse_lfs_pointer(path, data)
    check = check or CHECKS.get(path.name)
    lines: list[dict[str, Any]] = []
    for number, line in enumerate(data[: data.rfind(b"\n") + 1].splitlines(), start=1):
        document, found = _parse(line)
        wrong = None if check is None or document is None else check(document, lines[-1] if lines else None)
        if wrong is not None:  # it names the key, so it goes before what is wrong with the JSON
            raise InvalidInputError(
                f"{str(path)!r}, line {number}: {one_line(wrong)}; restore the file from a copy of the run"
            )
        if document is None or found:
            raise InvalidInputError(
                f"{str(path)!r}, line {number}: expected one JSON object, found {found}; restore the file or remove "
                "that line"
            )
        lines.append(document)
    return lines


def _parse(line: bytes) -> tuple[dict[str, Any] | None, str]:
    """The object in a line as far as there is one, and what is wrong with it."""
    found = ""
    try:
        document = strict_json(line)
    except ValueError as error:
        found = one_line(str(error))
        try:
            document = json.loads(line)
        except (ValueError, RecursionError):
            return None, found
    return (document, found) if isinstance(document, dict) else (None, found or "another value")


def append_jsonl(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    """Append lines and flush them to the disk; a cut last line of an earlier process is cut away first.

    Raises:
        ValueError: a value is NaN or infinite; nothing is written.
        StorageError: the file system refused.
    """
    text = "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines).encode("utf-8")
    with storage_errors(path, len(text)), path.open("ab+") as file:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX)  # a line that another process is writing is not a cut one
        _cut_partial_line(file)
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _cut_partial_line(file: Any) -> None:
    end = file.seek(0, os.SEEK_END)
    if end == 0:
        return
    file.seek(end - 1)
    if file.read(1) == b"\n":
        return
    file.seek(0)
    file.truncate(file.read().rfind(b"\n") + 1)


def lines_up_to(path: Path, step: int) -> list[dict[str, Any]]:
    """The lines up to and including a step.

    Raises:
        InvalidInputError: a line is not valid or has no step.
    """
    lines = read_jsonl(path)
    if any(type(line.get("step")) is not int for line in lines):
        raise InvalidInputError(f"{str(path)!r}: a line has no whole number 'step'; restore the file")
    return [line for line in lines if line["step"] <= step]


def truncate_jsonl(path: Path, step: int) -> None:
    """Keep the lines up to and including a step, atomically; an absent file stays absent.

    Raises:
        InvalidInputError: a line is not valid or has no step.
        StorageError: the file system refused.
    """
    lines = lines_up_to(path, step)
    if path.exists():
        write_file(path, "".join(json.dumps(line) + "\n" for line in lines))
