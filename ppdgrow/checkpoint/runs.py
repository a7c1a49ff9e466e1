"""A run folder: recipe, logs, card and checkpoints of one run; finding checkpoints, locking, pruning."""

from __future__ import annotations

import fcntl
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ppdgrow.atomic import storage_errors, sweep_leftovers
from ppdgrow.checkpoint.format import MANIFEST, verify
from ppdgrow.errors import ConfigError, InvalidInputError

STEP_NAME = re.compile(r"step-([0-9]{8,})")


@dataclass(frozen=True)
class RunFolder:
    """The places in a run folder. Nothing is created by naming it."""

    path: Path

    @property
    def recipe_path(self) -> Path:
        """The resolved recipe."""
        return self.path / "recipe.yaml"

    @property
    def metrics_path(self) -> Path:
        """One line per optimizer step."""
        return self.path / "metrics.jsonl"

    @property
    def growth_path(self) -> Path:
        """One line per event of the lineage."""
        return self.path / "growth.jsonl"

    @property
    def card_path(self) -> Path:
        """The model card."""
        return self.path / "README.md"

    def checkpoint_path(self, step: int) -> Path:
        """The checkpoint folder of a step."""
        return self.path / "checkpoints" / f"step-{step:08d}"

    def checkpoints(self) -> list[Path]:
        """Checkpoint folders by ascending step, valid or not."""
        folder = self.path / "checkpoints"
        if not folder.is_dir():
            return []
        found = [entry for entry in folder.iterdir() if STEP_NAME.fullmatch(entry.name) and entry.is_dir()]
        return sorted(found, key=lambda entry: int(entry.name.removeprefix("step-")))

    def newest_valid(self, skipped: list[str] | None = None) -> Path | None:
        """The newest checkpoint that holds up against its manifest; why newer ones do not goes into `skipped`."""
        for folder in reversed(self.checkpoints()):
            try:
                verify(folder)
            except InvalidInputError as error:
                if skipped is not None:
                    skipped.append(str(error))
            else:
                return folder
        return None

    def prune(self, keep: int, protect: set[int]) -> None:
        """Remove all but the `keep` newest checkpoints and the protected steps.

        Called after a checkpoint was written and verified by its writer, so the only valid one is never removed.
        """
        for folder in self.checkpoints()[:-keep]:
            if int(folder.name.removeprefix("step-")) not in protect:
                # Without its manifest a folder that is only half removed is not mistaken for a checkpoint.
                (folder / MANIFEST).unlink(missing_ok=True)
                shutil.rmtree(folder, ignore_errors=True)

    def sweep(self) -> None:
        """Remove what killed processes left half-written."""
        sweep_leftovers(self.path)
        sweep_leftovers(self.path / "checkpoints")

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the folder for this process; the kernel releases it when the process dies, however it dies.

        Raises:
            ConfigError: another process holds it.
            StorageError: the folder cannot be written.
        """
        with storage_errors(self.path):
            file = (self.path / ".lock").open("a")
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigError(
                    f"another process is writing {str(self.path)!r}: wait for it, or choose another --out"
                ) from None
            yield


def locate_checkpoint(path: Path) -> tuple[RunFolder, Path]:
    """The run and the checkpoint that a path names: a run folder (its newest valid one) or a checkpoint in one.

    Raises:
        InvalidInputError: there is no such folder, or it is neither.
    """
    if not path.exists():
        raise InvalidInputError(f"{str(path)!r} does not exist: expected a run folder or a checkpoint in one")
    if not path.is_dir():
        raise InvalidInputError(f"{str(path)!r} is a file: expected a run folder or a checkpoint in one")
    if (path / MANIFEST).exists() or STEP_NAME.fullmatch(path.resolve().name):
        return RunFolder(path.absolute().parent.parent if path.parent == Path() else path.parent.parent), path
    run = RunFolder(path)
    if not run.checkpoints():
        raise InvalidInputError(
            f"{str(path)!r} has no checkpoints: expected a run folder (RUN/checkpoints/step-NNNNNNNN), "
            "as ppdgrow train and ppdgrow grow write it"
        )
    skipped: list[str] = []
    newest = run.newest_valid(skipped)
    if newest is None:
        raise InvalidInputError(f"no checkpoint of {str(path)!r} is whole; the newest: {skipped[0]}")
    return run, newest
