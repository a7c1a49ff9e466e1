"""Which part of somebody's files is train, validation and test: by their names, else by a fixed cut.

Files and folders like `train.txt`, `val/`, `test_set/` or `wiki.test.tokens` name splits. Where the validation split is
not named, it is cut off the end of train; where there are no names, so is the test split.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from ppdgrow.data.dataset import Split
from ppdgrow.errors import InvalidInputError

# Names by the split that they are named for; under None what is to be cut.
Parts = Mapping[Split | None, Sequence[str]]

WORDS: dict[str, Split] = {
    **dict.fromkeys(("train", "training", "trainset"), "train"),
    **dict.fromkeys(("valid", "validation", "val", "dev", "eval", "evaluation", "valset", "devset"), "validation"),
    **dict.fromkeys(("test", "testing", "testset", "holdout"), "test"),
}
_WORD = re.compile(r"[a-z]+")
_FILLERS = frozenset(["set", "data", "split", "images", "files"])
_ABOUT = re.compile(r"(readme|license|licence|copying|citation|dataset_infos?)(\.|$)", re.IGNORECASE)


class PartRange(NamedTuple):
    """A range of a named part, or of everything (`part` None): from `start` to `stop`, fractions of its length."""

    part: Split | None
    start: float = 0.0
    stop: float = 1.0

    @property
    def whole(self) -> bool:
        return (self.start, self.stop) == (0.0, 1.0)

    def indices(self, length: int) -> range:
        """In something of this length."""
        return range(round(self.start * length), round(self.stop * length))


def split_of_name(name: str, *, folder: bool) -> Split | None:
    """The split that a name stands for: one word of a file's name, or of a folder's that says nothing else."""
    words = _WORD.findall(name.lower())
    found = {WORDS[word] for word in words if word in WORDS}
    if folder and any(word not in WORDS and word not in _FILLERS for word in words):
        return None
    return found.pop() if len(found) == 1 else None


def split_of_folder(name: str) -> Split | None:
    """The split that the first folder of a path is named for."""
    first, _, rest = name.partition("/")
    return split_of_name(first, folder=True) if rest else None


def is_about(name: str) -> bool:
    """Whether a file tells of the data and is not part of it, such as README.md."""
    return _ABOUT.match(name.rpartition("/")[2]) is not None


def parts_of(names: Sequence[str], split_of: Callable[[str], Split | None], where: str, *, lone: bool = False) -> Parts:
    """Files or tables by the split that `split_of` gives each; all under None where none has one, or all have the same.

    With `lone`, what is named for validation or test alone, beside others, is one of them (as the tests of code).

    Raises:
        InvalidInputError: some are named for splits and others are not, or none is for train.
    """
    parts: dict[Split | None, list[str]] = {}
    for name in names:
        parts.setdefault(split_of(name), []).append(name)
    rest = [name for name in parts.pop(None, []) if not is_about(name)]
    if not parts or (len(parts) == 1 and (not rest or (lone and "train" not in parts))):
        return {None: list(names)}
    called = ", ".join(sorted(map(str, parts)))
    if "train" not in parts and len(parts) > 1:
        raise InvalidInputError(f"data {where!r}: found the splits {called} and none that is called train: add it")
    if rest:
        raise InvalidInputError(
            f"data {where!r}: found {few(rest)} beside what is named for {called}: name each for its split (train, "
            "validation, test), move it elsewhere, or rename what is not meant as a split"
        )
    return parts


def split_ranges(parts: Parts, share: float) -> dict[Split, PartRange]:
    """Where each split comes from; one that there is not is left out. What is cut off an end is a `share` of it."""
    if None in parts:
        return {
            "train": PartRange(None, 0.0, 1.0 - 2 * share),
            "validation": PartRange(None, 1.0 - 2 * share, 1.0 - share),
            "test": PartRange(None, 1.0 - share, 1.0),
        }
    found = {split: PartRange(split) for split in parts if split is not None}
    if "validation" not in parts:
        found |= {"train": PartRange("train", 0.0, 1.0 - share), "validation": PartRange("train", 1.0 - share, 1.0)}
    return found


def training_part(parts: Parts) -> Split | None:
    """The part that training data comes from: what is named for it, else everything."""
    return "train" if "train" in parts else None


def few(names: Sequence[str]) -> str:
    """The first three names, and how many more."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{', '.join(map(repr, names[:3]))}{more}"


def by_hash(name: str) -> str:
    """A key that orders names as good as randomly, and the same on every machine."""
    return hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()
