"""From layers of recipe values to the recipe of one `train`: inheritance, defaults from the data, conflicts."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ppdgrow.config.kinds import DATA_NAMES, FAMILIES
from ppdgrow.config.load import Layer, Resolved, resolve
from ppdgrow.config.schema import NOT_INHERITED, DataConfig, Recipe, flatten
from ppdgrow.data import Dataset, canonical_name, resolve_defaults
from ppdgrow.errors import ConfigError
from ppdgrow.training.context import Parent, inherited_values

# Keys that say where a run finds things, in how many microbatches it computes and what it keeps, not what it computes.
NOT_IDENTITY = ("data.directory", "train.accumulate", "train.keep")
# What a run that goes on takes from the new command: these, and another name of the same data.
RENEWED = ("data.name", *NOT_IDENTITY)
# Keys that may change in a stopped run, where the learning rate up to its step is the same under both values.
LENGTH = ("train.steps", "train.horizon", "train.decay")
# The end of a folder's name that was not chosen by a person: 8 digits alone may be a date.
_AUTOMATIC = re.compile(r"(.)-(?:grown|trained|removed)-[0-9a-f]{8}$|(-(?:coupled|residual)-\d+)-[0-9a-f]{8}$")


def resolve_training(parent: Parent | None, layers: Sequence[Layer]) -> Resolved:
    """The recipe of a `train` command: defaults < checkpoint < the given layers, then the data's defaults.

    Raises:
        ConfigError: a bad key or value, or a model key that contradicts the checkpoint.
    """
    inherited = (
        [] if parent is None else [Layer("checkpoint", inherited_values(parent, NOT_INHERITED) | _depth(parent))]
    )
    resolved = resolve([*inherited, *layers])
    name = canonical_name(resolved.recipe.data.name)
    if name != resolved.recipe.data.name:
        resolved = resolved.replace({"data.name": name}, resolved.sources["data.name"])
    missing = _left_to_the_data(resolved.recipe)
    if missing:
        resolved = resolved.replace(missing, "from the data")
    if parent is not None:
        _refuse_contradictions(parent, resolved)
    model = resolved.recipe.model
    fitting = FAMILIES[model.family].tasks
    if model.task not in fitting:
        families = [family for family, rules in FAMILIES.items() if model.task in rules.tasks]
        raise ConfigError(
            f"model.family {model.family} is for the task {' or '.join(fitting)}, but the task is {model.task} "
            f"({resolved.sources['model.task']}): use --model {' or '.join(families)}, or another task or data"
        )
    return resolved


def _left_to_the_data(recipe: Recipe) -> dict[str, Any]:
    """Task and tokenizer where the recipe has none; of a path, the data is looked at only for them."""
    if recipe.model.task is not None and (recipe.model.task == "classify" or recipe.data.tokenizer is not None):
        return {}
    task, tokenizer = resolve_defaults(recipe.data)
    return {
        **({"model.task": task} if recipe.model.task is None else {}),
        **({"data.tokenizer": tokenizer} if recipe.data.tokenizer is None and tokenizer is not None else {}),
    }


def unused_keys(resolved: Resolved, dataset: Dataset) -> list[str]:
    """What somebody gave and that does nothing in this family or with this data, each in words."""
    family, data = resolved.recipe.model.family, resolved.recipe.data
    notes = {key: f"{key} does nothing in the family {family}" for key in FAMILIES[family].ignored}
    for key in data.model_dump():
        if key not in ("name", "directory", *dataset.keys):
            notes[f"data.{key}"] = f"data.{key} does nothing with data {data.name}, task {dataset.task}"
    return [note for key, note in notes.items() if resolved.sources[key] not in ("default", "checkpoint")]


def _depth(parent: Parent) -> dict[str, Any]:
    """The layers that a checkpoint has: its recipe may record those from which it grew."""
    return {"model.layers": parent.checkpoint.architecture.num_layers}


def _refuse_contradictions(parent: Parent, resolved: Resolved) -> None:
    recorded = flatten(parent.recipe.model_dump()) | _depth(parent)
    asked = flatten(resolved.recipe.model_dump())
    for key, value in asked.items():
        if not key.startswith("model.") and key not in ("data.tokenizer", "data.sequence_length"):
            continue
        if value != recorded[key]:
            raise ConfigError(
                f"{key} is {value!r} ({resolved.sources[key]}), but the checkpoint {str(parent.folder)!r} has "
                f"{recorded[key]!r}: leave it out, or train a new model without a checkpoint"
            )


def differing_keys(recorded: Recipe, asked: Recipe, parent: Parent | None = None) -> dict[str, list[str]]:
    """Keys in which two recipes are different runs, with where they differ, each as `key: recorded -> asked`.

    A precision of `auto` agrees with whatever it was resolved to. The layers of a run that goes on from a checkpoint
    are those of the checkpoint, whatever is recorded.
    """
    old, new = flatten(recorded.model_dump()), flatten(asked.model_dump())
    agreed = {*NOT_IDENTITY, *(["train.precision"] if asked.train.precision == "auto" else [])}
    agreed |= {"model.layers"} if parent is not None else set()
    differences = {key: _differences(key, old[key], new[key]) for key in old if key not in agreed}
    return {key: lines for key, lines in differences.items() if lines}


def _differences(key: str, old: Any, new: Any) -> list[str]:
    """Where two values differ, as deep as they are alike."""
    if isinstance(old, dict) and isinstance(new, dict):
        return [line for name in old for line in _differences(f"{key}.{name}", old[name], new[name])]
    if isinstance(old, tuple | list) and isinstance(new, tuple | list) and key.startswith("growth"):
        if len(old) != len(new):
            return [f"{key}: {len(old)} -> {len(new)} entries"]
        pairs = enumerate(zip(old, new, strict=True))
        return [line for number, (was, now) in pairs for line in _differences(f"{key}[{number}]", was, now)]
    return [] if old == new else [f"{key}: {old} -> {new}"]


def default_folder(parent: Parent | None, recipe: Recipe) -> Path:
    """The output folder of a `train` without `--out`: named after the parent or the recipe.

    The name ends in a digest of the recipe and of the parent, so that a repeated command finds its own folder and
    another one never does.
    """
    identity = {key: value for key, value in flatten(recipe.model_dump()).items() if key not in NOT_IDENTITY}
    identity["data.name"] = data_place(recipe.data)
    if parent is not None:
        return sibling(parent, "trained", identity | {"parent_sha256": parent.digest})
    model = recipe.model
    own = recipe.data.name not in DATA_NAMES
    name = (Path(recipe.data.name).resolve().stem.lstrip(".") or "data") if own else recipe.data.name
    return Path("runs") / f"{name}-{model.family}-{model.stream}-{model.layers}-{digest_of(identity)}"


def data_place(data: DataConfig) -> str:
    """One spelling of `data.name` for all that lead to one place: from the current folder, links followed."""
    try:
        path = Path(data.name).expanduser()
        own = data.name not in DATA_NAMES and path.exists()
        return canonical_name(os.path.relpath(path.resolve())) if own else data.name
    except (OSError, ValueError, RuntimeError):
        return data.name  # opening it will say what is wrong


def digest_of(values: dict[str, Any]) -> str:
    """A short stable digest of plain values, for folder names. Paths of parents do not count."""
    counted = {key: value for key, value in values.items() if key != "parent"}
    return hashlib.sha256(json.dumps(counted, sort_keys=True).encode()).hexdigest()[:8]


def sibling(parent: Parent, done: str, values: dict[str, Any]) -> Path:
    """A folder beside the parent's run, named after it, what was done to it, and a digest of how.

    `runs/shallow` gives `runs/shallow-grown-1a2b3c4d`; what an automatic name of the parent ends in gives way, so that
    names do not grow with the lineage.
    """
    path = parent.run.path
    if path.name in ("", ".."):
        path = path.resolve()
    stem = _AUTOMATIC.sub(r"\1\2", path.name)
    return path.parent / f"{stem}-{done}-{digest_of(values)}"
