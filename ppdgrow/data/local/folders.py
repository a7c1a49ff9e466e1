"""Text files and image folders as sources."""

from __future__ import annotations

from pathlib import Path

from ppdgrow.atomic import LFS_POINTER, is_lfs_pointer
from ppdgrow.config.schema import DataConfig
from ppdgrow.data.dataset import Split
from ppdgrow.data.local.files import ROWS, Files, left_out
from ppdgrow.data.local.source import ImageSource, Sample, TextSource
from ppdgrow.data.local.splitting import by_hash, few, is_about, parts_of, split_of_name, training_part
from ppdgrow.data.token_cache import few_lines
from ppdgrow.errors import InvalidInputError

SKIP = "or set data.skip_broken to go on without such files"


class TextFiles(TextSource):
    """One text file, or all below a folder. Where splits are cut, files come in an order that is as good as random."""

    keys = ("encoding", "skip_broken")

    def __init__(self, files: Files, config: DataConfig) -> None:
        self._files, self._config = files, config
        # Among others, a file in a folder of no split says nothing by its own name: it may be code, like src/train.py.
        all_named = all(files.split_of(name) or is_about(name) for name in files.names)
        split_of = files.split_of if all_named else _split_of_text
        self.parts = parts_of(files.names, split_of, str(files.root), lone=True)
        self.skipped, self.notes = {}, []
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
    first, _, rest = name.partition("/")
    return split_of_name(first if rest else Path(name).stem, folder=bool(rest))


def read_text(path: Path, encoding: str) -> str:
    """A text file, without a byte order mark, its line ends (CRLF, CR) as newlines.

    Raises:
        InvalidInputError: it cannot be read, is binary, or has another encoding.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise InvalidInputError(
            f"data: cannot read {str(path)!r} ({error.strerror or error}): make it readable, or name other data"
        ) from None
    where = f"data: {str(path)!r}"
    if is_lfs_pointer(raw):
        raise InvalidInputError(f"{where} is {LFS_POINTER}")
    try:
        text = raw.decode(encoding)
        text.encode()  # half a character (a lone surrogate) is none
    except UnicodeError as error:
        start = getattr(error, "start", 0)
        byte = f" (byte 0x{raw[start]:02x} at offset {start})" if start < len(raw) else ""
        if b"\0" in raw[:4096] and not raw.startswith((b"\xff\xfe", b"\xfe\xff")):
            raise InvalidInputError(f"{where} is binary, expected text: convert it, or leave it out") from None
        utf_16 = raw.startswith((b"\xff\xfe", b"\xfe\xff")) and encoding != "utf-16"
        hint = "utf-16" if utf_16 else "cp1252" if encoding != "cp1252" else "utf-8"
        raise InvalidInputError(
            f"{where} is not {encoding} text{byte}: name its encoding, such as -o data.encoding={hint}, or convert it"
        ) from None
    if "\0" in text:
        raise InvalidInputError(f"{where} is binary (a zero byte), expected text: convert it, or leave it out")
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


class ImageFolder(ImageSource):
    """Images in folders that are called like their classes; below them any depth, above them perhaps splits."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self.parts = parts_of(files.names, _split_of_image, str(files.root))
        level = 1 if all(map(_split_of_image, files.names)) else 0  # of the folder that names the class
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
        self.notes, self.keys = left_out(files, "image"), ()

    def samples(self, part: Split | None) -> list[Sample]:
        """The files of the part in the order of their names."""
        return [Sample(name, self._labels[name], (self._files.root / name).read_bytes) for name in self.parts[part]]


def _split_of_image(name: str) -> Split | None:
    """By the first folder: a class of trains lies below one that is called train."""
    first, _, rest = name.partition("/")
    return split_of_name(first, folder=True) if rest else None
