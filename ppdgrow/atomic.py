"""Files and folders that exist whole or not at all: write aside, fsync, rename.

Modes follow the umask, a failed write leaves what was there before, and an `OSError` becomes a `StorageError`.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ppdgrow.errors import StorageError

TEMPORARY_PREFIX = ".tmp-"


def sha256_file(path: Path) -> str:
    """Hexadecimal sha256 of a file's bytes, read in chunks."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fsync_path(path: Path) -> None:
    """Flush a file or folder to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn an `OSError` of a write below `path` into a `StorageError` that names it."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise StorageError(
            f"cannot write {str(path)!r}: {reason}; nothing that was there is lost. "
            "Free some space or choose another folder with --out"
        ) from error


def write_file(path: Path, text: str) -> None:
    """Replace `path` by `text` (UTF-8) atomically.

    Raises:
        StorageError: the folder is full, read-only or missing; an older file is left as it was.
    """
    with storage_errors(path):
        replace_file(path, text.encode("utf-8"))


def replace_file(path: Path, data: bytes) -> None:
    """Replace `path` by some bytes, whole or not at all.

    Raises:
        OSError: an older file is left as it was.
    """
    temporary = path.with_name(f"{TEMPORARY_PREFIX}{os.getpid()}-{path.name}")
    try:
        temporary.write_bytes(data)
        fsync_path(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    fsync_path(path.parent)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary sibling of `path`; on success it is flushed and renamed to `path`, else removed.

    A folder already at `path` is replaced only after the new one is whole.

    Raises:
        StorageError: the file system refused a step.
    """
    with storage_errors(path):
        path = path.resolve()  # a link to a folder stays a link
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=TEMPORARY_PREFIX, dir=path.parent))
        temporary.chmod(0o777 & ~_umask())  # mkdtemp makes 0700 whatever the umask says
        try:
            yield temporary
            for file in temporary.rglob("*"):
                fsync_path(file)
            fsync_path(temporary)
            if path.is_dir() and any(path.iterdir()):
                doomed = Path(tempfile.mkdtemp(prefix=TEMPORARY_PREFIX, dir=path.parent))
                path.replace(doomed)
                try:
                    temporary.replace(path)
                except BaseException:
                    doomed.replace(path)
                    raise
                shutil.rmtree(doomed, ignore_errors=True)
            else:
                temporary.replace(path)
            fsync_path(path.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def follow_umask(path: Path) -> None:
    """Give a file the mode that the umask asks for (safetensors always writes 0600)."""
    path.chmod(0o666 & ~_umask())


def sweep_leftovers(folder: Path) -> None:
    """Remove what a killed process left half-written directly below `folder`."""
    if not folder.is_dir():
        return
    for leftover in folder.glob(f"{TEMPORARY_PREFIX}*"):
        if leftover.is_dir() and not leftover.is_symlink():
            shutil.rmtree(leftover, ignore_errors=True)
        else:
            leftover.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
