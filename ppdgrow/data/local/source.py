"""What somebody's data offers, wherever it lies: named parts, each of text or of labelled images."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ppdgrow.data.dataset import Split
from ppdgrow.data.local.splitting import Parts


@dataclass(frozen=True)
class Sample:
    """An encoded image, read when it is needed, and the name of its class."""

    name: str
    label: str
    read: Callable[[], bytes]


class TextSource(ABC):
    """Text in named parts.

    Attributes:
        parts: names by the split that they are named for.
        notes: what a user should know of what was found so far.
        keys: of the recipe's `data` that are of use.
        skipped: what was left out under `data.skip_broken`, by name, with the reason.
    """

    parts: Parts
    notes: list[str]
    keys: tuple[str, ...]
    skipped: dict[str, str]

    @abstractmethod
    def text(self, part: Split | None) -> str:
        """The text of a part, or of everything, with lines that end in a newline alone.

        Raises:
            InvalidInputError: something in it cannot be read.
        """


class ImageSource(ABC):
    """Labelled images in named parts.

    Attributes:
        parts: names by the split that they are named for.
        classes: names of all classes of the training data, in the order of their numbers.
        notes: what a user should know of what was found so far.
        keys: of the recipe's `data` that are of use.
    """

    parts: Parts
    classes: tuple[str, ...]
    notes: list[str]
    keys: tuple[str, ...]

    @abstractmethod
    def samples(self, part: Split | None) -> Sequence[Sample]:
        """The images of a part, or of everything, in the order of their names."""
