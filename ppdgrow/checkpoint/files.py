"""Reading the small files of a checkpoint with suspicion: plain names, no way out of the tree, bounded size."""

from __future__ import annotations

import json
import re
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

    A symlink is followed only inside the same tree, as hub caches have it: `snapshots/REV/file` may point to
    `../../blobs/..`, so the tree is the folder's grandparent.

    Raises:
        InvalidInputError: the name is not plain, the file is missing, or a link leads out of the tree.
    """
    if not PLAIN_NAME.fullmatch(name):
        raise invalid(folder, f"file name {name!r} is not plain (letters, digits, '.', '_' and '-' only)")
    path = folder / name
    if path.is_symlink():
        tree = folder.resolve().parent.parent
        if not path.resolve().is_relative_to(tree):
            raise invalid(path, "a symlink that leads out of the checkpoint's own tree")
    if not path.is_file():
        raise invalid(path, "missing or not a file")
    return path


def read_json(path: Path) -> Any:
    """Parse a JSON file: bounded size, no duplicate keys, no NaN.

    Raises:
        InvalidInputError: it is none of that.
    """
    try:
        size = path.stat().st_size
        if size > MAX_JSON_BYTES:
            raise invalid(path, f"{size} bytes, expected at most {MAX_JSON_BYTES}")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise invalid(path, error.strerror or "cannot be read") from None
    except UnicodeDecodeError:
        raise invalid(path, "not UTF-8 text") from None
    try:
        return json.loads(text, object_pairs_hook=_no_duplicates, parse_constant=_no_constant)
    except RecursionError:
        raise invalid(path, "nested too deeply") from None
    except ValueError as error:
        raise invalid(path, f"not valid JSON ({error})") from None


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
