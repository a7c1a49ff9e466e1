"""What lies at a path, as named parts of text or of labelled images; here plain files, in `columns` those of tables."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ppdgrow.config.schema import DataConfig
from ppdgrow.data.dataset import Split
from ppdgrow.data.local.files import ROWS, Files, read_text
from ppdgrow.data.local.splits import (
    Parts,
    by_hash,
    few,
    is_about,
    parts_of,
    split_of_folder,
    split_of_name,
    training_part,
)
from ppdgrow.data.token_cache import few_lines
from ppdgrow.errors import InvalidInputError

SKIP = "or set data.skip_broken to go on without such files"


class Source(ABC):
    """Somebody's data in named parts.

    Attributes:
        parts: names by the split that they are named for.
        notes: what a user should know of what was found so far.
        keys: of the recipe's `data` that are of use.
        skipped: what was left out under `data.skip_broken`, by name, with the reason.
    """

    parts: Parts
    keys: tuple[str, ...] = ()

    def __init__(self, notes: list[str]) -> None:
        self.notes = notes
        self.skipped: dict[str, str] = {}


class TextSource(Source):
    """Text in named parts."""

    @abstractmethod
    def text(self, part: Split | None) -> str:
        """The text of a part, or of everything, with lines that end in a newline alone.

        Raises:
            InvalidInputError: something in it cannot be read.
        """


@dataclass(frozen=True)
class Sample:
    """An encoded image, read when it is needed, and the name of its class."""

    name: str
    label: str
    read: Callable[[], bytes]


class ImageSource(Source):
    """Labelled images in named parts; `classes` are those of the training data, in the order of their numbers."""

    classes: tuple[str, ...]

    @abstractmethod
    def samples(self, part: Split | None) -> Sequence[Sample]:
        """The images of a part, or of everything, in the order of their names."""


class TextFiles(TextSource):
    """One text file, or all below a folder. Where splits are cut, files come in an order that is as good as random."""

    keys = ("encoding", "skip_broken")

    def __init__(self, files: Files, config: DataConfig) -> None:
        super().__init__([])
        self._files, self._config = files, config
        # Among others, a file in a folder of no split says nothing by its own name: it may be code, like src/train.py.
        all_named = all(files.split_of(name) or is_about(name) for name in files.names)
        split_of = files.split_of if all_named else _split_of_text
        self.parts = parts_of(files.names, split_of, str(files.root), lone=True)
        rows = [name for name in files.names if Path(name).suffix.lower() in (*ROWS, ".json")]
        if rows:
            self.notes.append(
                f"{few(rows)} read as plain text, names of columns and all: name one {', '.join(ROWS)} or parquet file "
                "itself to read a column of it"
            )
        named = [name for name in files.names if split_of(name)]
        if None in self.parts and 0 < len(named) < len(files.names):
            self.notes.append(f"{few(named)} is named for a split, and read like the others, which are not")

    def text(self, part: Split | None) -> str:
        """All files of the part, joined by newlines."""
        names = self.parts[part] if part is not None else sorted(self._files.names, key=by_hash)
        texts = []
        for name in names:
            try:
                texts.append(read_text(self._files.root / name, self._config.encoding))
            except InvalidInputError as error:
                if not self._config.skip_broken:
                    raise InvalidInputError(f"{error}{'' if len(self._files.names) == 1 else f', {SKIP}'}") from None
                self.skipped[name] = str(error)
        if not any(texts):
            reasons = [self.skipped.get(name, f"{name!r} is empty").removeprefix("data: ") for name in names]
            of_part = f" of {part}" if part else ""
            raise InvalidInputError(
                f"data {self._config.name!r}: no file{of_part} could be read: {'; '.join(few_lines(reasons))}; "
                "use other data"
            )
        return "\n".join(texts)


def _split_of_text(name: str) -> Split | None:
    return split_of_folder(name) if "/" in name else split_of_name(Path(name).stem, folder=False)


class ImageFolder(ImageSource):
    """Images in folders that are called like their classes; below them any depth, above them perhaps splits."""

    def __init__(self, files: Files) -> None:
        super().__init__(files.left_out("files that are not images"))
        self._root = files.root
        # By the first folder alone: a class of trains lies below one that is called train.
        self.parts = parts_of(files.names, split_of_folder, str(files.root))
        level = 1 if all(map(split_of_folder, files.names)) else 0  # of the folder that names the class
        self._labels = {}
        for name in (name for names in self.parts.values() for name in names):
            folders = name.split("/")[:-1]
            below = [folder for folder in folders[level + 1 :] if split_of_name(folder, folder=True)]
            if len(folders) <= level or below:
                raise InvalidInputError(
                    f"data {str(files.root)!r}: found the image {name!r}, expected CLASS/IMAGE or train/CLASS/IMAGE: "
                    "sort the images into folders that are called like their classes"
                    + (f", below those of the splits such as {below[0]!r}" if below else "")
                )
            self._labels[name] = folders[level]
        self.classes = tuple(sorted({self._labels[name] for name in self.parts[training_part(self.parts)]}))

    def samples(self, part: Split | None) -> list[Sample]:
        return [Sample(name, self._labels[name], (self._root / name).read_bytes) for name in self.parts[part]]
