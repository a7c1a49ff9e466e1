"""Logs of one JSON object per line that survive a kill: a cut last line is dropped, never doubled or lost."""

from __future__ import annotations

import fcntl
import json
import math
import os
import reprlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ppdgrow.atomic import storage_errors, write_file
from ppdgrow.checkpoint.safe_read import one_line, refuse_lfs_pointer, strict_json
from ppdgrow.errors import InvalidInputError

LARGEST_STEP = 2**62
METRICS_FIGURES = ("lr", "grad_norm", "grad_norm_new", "flops", "tokens")
# What is wrong with a line after the line before it; None if nothing.
Check = Callable[[Mapping[str, Any], Mapping[str, Any] | None], str | None]


def read_jsonl(path: Path, check: Check | None = None) -> list[dict[str, Any]]:
    """All whole lines; an absent file has none, and a last line without its newline is left out.

    `check` says what is wrong with a line; those of `metrics.jsonl` are checked without it.

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
    check = _check_metrics if path.name == "metrics.jsonl" else check
    lines: list[dict[str, Any]] = []
    for number, line in enumerate(data[: data.rfind(b"\n") + 1].splitlines(), start=1):
        document, found = _parse(line)
        wrong = None if check is None or document is None else check(document, lines[-1] if lines else None)
        where = f"{str(path)!r}, line {number}"
        if wrong is not None:  # it names the key, so it goes before what is wrong with the JSON
            raise InvalidInputError(f"{where}: {one_line(wrong)}; restore the file from a copy of the run")
        if document is None or found:
            expected = f"expected one JSON object, found {found}"
            raise InvalidInputError(f"{where}: {expected}; restore the file or remove that line")
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
    text = _text(lines).encode("utf-8")
    with storage_errors(path, len(text)), path.open("ab+") as file:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX)  # a line that another process is writing is not a cut one
        _cut_partial_line(file)
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _text(lines: Iterable[Mapping[str, Any]]) -> str:
    return "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines)


def _cut_partial_line(file: Any) -> None:
    end = file.seek(0, os.SEEK_END)
    file.seek(max(0, end - 1))
    if file.read(1) not in (b"", b"\n"):
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)


def write_jsonl(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    """Replace a log by these lines, at once; a `StorageError` if the file system refuses."""
    write_file(path, _text(lines))


def lines_up_to(path: Path, step: int) -> list[dict[str, Any]]:
    """The lines up to and including a step; an `InvalidInputError` if one is not valid or has no step."""
    lines = read_jsonl(path)
    if any(type(line.get("step")) is not int for line in lines):
        raise InvalidInputError(f"{str(path)!r}: a line has no whole number 'step'; restore the file")
    return [line for line in lines if line["step"] <= step]


def truncate_metrics(path: Path, step: int, *, evaluated: bool) -> None:
    """Keep the metrics up to and including a step; of that step the figures only if its checkpoint has them too."""
    lines = lines_up_to(path, step)
    if not evaluated:  # the process died before it saved them; older versions wrote them into the step's own line
        lines = [
            {key: value for key, value in line.items() if key != "validation" or line["step"] < step}
            for line in lines
            if line["step"] < step or "train_loss" in line
        ]
    if path.exists():
        write_jsonl(path, lines)


def _check_metrics(line: Mapping[str, Any], before: Mapping[str, Any] | None) -> str | None:
    """What is wrong with a line of `metrics.jsonl` after the line before it; None if nothing.

    A step has a line of its own, and, where it was evaluated, a second one with its figures. Older versions wrote them
    into the first.
    """
    step, is_evaluation = line.get("step"), line.get("validation") is not None and "train_loss" not in line
    if type(step) is not int or not 0 <= step < LARGEST_STEP:
        return f"step is {reprlib.repr(step)}, expected a whole number"
    if before is not None and (step, is_evaluation) <= (before["step"], "validation" in before):
        return f"step {step} follows step {before['step']}, expected rising steps"
    for key in ("validation", "timing"):
        if line.get(key) is not None and not isinstance(line[key], dict):
            return f"{key} is {reprlib.repr(line[key])}, expected an object"
    figures = {} if is_evaluation else {"train_loss": line.get("train_loss")}
    figures |= {key: line[key] for key in METRICS_FIGURES if line.get(key) is not None}
    if line.get("validation") is not None:
        figures["validation.loss"] = line["validation"].get("loss")
    if (seconds := (line.get("timing") or {}).get("seconds")) is not None:
        figures["timing.seconds"] = seconds
    for key, value in figures.items():
        if not _is_finite(value):
            return f"{key} is {reprlib.repr(value)}, expected a finite number"
    return None


def _is_finite(value: Any) -> bool:
    # type() and not isinstance(): True is no figure. A whole number may be too large for a float.
    return (type(value) is float and math.isfinite(value)) or (type(value) is int and abs(value) < 1 << 1000)
