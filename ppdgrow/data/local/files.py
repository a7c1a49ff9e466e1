"""The files below a path: what kind of data most of them are, and the text of one."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ppdgrow.data.local.splits import few, is_about
from ppdgrow.data.location import refuse_pointer
from ppdgrow.errors import InvalidInputError

Kind = Literal["text", "images", "parquet", "rows", "saved"]

# Also those that Pillow may not read: they are named then, not passed over.
IMAGES = frozenset(
    (".png", ".jpg", ".jpeg", ".jfif", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".tga", ".jp2")
) | {".heic", ".heif", ".avif"}
ROWS = (".csv", ".tsv", ".jsonl", ".ndjson")
SKIP = "or set data.skip_broken to go on without such files"
SAVED = ("dataset_dict.json", "dataset_info.json", "state.json")  # what `save_to_disk` leaves at the top
_KINDS: dict[str, Kind] = {".parquet": "parquet", **dict.fromkeys(ROWS, "rows"), **dict.fromkeys(IMAGES, "images")}
_RUN = ("recipe.yaml", "growth.jsonl")
_SKIPPED_FOLDERS = frozenset(["__pycache__", "__MACOSX"])
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")


@dataclass(frozen=True)
class Files:
    """What lies at a path, or in the folder of a single file: relative posix paths, sorted."""

    root: Path
    kind: Kind  # what most of the files are
    names: tuple[str, ...]  # of that kind
    others: tuple[str, ...] = ()

    def left_out(self, what: str) -> list[str]:
        """A note that names the files of another kind, if they are no words about the data."""
        others = [name for name in self.others if not is_about(name)]
        return [f"left out {what}: {few(others)}"] if others else []


def survey(path: Path) -> Files:
    """The files of the kind that most files at a path are, hidden ones left out; InvalidInputError if it has none."""
    if path.is_file():
        return Files(path.parent, _kind_of(path.name), (path.name,))
    if not path.is_dir():
        raise InvalidInputError(f"data {str(path)!r} is neither a file nor a folder: copy its content into a file")
    if any((path / name).is_file() for name in SAVED):
        return Files(path, "saved", ())
    names = _walk(path)
    if not names:
        raise InvalidInputError(
            f"data {str(path)!r} holds no files: expected text, tables (parquet, CSV, JSON lines), or images in folders"
        )
    counts = Counter(_kind_of(name) for name in names if not is_about(name))
    kind = max(map(_kind_of, names), key=lambda known: (known == "parquet", counts[known], known == "text"))
    if kind == "text":  # what else lies there is refused by name, or skipped, when it is read
        return Files(path, kind, tuple(names))
    of_kind = tuple(name for name in names if _kind_of(name) == kind)
    return Files(path, kind, of_kind, tuple(name for name in names if _kind_of(name) != kind))


def _kind_of(name: str) -> Kind:
    return _KINDS.get(Path(name).suffix.lower(), "text")


def _walk(root: Path) -> list[str]:
    def refuse(error: OSError) -> None:
        raise InvalidInputError(
            f"data: cannot read the folder {str(error.filename)!r} ({error.strerror}): make it readable"
        ) from None

    found, seen = [], set()
    for current, folders, files in os.walk(root, onerror=refuse, followlinks=True):
        place = Path(current).stat()
        if (place.st_dev, place.st_ino) in seen or all((Path(current) / name).is_file() for name in _RUN):
            folders[:] = []  # a loop of links, or a run of this program in the midst of the data
            continue
        seen.add((place.st_dev, place.st_ino))
        folders[:] = [name for name in folders if not name.startswith(".") and name not in _SKIPPED_FOLDERS]
        paths = [Path(current) / name for name in files if not name.startswith(".")]
        found += [path.relative_to(root).as_posix() for path in paths if path.is_file()]
    return sorted(found)


def read_text(path: Path, encoding: str) -> str:
    """A text file, without a byte order mark, its line ends (CRLF, CR) as newlines; else InvalidInputError."""
    where = f"data: {str(path)!r}"
    refuse_pointer("data", path)
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise InvalidInputError(
            f"data: cannot read {str(path)!r} ({error.strerror or error}): make it readable, or name other data"
        ) from None
    try:
        text = raw.decode(encoding)
        text.encode()  # half a character (a lone surrogate) is none
    except UnicodeError as error:
        start = getattr(error, "start", 0)
        byte = f" (byte 0x{raw[start]:02x} at offset {start})" if start < len(raw) else ""
        if b"\0" in raw[:4096] and not raw.startswith(_UTF_16):
            raise InvalidInputError(f"{where} is binary, expected text: convert it, or leave it out") from None
        utf_16 = raw.startswith(_UTF_16) and encoding != "utf-16"
        hint = "utf-16" if utf_16 else "cp1252" if encoding != "cp1252" else "utf-8"
        raise InvalidInputError(
            f"{where} is not {encoding} text{byte}: name its encoding, such as -o data.encoding={hint}, or convert it"
        ) from None
    if "\0" in text:
        raise InvalidInputError(f"{where} is binary (a zero byte), expected text: convert it, or leave it out")
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
