"""The files below a path, and what kind of data most of them are."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ppdgrow.config.schema import DataConfig
from ppdgrow.data.dataset import Split
from ppdgrow.data.local.splitting import few, is_about, split_of_name
from ppdgrow.data.location import DATA_VARIABLE, data_directory
from ppdgrow.errors import InvalidInputError

Kind = Literal["text", "images", "parquet", "rows", "saved"]

# Also those that Pillow may not read: they are named then, not passed over.
IMAGES = frozenset(
    (".png", ".jpg", ".jpeg", ".jfif", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".tga", ".jp2")
) | {".heic", ".heif", ".avif"}
PARQUET = ".parquet"
ROWS = (".csv", ".tsv", ".jsonl", ".ndjson")
SAVED = ("dataset_dict.json", "dataset_info.json", "state.json")  # what `save_to_disk` leaves at the top
_RUN = ("recipe.yaml", "growth.jsonl")
_SKIPPED_FOLDERS = frozenset(["__pycache__", "__MACOSX"])


@dataclass(frozen=True)
class Files:
    """What lies at a path.

    Attributes:
        root: the path, or the folder of a single file.
        kind: what most of the files are.
        names: relative posix paths of the files of that kind, sorted.
        others: names of those of another kind.
    """

    root: Path
    kind: Kind
    names: tuple[str, ...]
    others: tuple[str, ...] = ()

    def split_of(self, name: str) -> Split | None:
        """The split that a file is named for: by its first folder, else by its own name."""
        first, _, rest = name.partition("/")
        by_folder = split_of_name(first, folder=True) if rest else None
        return by_folder or split_of_name(Path(name).stem, folder=False)


def find(config: DataConfig) -> Path:
    """The path that `data.name` means: as it is, else below the data directory, whole or by its last part.

    Raises:
        InvalidInputError: there is nothing.
    """
    try:
        given = Path(config.name).expanduser()
        folder = data_directory(config) if config.directory else None
        if given.exists():
            return given
        folder = folder or data_directory(config)
        below = [] if folder is None else [folder / given, folder / given.name]
        found = next((place for place in below if place.exists()), None)
    except (OSError, ValueError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InvalidInputError(f"data.name: cannot read {config.name!r} ({reason}): name another path") from None
    if found is None:
        looked = "" if folder is None else f" (nor below {str(folder)!r})"
        raise InvalidInputError(
            f"data.name: {config.name!r} does not exist{looked}: expected the path of text, a table, an image folder "
            f"or a saved data set, here or below --data-dir or {DATA_VARIABLE}"
        )
    return found


def survey(path: Path) -> Files:
    """The files of the kind that most files at a path are; hidden ones do not count.

    Raises:
        InvalidInputError: there are none, or the path cannot be read.
    """
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
    by_kind: dict[Kind, list[str]] = {}
    for name in names:
        by_kind.setdefault(_kind_of(name), []).append(name)
    data = {kind: [name for name in of_kind if not is_about(name)] for kind, of_kind in by_kind.items()}
    kind = max(data, key=lambda known: (known == "parquet", len(data[known]), known == "text"))
    chosen = by_kind[kind]
    if kind == "text":  # what else lies there is refused by name, or skipped, when it is read
        return Files(path, kind, tuple(names))
    return Files(path, kind, tuple(chosen), tuple(name for name in names if name not in set(chosen)))


def left_out(files: Files, what: str) -> list[str]:
    """A note that names the files of another kind, if they are no words about the data."""
    others = [name for name in files.others if not is_about(name)]
    return [f"left out what is no {what}: {few(others)}"] if others else []


def _kind_of(name: str) -> Kind:
    suffix = Path(name).suffix.lower()
    if suffix == PARQUET:
        return "parquet"
    if suffix in ROWS:
        return "rows"
    return "images" if suffix in IMAGES else "text"


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
