"""Where data lies: a folder that the user names, else the hub of the `datasets` library."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ppdgrow.atomic import LFS_POINTER, is_lfs_pointer
from ppdgrow.config.schema import DataConfig
from ppdgrow.errors import InvalidInputError, first_line

DATA_VARIABLE = "PPDGROW_DATA"
CONNECT_SECONDS = 5.0


def data_directory(config: DataConfig) -> Path | None:
    """The folder below which data is expected: `data.directory`, else PPDGROW_DATA, else None (download)."""
    named = config.directory or os.environ.get(DATA_VARIABLE)
    if not named:
        return None
    folder = Path(named).expanduser()
    if not folder.is_dir():
        origin = "data.directory" if config.directory else DATA_VARIABLE
        raise InvalidInputError(
            f"{origin} is {named!r}, which is not a folder: name an existing one with --data-dir or {DATA_VARIABLE}"
        )
    return folder


def find(config: DataConfig) -> Path:
    """The path that `data.name` means: as it is, else below the data directory, whole or by its last part."""
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


def missing_data(name: str, expected: str) -> InvalidInputError:
    """The error for a folder that is there but lacks the data."""
    return InvalidInputError(
        f"{name}: expected {expected}, found nothing there: put the data there, name another folder with "
        f"--data-dir or {DATA_VARIABLE}, or name none to download it"
    )


@contextmanager
def reading(name: str, path: Path) -> Iterator[None]:
    """Turn the failure of a read of `path` into an error that names it; a git-lfs pointer is none of the data."""
    refuse_pointer(name, path)
    try:
        yield
    # The libraries that parse files raise classes of their own, derived from these.
    except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise InvalidInputError(
            f"{name}: cannot read {str(path)!r}: {_ascii_line(error)}; copy the file again, or name another folder "
            f"with --data-dir or {DATA_VARIABLE}"
        ) from error


def refuse_pointer(name: str, path: Path) -> None:
    """Stop at a file, or a file below a folder, that git-lfs has not fetched."""
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        head = b""
        with suppress(OSError, ValueError):  # whoever reads it says why not
            if file.is_file():
                with file.open("rb") as opened:
                    head = opened.read(64)
        if is_lfs_pointer(head):
            raise InvalidInputError(f"{name}: {str(file)!r} is {LFS_POINTER}")


def download(name: str, repository: str, configuration: str, split: str) -> Any:
    """A split of a data set of the hub, from the library's cache if it is there; else InvalidInputError.

    Gives up within seconds where there is no network: the library itself would retry for half a minute.
    """
    from huggingface_hub import constants

    reachable = not constants.HF_HUB_OFFLINE and _reachable(constants.ENDPOINT)
    if not reachable:
        os.environ["HF_HUB_OFFLINE"] = "1"  # read by `datasets` when it is imported below
        constants.HF_HUB_OFFLINE = True
    import datasets

    datasets.disable_progress_bars()
    datasets.logging.set_verbosity_error()
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return datasets.load_dataset(repository, configuration, split=split)
    except Exception as error:  # the library passes on whatever its file systems raise
        reason = _ascii_line(error) if reachable else "the hub cannot be reached, and its cache has no copy"
        raise InvalidInputError(
            f"{name}: no folder with the data was named, and the download of {repository!r} failed "
            f"({reason}): name a folder that has it with --data-dir or {DATA_VARIABLE}, or run this "
            "once on a machine with network"
        ) from error


def _reachable(address: str) -> bool:
    """Whether a web server answers at all, through a proxy if the environment names one."""
    from huggingface_hub import get_session

    try:
        get_session().head(address, timeout=CONNECT_SECONDS)
    except Exception:  # of the library's own choice
        return False
    return True


def _ascii_line(error: BaseException) -> str:
    return first_line(error).encode("ascii", "backslashreplace").decode()
