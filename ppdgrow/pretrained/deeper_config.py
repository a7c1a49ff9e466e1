"""The config of a model with more layers: every list and index that speaks of layers goes along."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ppdgrow.config.architecture import OWN_KEY
from ppdgrow.errors import ConfigError, InvalidInputError
from ppdgrow.pretrained.folder import CONFIG, PretrainedFolder
from ppdgrow.pretrained.library import load_config

# Lists with an entry for each layer, among those that are as long as the model is deep.
PER_LAYER = re.compile(r"layer|pattern|block|^(intermediate_size|num_attention_heads|num_key_value_heads|window_size)$")
# Lists of the numbers of layers.
LAYER_NUMBERS = ("mlp_only_layers", "full_attn_idxs", "attn_layer_indices", "kv_source_layers", "rope_scaling_layers")
# Options by which the number of a layer changes what it computes.
BY_NUMBER = ("scale_attn_by_inverse_layer_idx", "apply_query_key_layer_scaling")


@dataclass(frozen=True)
class Stack:
    """The layers of a grown model.

    Args:
        sources: of each layer, the number of the parent's layer that it is or is made after.
        new: the numbers of those that the parent does not have.
    """

    sources: tuple[int, ...]
    new: tuple[int, ...]

    @property
    def kept(self) -> tuple[int, ...]:
        """The new number of each of the parent's layers."""
        return tuple(number for number in range(len(self.sources)) if number not in self.new)


def deeper_config(folder: PretrainedFolder, stack: Stack) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The config.json of the grown model, and what a user should know of it.

    Raises:
        ConfigError: the layers cannot keep their kinds, or the number of a layer changes what it computes.
    """
    old = folder.config
    path = str(folder.path / CONFIG)
    for key in BY_NUMBER:
        if old.get(key):
            raise ConfigError(
                f"{path!r}: {key} is {old[key]}, so that a layer computes something else at another place: "
                "new layers would change the old ones; grow it by pairs, or at the end of a model without this"
            )
    config = {key: _extended(key, value, folder.num_layers, stack) for key, value in old.items()}
    for key in {folder.layers_key, *({"num_hidden_layers"} & config.keys())}:
        config[key] = len(stack.sources)
    notes = _write_out_kinds(folder, stack, config)
    return config, notes


def _extended(key: str, value: Any, count: int, stack: Stack) -> Any:
    if not isinstance(value, list):
        return value
    if key in LAYER_NUMBERS:
        return [number for number, source in enumerate(stack.sources) if source in value]
    if len(value) == count and PER_LAYER.search(key):
        return [value[source] for source in stack.sources]
    return value


def _write_out_kinds(folder: PretrainedFolder, stack: Stack, config: dict[str, Any]) -> tuple[str, ...]:
    """Set in `config` the lists that Transformers would derive otherwise, such as `layer_types` from a pattern."""
    before = vars(load_config(folder.path, folder.config))
    lists = {
        key: value
        for key, value in before.items()
        if isinstance(value, list) and len(value) == folder.num_layers and PER_LAYER.search(key)
    }
    wanted = {key: _extended(key, value, folder.num_layers, stack) for key, value in lists.items()}
    derived = _differing(folder, config, wanted)
    config |= {key: wanted[key] for key in derived}
    left = _differing(folder, config, wanted)
    if left:
        raise ConfigError(
            f"{str(folder.path / CONFIG)!r}: {left[0]} of model_type {folder.model_type!r} follows from the number of "
            "a layer and cannot be listed, so that new layers would change the kinds of old ones: grow it by pairs"
        )
    return tuple(f"{key} is listed layer by layer, since no pattern gives it any more" for key in derived)


def _differing(folder: PretrainedFolder, config: Mapping[str, Any], wanted: Mapping[str, Any]) -> Sequence[str]:
    try:
        found = vars(load_config(folder.path, config))
    except InvalidInputError as error:
        raise ConfigError(
            f"model_type {folder.model_type!r} cannot be given {config[folder.layers_key]} layers by its config alone "
            f"({str(error).partition(': ')[2]}): grow it by pairs"
        ) from None
    return [key for key, value in wanted.items() if found.get(key) != value]


def with_lineage(config: dict[str, Any], stack: Stack, event: Mapping[str, Any], *, trained: bool) -> dict[str, Any]:
    """The config with `event` added to what was grown before, whose new layers have moved along.

    `trained` says that the parent is a checkpoint of a run.
    """
    mark = {"parent_trained": True} if trained else {}
    moved = [
        {**entry, "new_layers": [stack.kept[number] for number in entry["new_layers"] if number < len(stack.kept)]}
        for entry in lineage_of(config)
    ]
    return {**config, OWN_KEY: {"lineage": [*moved, {**event, **mark, "new_layers": list(stack.new)}]}}


def lineage_of(config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What was grown so far by config.json, each with `new_layers`; what was not written by ppdgrow is left out."""
    known = config.get(OWN_KEY)
    entries = known.get("lineage") if isinstance(known, dict) else None
    return [entry for entry in entries if _is_growth(entry)] if isinstance(entries, list) else []


def _is_growth(entry: Any) -> bool:
    layers, ids = (entry.get("new_layers"), entry.get("ids", [])) if isinstance(entry, dict) else (None, None)
    numbers = isinstance(layers, list) and all(type(number) is int and number >= 0 for number in layers)
    return numbers and isinstance(ids, list) and all(isinstance(name, str) for name in ids)
