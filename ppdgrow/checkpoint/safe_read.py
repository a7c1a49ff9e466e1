"""Reading the small files of a checkpoint with suspicion: plain names, no way out of the tree, bounded size.

What is not so is an `InvalidInputError` of one line that names the file, what was found and a way out.
"""

from __future__ import annotations

import codecs
import json
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ppdgrow.atomic import LFS_HEAD, is_lfs_pointer
from ppdgrow.errors import InvalidInputError

WAY_OUT = "use an older checkpoint of the run, or a fresh copy"
MAX_JSON_BYTES = 64 * 2**20
MAX_JSON_VALUES = 4_000_000  # a few hundred MB as Python objects; 65,536 blocks have a tenth of it
MAX_SHOWN = 400
MAX_DIGITS = 100
PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def invalid(path: Path, found: str) -> InvalidInputError:
    """The one-line error for a bad file of a checkpoint; what was found in it is told in bounded length."""
    return InvalidInputError(f"{str(path)!r}: {one_line(found)}; {WAY_OUT}")


def one_line(found: str) -> str:
    """Text out of a file as a message can hold it: printable, on one line, its middle left out where it is long."""
    shown = "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in found[: MAX_SHOWN + 1])
    return shown if len(found) <= MAX_SHOWN else f"{shown[: MAX_SHOWN // 2]}... ({len(found)} characters)"


def plain_file(folder: Path, name: str) -> Path:
    """The file `name` directly in `folder`: a regular one, or a link that stays inside the same tree (`tree_of`)."""
    if not PLAIN_NAME.fullmatch(name):
        raise invalid(folder, f"file name {name!r} is not plain (letters, digits, '.', '_' and '-' only)")
    path = folder / name
    with readable(path):
        if not path.is_file():
            raise invalid(path, "missing or not a file")
        if path.is_symlink() and not path.resolve().is_relative_to(tree_of(folder)):
            raise invalid(path, "a symlink that leads out of the checkpoint's own tree")
        with path.open("rb") as file:
            refuse_lfs_pointer(path, file.read(len(LFS_HEAD)))
    return path


def refuse_lfs_pointer(path: Path, head: bytes) -> None:
    """Name a git-lfs pointer as what it is; `head` is how the file begins."""
    if is_lfs_pointer(head):
        raise InvalidInputError(
            f"{str(path)!r} is a git-lfs pointer, not the file itself: run git lfs pull in its repository"
        )


def tree_of(folder: Path) -> Path:
    """The folder that links of a checkpoint may not leave.

    In a hub cache, where `snapshots/REV/.../file` points into `blobs`, it is the repository's folder; for
    RUN/checkpoints/step-N it is RUN; elsewhere the checkpoint's own folder.
    """
    folder = folder.resolve()
    for parent in folder.parents:
        if parent.name == "snapshots" and (parent.parent / "blobs").is_dir():
            return parent.parent
    return folder.parent.parent if folder.parent.name == "checkpoints" else folder


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn an `OSError` of a read into the one-line error for that file."""
    try:
        yield
    except OSError as error:
        raise invalid(path, f"cannot be read ({error.strerror or error})") from None


def read_json(path: Path) -> Any:
    """Parse a JSON file of bounded size by `strict_json`."""
    with readable(path):
        size = path.stat().st_size
        if size > MAX_JSON_BYTES:
            raise invalid(path, f"{size} bytes, expected at most {MAX_JSON_BYTES}")
        data = path.read_bytes()
    try:
        return strict_json(data)
    except ValueError as error:
        raise invalid(path, f"not valid JSON ({error})") from None


def strict_json(data: bytes) -> Any:
    """Parse UTF-8 JSON: no duplicate keys, no NaN or infinity in any spelling, no half of a surrogate pair.

    Raises:
        ValueError: it is none of that, nested too deeply, or has more values than `MAX_JSON_VALUES`.
    """
    if data.startswith(codecs.BOM_UTF8):
        raise ValueError("it begins with a byte order mark, expected UTF-8 without one")
    if data.count(b",") + data.count(b"[") + data.count(b"{") > MAX_JSON_VALUES:
        raise ValueError(f"more than {MAX_JSON_VALUES} values")
    try:
        document = _DECODER.decode(data.decode("utf-8"))
    except UnicodeDecodeError:
        raise ValueError("not UTF-8 text") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if b"\\ud" in data or b"\\uD" in data:
        try:
            json.dumps(document, ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError:
            raise ValueError("half of a surrogate pair is not a character") from None
    return document


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        raise ValueError("a key occurs twice")
    return document


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{one_line(text)} is out of range")
    return value


def _whole(text: str) -> int:
    # Sums and ratios of such numbers still fit a float.
    if len(text) > MAX_DIGITS:
        raise ValueError(f"a whole number of {len(text)} digits")
    return int(text)


_DECODER = json.JSONDecoder(
    object_pairs_hook=_no_duplicates, parse_constant=_no_constant, parse_float=_finite, parse_int=_whole
)


def json_text(document: Any) -> str:
    """JSON with a fixed layout: the same content gives the same bytes."""
    return json.dumps(document, indent=2, allow_nan=False, ensure_ascii=False) + "\n"
