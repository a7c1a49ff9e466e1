"""Which part of somebody's files is train, validation and test: by their names, else by a fixed cut.

Files and folders like `train.txt`, `val/`, `test_set/` or `wiki.test.tokens` name splits. Where the validation split is
not named, it is cut off the end of train; where there are no names, so is the test split.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePosixPath

from ppdgrow.data.dataset import Split
from ppdgrow.errors import InvalidInputError

# Names by the split that they are named for; under None what is to be cut.
Parts = Mapping[Split | None, Sequence[str]]

WORDS: dict[str, Split] = {
    **dict.fromkeys(("train", "training", "trainset"), "train"),
    **dict.fromkeys(("valid", "validation", "val", "dev", "eval", "evaluation", "valset", "devset"), "validation"),
    **dict.fromkeys(("test", "testing", "testset", "holdout"), "test"),
}
_FILLERS = frozenset(["set", "data", "split", "images", "files"])
_ABOUT = re.compile(r"(readme|license|licence|copying|citation|dataset_infos?)(\.|$)", re.IGNORECASE)


def split_of_name(name: str, *, folder: bool) -> Split | None:
    """The split that a name stands for: one word of a file's name, or of a folder's that says nothing else."""
    words = re.findall("[a-z]+", name.lower())
    found = {WORDS[word] for word in words if word in WORDS}
    if folder and any(word not in WORDS and word not in _FILLERS for word in words):
        return None
    return found.pop() if len(found) == 1 else None


def split_of_folder(name: str) -> Split | None:
    """The split that the first folder of a path is named for."""
    first, _, rest = name.partition("/")
    return split_of_name(first, folder=True) if rest else None


def split_of_file(name: str) -> Split | None:
    """The split that a file is named for: by its first folder, else by its own name."""
    return split_of_folder(name) or split_of_name(PurePosixPath(name).stem, folder=False)


def is_about(name: str) -> bool:
    """Whether a file tells of the data and is not part of it, such as README.md."""
    return _ABOUT.match(name.rpartition("/")[2]) is not None


def parts_of(names: Sequence[str], split_of: Callable[[str], Split | None], where: str, *, lone: bool = False) -> Parts:
    """Files or tables by the split that `split_of` gives each; all under None where none has one, or all have the same.

    With `lone`, what is named for validation or test alone, beside others, is one of them (as the tests of code).
    Else, that some are named for splits and others are not, or none for train, is an InvalidInputError.
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


def cut_of(parts: Parts, split: Split, share: float, where: str) -> tuple[Split | None, float, float]:
    """The part that a split comes from, and where in it, from 0 to 1; what is cut off an end is a `share` of it."""
    last, last_but_one = 1.0 - share, 1.0 - 2 * share
    if None in parts:
        ranges = {"train": (0.0, last_but_one), "validation": (last_but_one, last), "test": (last, 1.0)}
        return (None, *ranges[split])
    if "validation" not in parts and split != "test":
        return ("train", 0.0, last) if split == "train" else ("train", last, 1.0)
    if split not in parts:
        raise InvalidInputError(
            f"data {where!r} names the splits {', '.join(sorted(map(str, parts)))} and has no {split} split: add one "
            f"that is called {split}"
        )
    return split, 0.0, 1.0


def few(names: Sequence[str]) -> str:
    """The first three names, and how many more."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{', '.join(map(repr, names[:3]))}{more}"


def by_hash(name: str) -> str:
    """A key that orders names as good as randomly, and the same on every machine."""
    return hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()
