"""A model of Transformers without weights (on PyTorch's meta device): what its layers are and how they are drawn."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ppdgrow.checkpoint.safe_read import one_line
from ppdgrow.errors import ConfigError, InvalidInputError
from ppdgrow.pretrained.deeper_config import Stack
from ppdgrow.pretrained.folder import CONFIG, PretrainedFolder, ends_with
from ppdgrow.pretrained.library import load_config, quiet, refused_by_transformers
from ppdgrow.pretrained.refusals import FRESH_COPY
from ppdgrow.seeding import generator


def skeleton(path: Path, config: Mapping[str, Any]) -> nn.Module:
    """The model that `from_pretrained` would make of a config, on the meta device.

    Raises:
        InvalidInputError: Transformers can make none of it.
    """
    transformers: Any = import_module("transformers")
    loaded = load_config(path, config)
    names = config.get("architectures") or []
    model_class: Any = getattr(transformers, names[0], None) if names else None
    own = getattr(model_class, "config_class", None)
    if own is not None and not isinstance(loaded, own):
        model_type = one_line(repr(config["model_type"]))
        what = f"architectures names {names[0]!r}, which is no model of model_type {model_type}"
        raise InvalidInputError(f"{str(path / CONFIG)!r}: {what}; {FRESH_COPY}")
    make = transformers.AutoModel.from_config if own is None else model_class._from_config
    with refused_by_transformers(path / CONFIG), torch.device("meta"), quiet():
        model: nn.Module = make(loaded)
    return model


def layer_list(model: nn.Module, count: int, folder: PretrainedFolder) -> tuple[str, nn.ModuleList]:
    """Path and list of the layers: where they are on the disk, else where the family has them, else the largest."""
    lists = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.ModuleList) and len(module) == count
    }
    if not lists:
        raise ConfigError(f"a {type(model).__name__} has no list of {count} layers: ppdgrow cannot deepen it")
    on_disk = folder.layers.removesuffix(".")
    paths = [on_disk, *([folder.family.layers] if folder.family else [])]
    known = [name for path in paths for name in lists if ends_with(name, path) or ends_with(path, name)]
    name = known[0] if known else max(lists, key=lambda name: sum(each.numel() for each in lists[name].parameters()))
    return name, lists[name]


def refuse_changed_layers(before: nn.ModuleList, after: nn.ModuleList, stack: Stack, model_type: str) -> None:
    """Hold each layer of the grown model against the one that it is made after.

    Raises:
        ConfigError: its parameters or settings are others at its new place, as where the first layer has no norm, or
            where a factor follows from the number of the layer.
    """
    for number, source in enumerate(stack.sources):
        old, new = _settings(before[source]), _settings(after[number])
        changed = sorted(
            key
            for key in old.keys() | new.keys()
            if old.get(key) != new.get(key) and not _is_number(old.get(key), source, new.get(key), number)
        )
        if changed:
            what = "a copy of it" if number in stack.new else "it"
            raise ConfigError(
                f"model_type {model_type!r}: layer {source + 1} is not the same at another place ({changed[0]}: "
                f"{old.get(changed[0])}, as layer {number + 1} {new.get(changed[0])}), and {what} would stand there: "
                "choose another --position, or grow it by pairs"
            )


def _is_number(old: Any, source: int, new: Any, number: int) -> bool:
    """Whether an attribute is the number of the layer, counted from 0 or from 1, at both places."""
    return type(old) is int and type(new) is int and (old - source, new - number) in ((0, 0), (1, 1))


def _settings(layer: nn.Module) -> dict[str, Any]:
    """Shapes of parameters, classes of modules and their plain attributes."""
    found: dict[str, Any] = {name: tuple(parameter.shape) for name, parameter in layer.named_parameters()}
    for path, module in layer.named_modules():
        found[f"{path}.class".lstrip(".")] = type(module).__name__
        plain = {key: value for key, value in vars(module).items() if isinstance(value, int | float | str | None)}
        found |= {f"{path}.{key}".lstrip("."): value for key, value in plain.items()}
    return found


def draw_layer(model: Any, path: str, number: int, seed: int) -> dict[str, Tensor]:
    """The parameters of a layer as the model itself draws them, in fp32, by name within the layer.

    Raises:
        ConfigError: the model leaves one of them undrawn.
    """
    layer = model.get_submodule(f"{path}.{number}")
    layer = layer.to_empty(device="cpu").float()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.fill_(torch.nan)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(generator(seed, "fresh layer", number).initial_seed())
            layer.apply(model._init_weights)
    drawn = {name: parameter.detach() for name, parameter in layer.named_parameters()}
    layer.to("meta")
    for name, tensor in drawn.items():
        if tensor.isnan().any():
            raise ConfigError(f"{type(model).__name__} does not say how {name} is drawn: use --method copy or zero")
    return drawn


def as_on_disk(model: Any, path: str, number: int, drawn: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Parameters of a layer under the names that `save_pretrained` gives them, which for some families are others."""
    from transformers.core_model_loading import revert_weight_conversion

    saved = revert_weight_conversion(model, {f"{path}.{number}.{name}": tensor for name, tensor in drawn.items()})
    return {name.partition(f".{number}.")[2]: tensor for name, tensor in saved.items()}
