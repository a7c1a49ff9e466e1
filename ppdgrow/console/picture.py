"""Pictures that commands draw on request: the file is checked before any work, and written whole or not at all.

Their background is white, so that they can be read in print and on a dark page; colours differ in lightness too.
Matplotlib is imported only here and where a figure is filled, and only when used.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ppdgrow.atomic import replace_file
from ppdgrow.errors import ConfigError, StorageError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIXES = (".svg", ".png")
INK = "#222222"
# Told apart by colour-blind eyes: six of Okabe & Ito 2008 (their yellow is too light for lines), then six of Paul Tol's
# muted ones, darker or paler than those.
COLOURS = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"),
    *("#332288", "#882255", "#999933", "#661100", "#888888", "#AA4499"),
)


def check_file(path: Path, flag: str, suffixes: Sequence[str]) -> None:
    """Refuse an output file that could not be written, before any work."""
    if path.suffix.lower() not in suffixes:
        raise ConfigError(f"{flag} {str(path)!r}: expected a file name that ends with {' or '.join(suffixes)}")
    if not path.parent.is_dir():
        raise StorageError(f"{flag} {str(path)!r}: the folder {str(path.parent)!r} does not exist; make it first")
    if path.is_dir():
        raise StorageError(f"{flag} {str(path)!r} is a folder: choose another file name")


def check_matplotlib(flag: str) -> None:
    """Refuse to draw without matplotlib, before any work."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise ConfigError(
            f"{flag} draws with matplotlib, which is not installed: pip install 'ppdgrow[plot]', or leave {flag} out"
        ) from None


def write_output(path: Path, flag: str, data: bytes) -> None:
    """Replace `path` by these bytes, or raise a `StorageError` and leave it as it was."""
    try:
        replace_file(path, data)
    except OSError as error:
        raise StorageError(f"cannot write {flag} {str(path)!r}: {error.strerror or error}") from error


@contextmanager
def new_figure(width: float, height: float) -> Iterator[Figure]:
    """A figure of some inches in the style of all pictures; it must be rendered within."""
    import matplotlib
    from matplotlib.figure import Figure

    style: dict[Any, Any] = {"svg.hashsalt": "ppdgrow", "font.size": 9}
    style |= dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK)
    with matplotlib.rc_context(style):
        yield Figure(figsize=(width, height), layout="constrained", facecolor="white")


def render(figure: Figure, file_format: str) -> bytes:
    """The bytes of a figure, `svg` or `png`; the same figure gives the same bytes."""
    page = io.BytesIO()
    figure.savefig(page, format=file_format, dpi=160, metadata={"Date": None} if file_format == "svg" else None)
    return page.getvalue()
