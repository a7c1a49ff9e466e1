"""Files and folders that exist whole or not at all: write aside, fsync, rename.

Modes follow the umask, a failed write leaves what was there before, and an `OSError` becomes a `StorageError`.

What is written aside has a name of its own, `.tmp-ppdgrow-...`, and is locked while its process lives. A killed process
leaves it behind without the lock: the next write into the same folder removes it, or puts back what it had set aside.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import hashlib
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ppdgrow.errors import ConfigError, StorageError
from ppdgrow.units import format_bytes

TEMPORARY_PREFIX = ".tmp-"
OWN_PREFIX = f"{TEMPORARY_PREFIX}ppdgrow-"
_AT_FDCWD = -100  # of Linux, as the next
_RENAME_EXCHANGE = 2
SET_ASIDE = re.compile(re.escape(OWN_PREFIX) + r"[0-9a-f]{12}-old-(.+)", re.DOTALL)
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
FORBIDDEN = (errno.EROFS, errno.EACCES, errno.EPERM)
LFS_HEAD = b"version https://git-lfs.github.com/spec/"
VANISHED = (errno.ENOENT, errno.ENOTDIR, errno.ESTALE)
LFS_POINTER = "a git-lfs pointer, not the file itself: fetch it with `git lfs pull`"


def sha256_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_lfs_pointer(head: bytes) -> bool:
    """Whether a file that begins so stands for one that git-lfs has not fetched; `LFS_POINTER` says it to people."""
    return head.startswith(LFS_HEAD)


def fsync_path(path: Path) -> None:
    """Flush a file or folder to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def free_bytes(path: Path) -> int:
    """Free space where `path` is or would be made; an `OSError` if the file system cannot be asked."""
    path = path.absolute()
    return shutil.disk_usage(next(place for place in (path, *path.parents) if place.exists())).free


@contextmanager
def storage_errors(path: Path, needed: int | None = None) -> Iterator[None]:
    """Turn an `OSError` of a write of `path` into a `StorageError` that names it, of a full disk the bytes `needed`."""
    try:
        yield
    except OSError as error:
        raise _refusal(path, error, format_bytes(needed) if needed else None) from error


def _refusal(path: Path, error: OSError, needed: str | None) -> StorageError:
    """The one-line error of a write that failed, with a way out that fits the reason."""
    reason = error.strerror or " ".join(str(error).split())
    # safetensors gives the number only in its text.
    wrapped = re.search(r"\(os error ([0-9]+)\)", reason)
    number = error.errno or (int(wrapped.group(1)) if wrapped else None)
    advice = "Free some space or choose another folder with --out"
    if number in FULL:
        figures = [] if needed is None else [f"{needed} needed"]
        with suppress(OSError, StopIteration):
            figures.append(f"{format_bytes(free_bytes(path))} free")
        reason += f" ({', '.join(figures)})" if figures else ""
    elif number in FORBIDDEN:
        advice = "Make it writable or choose another folder with --out"
    elif number in VANISHED:
        advice = "If its folder was moved or removed meanwhile, bring it back and give the same command again"
    return StorageError(f"cannot write {str(path)!r}: {reason}; nothing that was there is lost. {advice}")


def write_file(path: Path, text: str) -> None:
    """Replace `path` by `text` (UTF-8) atomically: at a `StorageError` an older file is left as it was."""
    data = text.encode("utf-8")
    with storage_errors(path, len(data)):
        replace_file(path, data)


def replace_file(path: Path, data: bytes) -> None:
    """Replace `path` by some bytes, whole or not at all: at an `OSError` an older file is left as it was."""
    temporary, descriptor = _new_temporary(path.parent, folder=False)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    fsync_path(path.parent)


@contextmanager
def new_folder(path: Path, *, replace: bool = True) -> Iterator[Path]:
    """Yield a temporary sibling of `path`; on success it is flushed and renamed to `path`, else removed.

    Args:
        path: an empty folder there is filled, also through a link.
        replace: a folder with content, or a link to one, is replaced after the new one is whole; else refused.

    Raises:
        ConfigError: there is something at `path` that must not be replaced: another process was faster.
        StorageError: the file system refused a step. Nothing is left of the new folder.
    """
    with storage_errors(path):
        if path.is_symlink() and replace and _has_content(path):
            path = path.parent.resolve() / path.name  # the link goes, what it points to stays
        else:
            path = path.resolve()  # a link to a folder stays a link
        missing = [place for place in path.parents if not place.exists()]  # innermost first
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            temporary, descriptor = _new_temporary(path.parent, folder=True)
            try:
                yield temporary
                for file in (*temporary.rglob("*"), temporary):
                    fsync_path(file)
                _move_in(temporary, path, replace=replace)
            except OSError as error:
                written = sum(file.stat().st_size for file in temporary.rglob("*") if file.is_file())
                shutil.rmtree(temporary, ignore_errors=True)
                raise _refusal(path, error, f"more than {format_bytes(written)}") from error
            except StorageError as error:  # of a file within, which has its name from where it would have gone
                raise StorageError(str(error).replace(str(temporary), str(path))) from error
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
                os.close(descriptor)
            fsync_path(path.parent)
        except BaseException:
            for parent in missing:
                with suppress(OSError):
                    parent.rmdir()
            raise


def _move_in(temporary: Path, path: Path, *, replace: bool) -> None:
    if not _has_content(path):
        try:
            temporary.replace(path)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST) or replace:
                raise
    if not replace:
        raise ConfigError(
            f"{str(path)!r} was made by another process meanwhile: choose another --out, or look at what it holds"
        )
    if _exchange(temporary, path):
        _remove(temporary)
        return
    # The old one keeps its name in that of its hiding place, so that a sweep can put it back.
    old = path.with_name(f"{OWN_PREFIX}{secrets.token_hex(6)}-old-{path.name}")
    descriptor = os.open(path, os.O_RDONLY)
    try:
        _try_lock(descriptor)
        path.replace(old)
        try:
            temporary.replace(path)
        except BaseException:
            old.replace(path)
            raise
        _remove(old)
    finally:
        os.close(descriptor)


def _exchange(one: Path, other: Path) -> bool:
    """Let two folders change places in one step, so that at no moment there is none; False where that is not known."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):  # another C library, another system
        return False
    done = renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE)
    return bool(done == 0)


def _has_content(path: Path) -> bool:
    return path.is_dir() and any(path.iterdir())


def follow_umask(path: Path) -> None:
    """Give a file the mode that the umask asks for (safetensors always writes 0600)."""
    mask = os.umask(0)
    os.umask(mask)
    path.chmod(0o666 & ~mask)


def sweep_leftovers(folder: Path, prefix: str = TEMPORARY_PREFIX) -> None:
    """Remove what a killed process left half-written directly below `folder`; put back what it had set aside.

    What a living process is writing is locked, and left alone. In the folder of a run everything temporary is the
    run's; elsewhere, where others may have temporary files too, the prefix is `OWN_PREFIX`.
    """
    if not folder.is_dir():
        return
    for leftover in folder.glob(f"{prefix}*"):
        with suppress(OSError), _unlocked(leftover) as dead:
            if not dead:
                continue
            aside = SET_ASIDE.fullmatch(leftover.name)
            if aside and not os.path.lexists(folder / aside.group(1)):
                leftover.replace(folder / aside.group(1))
            else:
                _remove(leftover)


def remove_at_once(path: Path) -> None:
    """Remove a folder, or a link to one, that must not be seen half removed."""
    doomed = path.with_name(f"{OWN_PREFIX}{secrets.token_hex(6)}")
    path.rename(doomed)
    _remove(doomed)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def _unlocked(path: Path) -> Iterator[bool]:
    """Whether no process holds `path`; this one holds it meanwhile. A link cannot be held."""
    if path.is_symlink():
        yield True
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        yield _try_lock(descriptor)
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int, *, without_locks: bool = False) -> bool:
    """Lock a file or folder until it is closed, or its process ends in any way.

    False if another holds it; `without_locks` is the answer on a file system that has none.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return without_locks
    return True


def _new_temporary(parent: Path, *, folder: bool) -> tuple[Path, int]:
    """A file or folder that is locked, and its descriptor; what killed processes left beside it is swept first."""
    sweep_leftovers(parent, OWN_PREFIX)
    while True:
        path = parent / f"{OWN_PREFIX}{secrets.token_hex(6)}"
        if folder:
            path.mkdir()
            try:
                descriptor = os.open(path, os.O_RDONLY)
            except FileNotFoundError:  # swept before it was locked
                continue
        else:
            descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
        with suppress(FileNotFoundError):  # a sweep that came between holds it, or has removed it
            if _try_lock(descriptor, without_locks=True) and os.path.samestat(os.fstat(descriptor), path.stat()):
                return path, descriptor
        os.close(descriptor)
