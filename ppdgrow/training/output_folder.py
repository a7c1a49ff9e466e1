"""Output folders: never written into unless empty, or holding the very run that is asked for."""

from __future__ import annotations

import unicodedata
from pathlib import Path

from ppdgrow.checkpoint import RunFolder, read_checkpoint, read_state
from ppdgrow.checkpoint.events import TrainEvent, by_hand, read_events
from ppdgrow.config.schema import Recipe
from ppdgrow.data import open_dataset
from ppdgrow.errors import ConfigError
from ppdgrow.training.context import Parent, changed_splits, resolved_recipe, task_of
from ppdgrow.training.recipe import LENGTH, data_place, differing_keys

WAY_OUT = "choose another --out"


def check_place(run: RunFolder, parent: Parent | None) -> None:
    """An output folder can be made there, is one line to who reads it from stdout, and not the input nor inside it.

    Raises:
        ConfigError: its name has a control character, or it is a file, below a file, the current folder, a dangling
            link, or in the input.
    """
    where = f"the output folder {str(run.path)!r}"
    if any(unicodedata.category(char) in ("Cc", "Zl", "Zp") for char in str(run.path)):
        raise ConfigError(f"{where} has a line break or another control character in its name: {WAY_OUT}")
    try:
        file = next((place for place in (run.path, *run.path.parents) if place.exists() and not place.is_dir()), None)
    except OSError as error:
        raise ConfigError(f"{where} cannot be made ({error.strerror or error}): {WAY_OUT}") from None
    if file is not None:
        raise ConfigError(f"{where}: {str(file)!r} is a file; choose another --out")
    if run.path.is_symlink() and not run.path.exists():
        raise ConfigError(f"{where} is a link to nothing: choose another --out")
    resolved = run.path.resolve()
    if Path.cwd().is_relative_to(resolved):
        raise ConfigError(f"{where} is the current folder or holds it: choose a folder in it with --out")
    if parent is not None and resolved.is_relative_to(parent.run.path.resolve()):
        raise ConfigError(f"{where} is the input or in it, which is never written to: choose another --out")


def holds_something(run: RunFolder) -> bool:
    """Whether the folder exists and is not empty (a lock file does not count)."""
    return run.path.is_dir() and any(entry.name != ".lock" for entry in run.path.iterdir())


def same_run(run: RunFolder, asked: Recipe, parent: Parent | None, resume: str) -> Recipe:
    """The recipe recorded in the folder, if it is that of the run asked for, of whatever length.

    Raises:
        ConfigError: the folder holds something else, or `--resume never` was given.
    """
    where = f"the output folder {str(run.path)!r}"
    if run.checkpoints():
        for path in (run.recipe_path, run.growth_path):
            if not path.is_file():
                raise ConfigError(f"{where} holds a run that lacks its {path.name}: restore the file, or {WAY_OUT}")
    if not run.recipe_path.is_file():
        raise ConfigError(f"{where} is not empty and holds no run: {WAY_OUT}")
    if resume == "never":
        raise ConfigError(f"{where} is not empty and --resume never was given: {WAY_OUT}")
    recorded = resolved_recipe(run).recipe
    differing = differing_keys(recorded, asked, parent)
    look = differing.keys() <= {"data.name", *LENGTH}
    if "data.name" in differing and _same_data(run, recorded, asked, look=look):
        del differing["data.name"]
        recorded = recorded.model_copy(update={"data": recorded.data.model_copy(update={"name": asked.data.name})})
    if not differing.keys() <= set(LENGTH):
        lines = [line for several in differing.values() for line in several]
        more = f" and {len(lines) - 3} more" if len(lines) > 3 else ""
        raise ConfigError(f"{where} holds another run ({'; '.join(lines[:3])}{more}): {WAY_OUT}")
    # The last change of a training run is its start; after a growth that result is not a training run's folder.
    last = next(reversed(by_hand(read_events(run.growth_path))), None)
    if not isinstance(last, TrainEvent) or last.parent_sha256 != (None if parent is None else parent.digest):
        raise ConfigError(f"{where} holds a run from another checkpoint: {WAY_OUT}")
    return recorded


def _same_data(run: RunFolder, recorded: Recipe, asked: Recipe, *, look: bool) -> bool:
    """Whether two names of data lead to one place or, if it is worth a `look`, to the content that the run knows."""
    if data_place(recorded.data) == data_place(asked.data):
        return True
    newest = run.newest_valid() if look else None
    if newest is None:
        return False
    checkpoint = read_checkpoint(newest, optimizer=False)
    dataset = open_dataset(asked.data, task_of(asked), checkpoint.tokenizer)
    dataset.describe()  # reads train and validation
    return changed_splits(dataset, checkpoint.state) is None


def finished(run: RunFolder, last: int) -> Path | None:
    """The final checkpoint of a finished run: valid, at the last step, and evaluated; else None."""
    newest = run.newest_valid()
    done = newest == run.checkpoint_path(last) and read_state(newest).validation is not None
    return newest if done else None
