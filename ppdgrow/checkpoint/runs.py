"""A run folder: recipe, logs, card and checkpoints of one run; finding checkpoints, locking, pruning."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ppdgrow.atomic import new_folder, remove_at_once, storage_errors, sweep_leftovers
from ppdgrow.checkpoint.format import CONFIG, MANIFEST, STEP_NAME, read_state, step_of, verify
from ppdgrow.errors import ConfigError, InvalidInputError, StorageError

LOCK = ".lock"
MOST_LOOKS = 50
Result = TypeVar("Result")


class _Place:
    """A file or folder in a run folder, by its name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, run: RunFolder, owner: type) -> Path:
        return run.path / self.name


@dataclass(frozen=True)
class RunFolder:
    """The places in a run folder. Nothing is created by naming it."""

    path: Path

    recipe_path = _Place("recipe.yaml")  # the recipe that ran, with the source of each value
    metrics_path = _Place("metrics.jsonl")  # a line per optimizer step and evaluation; wall-clock only under "timing"
    growth_path = _Place("growth.jsonl")  # lineage and events, with figures, command, version, commit and machine
    test_path = _Place("test.jsonl")  # figures on the test split, by checkpoint, where compare --test asked for them
    on_path = _Place("on.jsonl")  # the same on other data sets, where compare --on asked for them
    card_path = _Place("README.md")  # model card
    trials_path = _Place("trials")  # the arms of a round while nothing is decided; gone afterwards
    checkpoints_path = _Place("checkpoints")  # one folder for each step that is kept, see `format`

    def checkpoint_path(self, step: int) -> Path:
        return self.checkpoints_path / f"step-{step:08d}"

    def checkpoints(self) -> list[Path]:
        """Checkpoint folders by ascending step, valid or not."""
        if not self.checkpoints_path.is_dir():
            return []
        entries = self.checkpoints_path.iterdir()
        return sorted((entry for entry in entries if STEP_NAME.fullmatch(entry.name) and entry.is_dir()), key=step_of)

    def newest_valid(self, skipped: list[str] | None = None) -> Path | None:
        """The newest checkpoint that holds up against its manifest; why newer ones do not goes into `skipped`.

        If the run is in training and prunes one while it is read, the folder is looked through again.
        """
        for _ in range(MOST_LOOKS):
            folders = self.checkpoints()
            reasons: list[str] = []
            found = next((folder for folder in reversed(folders) if _is_whole(folder, reasons)), None)
            if not reasons or folders == self.checkpoints():
                break
        if skipped is not None:
            skipped += reasons
        return found

    def best(self) -> Path | None:
        """The whole checkpoint with the lowest validation loss, of equal ones the earlier; None without a loss."""
        losses: list[tuple[float, int, Path]] = []
        for folder in self.checkpoints():
            with suppress(InvalidInputError):
                figures = read_state(folder).validation
                if figures is not None:
                    losses.append((figures.loss, step_of(folder), folder))
        return next((folder for _, _, folder in sorted(losses) if _is_whole(folder, [])), None)

    def prune(self, keep: int) -> None:
        """Remove all but the `keep` newest checkpoints, the best one and, after damage, the newest valid one."""
        doomed = self.checkpoints()[:-keep]
        spared = (self.newest_valid(), self.best()) if doomed else ()
        for folder in doomed:
            if folder not in spared:
                with storage_errors(folder):
                    remove_at_once(folder)

    @contextmanager
    def create(self) -> Iterator[RunFolder]:
        """Yield the run folder in the making; it is there whole at the end, or not at all.

        Raises:
            ConfigError: another process made it meanwhile, or holds it.
        """
        with storage_errors(self.path):
            alone = self.path.is_dir() and [entry.name for entry in self.path.iterdir()] == [LOCK]
        if alone:  # all that `rm -r RUN/*` leaves
            with self.lock():
                (self.path / LOCK).unlink(missing_ok=True)
        with new_folder(self.path, replace=False) as folder:
            yield RunFolder(folder)

    def sweep(self) -> None:
        """Remove what killed processes left half-written, and put back what they had set aside."""
        sweep_leftovers(self.path)
        sweep_leftovers(self.checkpoints_path)

    def check_present(self) -> None:
        """Refuse, with a `StorageError`, to make a folder anew that was moved or removed while its run went on."""
        if not self.path.is_dir():
            raise StorageError(
                f"the run folder {str(self.path)!r} is gone: it was moved or removed while its run went on. "
                "Bring it back, and the same command goes on from its last checkpoint"
            )

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the folder for this process; the kernel releases it when the process dies, however it dies.

        Raises:
            ConfigError: another process holds it.
        """
        with storage_errors(self.path):
            file = (self.path / LOCK).open("a")
        with file:
            try:
                self._take(file.fileno())
            except OSError as error:
                raise StorageError(
                    f"cannot lock {str(self.path)!r} ({error.strerror or error}): its file system has no locks, so two "
                    "runs could write there at once; choose a folder on a local disk with --out"
                ) from error
            # The folder itself too, where that is possible: its lock file may be removed under a living process.
            descriptor = os.open(self.path, os.O_RDONLY)
            try:
                with suppress(OSError):
                    self._take(descriptor)
                yield
            finally:
                os.close(descriptor)

    def _take(self, descriptor: int) -> None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"another process is writing {str(self.path)!r}: wait for it, or choose another --out"
            ) from None


def _is_whole(folder: Path, reasons: list[str]) -> bool:
    """Whether a checkpoint holds up against its manifest; why not goes into `reasons`."""
    try:
        verify(folder)
    except InvalidInputError as error:
        reasons.append(str(error))
        return False
    return True


def locate_checkpoint(path: Path, skipped: list[str] | None = None) -> tuple[RunFolder, Path]:
    """The run and the checkpoint that a path names: a run folder (its newest valid one) or a checkpoint in one.

    `skipped` takes the reasons why newer checkpoints of a run are passed over.

    Raises:
        InvalidInputError: there is no such folder, or it is neither.
    """
    expected = "expected a run folder or a checkpoint in one"
    reasons = [] if skipped is None else skipped
    try:
        if not path.is_dir():
            found = "is a file" if path.exists() else "does not exist"
            raise InvalidInputError(f"{str(path)!r} {found}: {expected}, or a folder of Transformers on this machine")
        if (path / MANIFEST).exists() or STEP_NAME.fullmatch(path.resolve().name):
            # Only a path that spells out both folders above can be cut; "." and "../step-N" cannot.
            spelled = len(path.parts) > 2 and ".." not in path.parts
            return RunFolder((path if spelled else path.resolve()).parent.parent), path
        run = RunFolder(path)
        if not run.checkpoints():
            if (path / CONFIG).is_file():  # as no run has it
                raise InvalidInputError(
                    f"{str(path)!r} has a {CONFIG} without a model_type of Transformers, and no checkpoints: {expected}"
                )
            found = "has no checkpoints" if any(path.iterdir()) else "has no checkpoints, it is empty"
            raise InvalidInputError(
                f"{str(path)!r} {found}: expected a run folder (RUN/checkpoints/step-NNNNNNNN), "
                "as ppdgrow train and ppdgrow grow write it"
            )
        newest = run.newest_valid(reasons)
    except OSError as error:
        raise InvalidInputError(f"cannot read {str(path)!r} ({error.strerror or error}): {expected}") from None
    if newest is None:
        raise InvalidInputError(f"no checkpoint of {str(path)!r} is intact; the newest: {reasons[0]}")
    return run, newest


def read_located(path: Path, read: Callable[[RunFolder, Path, tuple[str, ...]], Result]) -> Result:
    """What `read(run, checkpoint, skipped)` makes of the checkpoint that a path names (see `locate_checkpoint`).

    If the run is in training and removes the checkpoint while it is read, the next one is taken.
    """
    for _ in range(MOST_LOOKS):
        skipped: list[str] = []
        run, folder = locate_checkpoint(path, skipped)
        try:
            return read(run, folder, tuple(skipped))
        except InvalidInputError:
            if folder.exists():
                raise
    raise InvalidInputError(
        f"{str(path)!r} is in training and removes its checkpoints faster than they are read: wait for it, or raise "
        "its train.keep"
    )
