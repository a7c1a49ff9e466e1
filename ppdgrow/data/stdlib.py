"""`stdlib`: the running interpreter's own standard-library sources, several MB of real text without a network."""

from __future__ import annotations

import hashlib
import os
import sysconfig
from pathlib import Path

from ppdgrow.data.dataset import Split
from ppdgrow.data.location import reading
from ppdgrow.data.text import TextDataset
from ppdgrow.errors import InvalidInputError

# Installed packages, generated caches, and tests, which are long tables rather than text.
SKIPPED_FOLDERS = frozenset(["site-packages", "dist-packages", "__pycache__", "test", "tests", "idlelib"])
VALIDATION_SHARE = 0.05
TEST_SHARE = 0.05


class Stdlib(TextDataset):
    """Files are dealt to the splits by the hash of their names, so a file never changes its split."""

    name = "stdlib"
    default_tokenizer = "byte"

    def read(self, split: Split) -> bytes:
        """The files of a split in the order of their names, joined by newlines."""
        folder = Path(sysconfig.get_path("stdlib"))
        names = [name for name in source_files(folder) if split_of(name) == split]
        if not names:
            raise InvalidInputError(
                f"stdlib: found no sources (*.py) for the {split} split below {str(folder)!r}: this Python came "
                "without its library's sources; use another Python, or --data wikitext2"
            )
        return b"\n".join(_read(folder / name) for name in names)


def source_files(folder: Path) -> list[str]:
    """Relative posix paths of the sources below a standard library, sorted."""
    found = []
    for current, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in SKIPPED_FOLDERS]
        found += [
            (Path(current) / name).relative_to(folder).as_posix()
            for name in files
            # written when Python was built: settings of that machine, no source
            if name.endswith(".py") and not name.startswith("_sysconfigdata")
        ]
    return sorted(found)


def split_of(name: str) -> Split:
    """The split of a source, from the sha256 of its relative path."""
    share = int(hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()[:8], 16) / 2**32
    if share < VALIDATION_SHARE:
        return "validation"
    return "test" if share < VALIDATION_SHARE + TEST_SHARE else "train"


def _read(path: Path) -> bytes:
    with reading("stdlib", path):
        return path.read_bytes().decode("utf-8", "replace").encode()
