"""Reading the small files of a checkpoint with suspicion: plain names, no way out of the tree, bounded size."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ppdgrow.errors import InvalidInputError

WAY_OUT = "use an older checkpoint of the run, or a fresh copy"
MAX_JSON_BYTES = 64 * 2**20
PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def invalid(path: Path, found: str) -> InvalidInputError:
    """The one-line error for a bad file of a checkpoint."""
    return InvalidInputError(f"{str(path)!r}: {found}; {WAY_OUT}")


def plain_file(folder: Path, name: str) -> Path:
    """The file `name` directly in `folder`, if it is a regular file that stays in the folder's tree.

    A symlink is followed only inside the same tree, see `tree_of`.

    Raises:
        InvalidInputError: the name is not plain, the file is missing, or a link leads out of the tree.
    """
    if not PLAIN_NAME.fullmatch(name):
        raise invalid(folder, f"file name {name!r} is not plain (letters, digits, '.', '_' and '-' only)")
    path = folder / name
    with readable(path):
        if not path.is_file():
            raise invalid(path, "missing or not a file")
        if path.is_symlink() and not path.resolve().is_relative_to(tree_of(folder)):
            raise invalid(path, "a symlink that leads out of the checkpoint's own tree")
    return path


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
    """Parse a JSON file: bounded size, no duplicate keys, no NaN.

    Raises:
        InvalidInputError: it is none of that.
    """
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
    """Parse UTF-8 JSON without duplicate keys and without NaN.

    Raises:
        ValueError: it is none of that, or nested too deeply.
    """
    try:
        return json.loads(data.decode("utf-8"), object_pairs_hook=_no_duplicates, parse_constant=_no_constant)
    except UnicodeDecodeError:
        raise ValueError("not UTF-8 text") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        raise ValueError("a key stands twice")
    return document


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def json_text(document: Any) -> str:
    """JSON with a fixed layout: the same content gives the same bytes."""
    return json.dumps(document, indent=2, allow_nan=False, ensure_ascii=False) + "\n"
