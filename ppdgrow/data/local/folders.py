"""Text files and image folders as sources."""

from __future__ import annotations

from pathlib import Path

from ppdgrow.config.schema import DataConfig
from ppdgrow.data.dataset import Split
from ppdgrow.data.local.files import Files
from ppdgrow.data.local.source import ImageSource, Sample, TextSource
from ppdgrow.data.local.splitting import by_hash, few, is_about, parts_of, split_of_name
from ppdgrow.errors import InvalidInputError

_ROWS = frozenset([".csv", ".tsv", ".json", ".jsonl", ".ndjson"])
SKIP = "or set data.skip_broken to go on without such files"


class TextFiles(TextSource):
    """One text file, or all below a folder. Where splits are cut, files come in an order that is as good as random."""

    def __init__(self, files: Files, config: DataConfig) -> None:
        self._files, self._config = files, config
        # Among others, a file in a folder of no split says nothing by its own name: it may be code, like src/train.py.
        all_named = all(files.split_of(name) or is_about(name) for name in files.names)
        split_of = files.split_of if all_named else _split_of_text
        self.parts = parts_of(files.names, split_of, str(files.root))
        self.skipped = {}
        rows = [name for name in files.names if Path(name).suffix.lower() in _ROWS]
        if rows:
            self.notes = [f"{few(rows)} read as plain text, names of columns and all: save one as parquet for a column"]

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
        flat = level == 0 and all(split_of_name(name.partition("/")[0], folder=True) for name in files.names)
        self._labels = {}
        for name in (name for names in self.parts.values() for name in names):
            folders = name.split("/")[:-1]
            if flat or not folders:
                raise InvalidInputError(
                    f"data {str(files.root)!r}: found the image {name!r}, expected CLASS/IMAGE or train/CLASS/IMAGE: "
                    "sort the images into folders that are called like their classes"
                )
            self._labels[name] = folders[level]
        self.classes = tuple(sorted(set(self._labels.values())))
        others = [name for name in files.others if not is_about(name)]
        self.notes = [f"left out what is no image: {few(others)}"] if others else []

    def samples(self, part: Split | None) -> list[Sample]:
        """The files of the part in the order of their names."""
        return [Sample(name, self._labels[name], (self._files.root / name).read_bytes) for name in self.parts[part]]


def _split_of_image(name: str) -> Split | None:
    """By the first folder, if the class is named by another below it: there may be a class of trains."""
    folders = name.split("/")[:-1]
    return split_of_name(folders[0], folder=True) if len(folders) > 1 else None
