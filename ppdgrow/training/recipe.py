"""From layers of recipe values to the recipe of one `train`: inheritance, defaults from the data, conflicts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, get_args

from ppdgrow.config.growth import MAX_PAIRS, GrowthConfig
from ppdgrow.config.kinds import FAMILIES, PRETRAINED, Task
from ppdgrow.config.load import Layer, Resolved, resolve
from ppdgrow.config.schema import NOT_INHERITED, Recipe, flatten
from ppdgrow.data import Dataset, canonical_name, resolve_defaults
from ppdgrow.errors import ConfigError
from ppdgrow.training.context import Parent
from ppdgrow.training.growth_schedule import unused_options

# Keys that say where a run finds things, in how many microbatches it computes and what it keeps, not what it computes.
NOT_IDENTITY = ("data.directory", "train.accumulate", "train.keep")
# What a run that goes on takes from the new command: these, and another name of the same data.
RENEWED = ("data.name", *NOT_IDENTITY)
# Keys whose recorded values are those of a model of Transformers; of the other keys of `model` it knows nothing.
KNOWN_OF_PRETRAINED = ("model.family", "model.task", "model.layers", "model.width", "data.tokenizer")
# Keys that may change in a stopped run, where the learning rate up to its step is the same under both values.
LENGTH = ("train.steps", "train.horizon", "train.decay")


def resolve_training(
    parent: Parent | None, layers: Sequence[Layer], grow_to: int | None, entry: Mapping[str, Any]
) -> Resolved:
    """The recipe of a `train` command: defaults < checkpoint < the given layers, then the data's defaults.

    `grow_to` is the depth to reach by the growth `entry`, whose `pairs` follow from it, and whose keys have flags as
    their sources. Growths at a share of the steps get the step that it is in this run.

    Raises:
        ConfigError: a bad key or value, or a model key that contradicts the checkpoint.
    """
    if parent is not None:
        given = {key for key, source in parent.resolved.sources.items() if source == "checkpoint"}
        recorded = flatten(parent.recipe.model_dump()).items()
        inherited = {key: value for key, value in recorded if key in given and key not in NOT_INHERITED}
        layers = [Layer("checkpoint", inherited | _depth(parent)), *layers]
    resolved = resolve(layers)
    if (name := canonical_name(resolved.recipe.data.name)) != resolved.recipe.data.name:
        resolved = resolved.replace({"data.name": name}, resolved.sources["data.name"])
    if missing := _left_to_the_data(resolved.recipe):
        resolved = resolved.replace(missing, "from the data")
    if parent is not None:
        _refuse_contradictions(parent, resolved)
    model = resolved.recipe.model
    if parent is None and model.family == PRETRAINED:
        raise ConfigError(
            f"model.family is {PRETRAINED} ({resolved.sources['model.family']}), which is for folders of Transformers: "
            "give it as the checkpoint, or choose transformer, mlp or sequence"
        )
    if parent is None and (resolved.recipe.data.tokenizer or "").startswith(f"{PRETRAINED}:"):
        raise ConfigError(
            f"data.tokenizer is {resolved.recipe.data.tokenizer} ({resolved.sources['data.tokenizer']}), which is that "
            "of a folder of Transformers: give the folder as the checkpoint, or choose byte, word or bpe:N"
        )
    if model.family == PRETRAINED and (resolved.recipe.growth or grow_to is not None):
        raise ConfigError(
            "a model of Transformers does not grow within its run: grow its folder with ppdgrow grow, and train that"
        )
    fitting = FAMILIES[model.family].tasks
    if model.task not in fitting:
        families = [name for name, rules in FAMILIES.items() if model.task in rules.tasks and name != PRETRAINED]
        raise ConfigError(
            f"model.family {model.family} is for the task {' or '.join(fitting)}, but the task is {model.task} "
            f"({resolved.sources['model.task']}): use --model {' or '.join(families)}, or another task or data"
        )
    if grow_to is not None:
        if resolved.recipe.growth:
            raise ConfigError(
                f"--grow-to gives a growth, and growth has {len(resolved.recipe.growth)} of its own "
                f"({resolved.sources['growth']}): give one or the other, or -o growth=[]"
            )
        pairs = _pairs_to(model.layers, grow_to)
        resolved = resolved.replace({"growth": [{**entry, "pairs": pairs}]}, "--grow-to")
        listed = len(resolved.recipe.growth[0].pair)
        if listed > pairs:
            raise ConfigError(
                f"--pair lists {listed} kinds, but --grow-to {grow_to} adds {pairs} pair{'' if pairs == 1 else 's'} to "
                f"{model.layers} layers: list fewer, or give --grow-to {model.layers + 2 * listed}"
            )
        flags = {"at": "--grow-at", "pair": "--pair", "method": "--method"}
        by_flag = {f"growth[0].{key}": flag for key, flag in flags.items() if key in entry}
        resolved = replace(resolved, sources=resolved.sources | by_flag)
    first, steps = 0 if parent is None else parent.step, resolved.recipe.train.steps
    growths = tuple(growth.in_run(first, steps) for growth in resolved.recipe.growth)
    if growths == resolved.recipe.growth:
        return resolved
    return resolved.replace({"growth": [growth.as_written() for growth in growths]}, resolved.sources["growth"])


def asked_task(layers: Sequence[Layer]) -> Task | None:
    """The task that a command asks for, if it is one."""
    asked = [layer.values["model.task"] for layer in layers if "model.task" in layer.values]
    return next((task for task in get_args(Task) if asked and asked[-1] == task), None)


def _pairs_to(layers: int, depth: int) -> int:
    pairs, rest = divmod(depth - layers, 2)
    if pairs < 1:
        raise ConfigError(f"--grow-to is {depth}, but the model has {layers} layers already: give {layers + 2} or more")
    if pairs > MAX_PAIRS:
        most = layers + 2 * MAX_PAIRS
        raise ConfigError(f"--grow-to is {depth}, but a growth of {layers} layers reaches {most} at most: give less")
    if rest:
        raise ConfigError(
            f"--grow-to is {depth}, but the model has {layers} layers and a growth adds two at a time: give "
            f"{f'{depth - 1} or ' if pairs else ''}{depth + 1}"
        )
    return pairs


def _left_to_the_data(recipe: Recipe) -> dict[str, Any]:
    """Task and tokenizer where the recipe has none; of a path, the data is looked at only for them."""
    given = {"model.task": recipe.model.task, "data.tokenizer": recipe.data.tokenizer}
    if recipe.model.task is not None and (recipe.model.task == "classify" or recipe.data.tokenizer is not None):
        return {}
    found = zip(given, resolve_defaults(recipe.data), strict=True)
    return {key: value for key, value in found if given[key] is None and value is not None}


def unused_keys(resolved: Resolved, dataset: Dataset) -> list[str]:
    """What somebody gave and that does nothing in this family or with this data, each in words."""
    family, data = resolved.recipe.model.family, resolved.recipe.data
    notes = {key: f"{key} does nothing in the family {family}" for key in FAMILIES[family].ignored}
    for key in data.model_dump():
        if key not in ("name", "directory", *dataset.keys):
            notes[f"data.{key}"] = f"data.{key} does nothing with data {data.name}, task {dataset.task}"
    found = [note for key, note in notes.items() if resolved.sources[key] not in ("default", "checkpoint")]
    return [*found, *_unused_in_growth(resolved)]


def _unused_in_growth(resolved: Resolved) -> Iterator[str]:
    """The same of the growths: what a flag gives, and in a recipe what is not the default."""
    defaults = GrowthConfig(at=1)
    for number, entry in enumerate(resolved.recipe.growth):
        where = f"growth[{number}]"
        asked = [key for key, value in entry if value != getattr(defaults, key) or f"{where}.{key}" in resolved.sources]
        found = [] if entry.candidates else [(where, asked, entry.method, entry.source)]
        for place, one in enumerate(entry.candidates):
            own = [key for key, value in one if value is not None]
            found.append((f"{where}.candidates[{place}]", own, one.method or entry.method, one.source or entry.source))
        for name, keys, method, source in found:
            for key, beside in unused_options(keys, method, source):
                yield f"{resolved.sources.get(f'{name}.{key}', f'{name}.{key}')} does nothing with {beside}"


def _depth(parent: Parent) -> dict[str, Any]:
    """The layers that a checkpoint has: its recipe may record those from which it grew."""
    return {"model.layers": parent.checkpoint.architecture.num_layers}


def _refuse_contradictions(parent: Parent, resolved: Resolved) -> None:
    recorded = flatten(parent.recipe.model_dump()) | _depth(parent)
    for key, value in flatten(resolved.recipe.model_dump()).items():
        fixed = key.startswith("model.") or key == "data.tokenizer"
        fixed = fixed or (key == "data.sequence_length" and parent.recipe.model.family != PRETRAINED)
        if fixed and value != recorded[key]:
            known = parent.recipe.model.family != PRETRAINED or key in KNOWN_OF_PRETRAINED
            has = f"has {recorded[key]!r}" if known else "is what its config.json says"
            raise ConfigError(
                f"{key} is {value!r} ({resolved.sources[key]}), but the checkpoint {str(parent.folder)!r} {has}: "
                "leave it out, or train a new model without a checkpoint"
            )


def differing_keys(recorded: Recipe, asked: Recipe, parent: Parent | None = None) -> dict[str, list[str]]:
    """Keys in which two recipes are different runs, with where they differ, each as `key: recorded -> asked`.

    A precision of `auto` agrees with whatever it was resolved to. The layers of a run that goes on from a checkpoint
    are those of the checkpoint, whatever is recorded.
    """
    old, new = flatten(recorded.model_dump()), flatten(asked.model_dump())
    agreed = set(NOT_IDENTITY)
    agreed |= {"train.precision"} if asked.train.precision == "auto" else set()
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
