"""Output folders: how they are named, and that none is written into unless it is empty or holds the run asked for."""

from __future__ import annotations

import hashlib
import json
import os
import re
import unicodedata
from pathlib import Path
from typing import Any

from ppdgrow.checkpoint import RunFolder, read_checkpoint, read_state
from ppdgrow.checkpoint.events import TrainEvent, read_events
from ppdgrow.checkpoint.lineage import by_hand
from ppdgrow.config.kinds import DATA_NAMES
from ppdgrow.config.schema import DataConfig, Recipe, flatten
from ppdgrow.data import canonical_name, open_dataset
from ppdgrow.errors import ConfigError
from ppdgrow.pretrained.card import parent_name
from ppdgrow.training.context import Parent, changed_splits, resolved_recipe, task_of
from ppdgrow.training.recipe import LENGTH, NOT_IDENTITY, differing_keys

WAY_OUT = "choose another --out"
# The end of a folder's name that was not chosen by a person: 8 digits alone may be a date.
_AUTOMATIC = re.compile(r"(.)-(?:grown|trained|removed)-[0-9a-f]{8}$|(-(?:coupled|residual)-\d+)-[0-9a-f]{8}$")


def default_folder(parent: Parent | None, recipe: Recipe) -> Path:
    """The output folder of a `train` without `--out`: named after the parent or the recipe, with a digest of both.

    So a repeated command finds its own folder, and another one never does.
    """
    identity = {key: value for key, value in flatten(recipe.model_dump()).items() if key not in NOT_IDENTITY}
    identity["data.name"] = _data_place(recipe.data)
    if parent is not None:
        values = identity | {"parent_sha256": parent.digest}
        if not parent.is_folder:
            return sibling(parent, "trained", values)
        name = parent_name(parent.folder).rpartition("/")[2]  # a hub cache is not written to
        return Path("runs") / f"{name}-trained-{_digest(values)}"
    model = recipe.model
    own = recipe.data.name not in DATA_NAMES
    name = (Path(recipe.data.name).resolve().stem.lstrip(".") or "data") if own else recipe.data.name
    return Path("runs") / f"{name}-{model.family}-{model.stream}-{model.layers}-{_digest(identity)}"


def _data_place(data: DataConfig) -> str:
    """One spelling of `data.name` for all that lead to one place: from the current folder, links followed."""
    try:
        path = Path(data.name).expanduser()
        own = data.name not in DATA_NAMES and path.exists()
        return canonical_name(os.path.relpath(path.resolve())) if own else data.name
    except (OSError, ValueError, RuntimeError):
        return data.name  # opening it will say what is wrong


def _digest(values: dict[str, Any]) -> str:
    """Of plain values, without paths of parents."""
    counted = {key: value for key, value in values.items() if key != "parent"}
    return hashlib.sha256(json.dumps(counted, sort_keys=True).encode()).hexdigest()[:8]


def sibling(parent: Parent, done: str, values: dict[str, Any]) -> Path:
    """A folder beside the parent's run, such as `runs/shallow-grown-1a2b3c4d`, the end a digest of how it was done.

    What an automatic name of the parent ends in gives way, so that names do not grow with the lineage.
    """
    path = parent.run.path
    if path.name in ("", ".."):
        path = path.resolve()
    stem = _AUTOMATIC.sub(r"\1\2", path.name)
    return path.parent / f"{stem}-{done}-{_digest(values)}"


def check_place(path: Path, source: Path | None) -> None:
    """Refuse a place where no output folder can be made, whose name is not one line on stdout, or in the `source`."""
    where = f"the output folder {str(path)!r}"
    if any(unicodedata.category(char) in ("Cc", "Zl", "Zp") for char in str(path)):
        raise ConfigError(f"{where} has a line break or another control character in its name: {WAY_OUT}")
    try:
        file = next((place for place in (path, *path.parents) if place.exists() and not place.is_dir()), None)
    except OSError as error:
        raise ConfigError(f"{where} cannot be made ({error.strerror or error}): {WAY_OUT}") from None
    if file is not None:
        raise ConfigError(f"{where}: {str(file)!r} is a file; {WAY_OUT}")
    if path.is_symlink() and not path.exists():
        raise ConfigError(f"{where} is a link to nothing: {WAY_OUT}")
    resolved = path.resolve()
    if Path.cwd().is_relative_to(resolved):
        raise ConfigError(f"{where} is the current folder or holds it: choose a folder in it with --out")
    if source is not None and resolved.is_relative_to(source.resolve()):
        raise ConfigError(f"{where} is the input or in it, which is never written to: {WAY_OUT}")


def is_occupied(path: Path) -> bool:
    """Whether the folder exists and is not empty (a lock file does not count)."""
    return path.is_dir() and any(entry.name != ".lock" for entry in path.iterdir())


def recorded_recipe(run: RunFolder, asked: Recipe, parent: Parent | None, resume: str) -> Recipe:
    """The recipe recorded in the folder; refused unless it is that of the run asked for, of whatever length."""
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
    if not isinstance(last, TrainEvent) or last.parent_sha256 != (parent and parent.digest):
        raise ConfigError(f"{where} holds a run from another checkpoint: {WAY_OUT}")
    return recorded


def _same_data(run: RunFolder, recorded: Recipe, asked: Recipe, *, look: bool) -> bool:
    """Whether two names of data lead to one place or, if it is worth a `look`, to the content that the run knows."""
    if _data_place(recorded.data) == _data_place(asked.data):
        return True
    newest = run.newest_valid() if look else None
    if newest is None:
        return False
    checkpoint = read_checkpoint(newest, optimizer=False)
    dataset = open_dataset(asked.data, task_of(asked), checkpoint.tokenizer)
    dataset.describe()  # reads train and validation
    return changed_splits(dataset, checkpoint.state) is None


def finished_checkpoint(run: RunFolder, last: int) -> Path | None:
    """The final checkpoint of a finished run: valid, at the last step, and evaluated; else None."""
    newest = run.newest_valid()
    done = newest == run.checkpoint_path(last) and read_state(newest).validation is not None
    return newest if done else None
