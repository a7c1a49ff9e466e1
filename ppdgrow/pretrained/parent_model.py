"""What pairs are built from: the layers of a model, without weights, and where their parts are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from ppdgrow.errors import ConfigError
from ppdgrow.pretrained.cut import LayerSizes
from ppdgrow.pretrained.families import FAMILIES, Family
from ppdgrow.pretrained.folder import PretrainedFolder, TensorEntry, read_range
from ppdgrow.pretrained.library import load_config
from ppdgrow.pretrained.plain import DTYPES, LEGACY
from ppdgrow.pretrained.skeleton import as_on_disk, layer_list, skeleton

INNER = ("intermediate_size", "n_inner", "hidden_dim")  # what configs call the hidden units of an MLP
TAPS = 4  # of a depthwise convolution, as a recipe's kernel_size


class ParentModel:
    """What the pairs of a model are built from: its layers, without weights, and where their parts are."""

    def __init__(self, folder: PretrainedFolder) -> None:
        self.folder = folder
        self.loaded = load_config(folder.path, folder.parent_config)
        self.model = skeleton(folder.path, folder.parent_config)
        self.path, self.layers = layer_list(self.model, folder.num_layers, folder)
        self.notes: tuple[str, ...] = ()
        self.family = folder.family or self._family_by_shape()
        if folder.model_type == "mistral" and "layer_types" in folder.parent_config:
            raise ConfigError(
                f"{str(folder.path)!r}: Transformers loads a 'mistral' with 'layer_types' as a 'ministral': write "
                "model_type 'ministral' and architectures ['MinistralForCausalLM'] into a copy's config.json"
            )
        if self.sizes.width % 2:
            raise ConfigError(
                f"hidden size {self.sizes.width} of {str(folder.path)!r} is odd, and pairs work on halves of it: "
                "use --method zero, copy or fresh"
            )

    @cached_property
    def sizes(self) -> LayerSizes:
        config = self.loaded
        heads, width = config.num_attention_heads, config.hidden_size
        key_heads = getattr(config, "num_key_value_heads", None) or heads
        head_dim = getattr(config, "head_dim", None) or width // heads
        end = self.layers[-1].get_submodule(self._output(self.family.mlp, in_layer=True))
        inner = input_width(end)
        return LayerSizes(width, heads, key_heads, head_dim, inner)

    def pairs(self, blocks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """What config.json says of the pairs: all that is needed to build them."""
        parts = {"attention": self.family.attention, "mlp": self.family.mlp}
        return {
            "blocks": [dict(block) for block in blocks],
            "half": self._half(any(block["kind"] == "attention" for block in blocks)),
            "kernel_size": TAPS,
            "layers": self.family.layers,
            "outputs": {part: self._output(paths) for part, paths in parts.items()},
            "parts": {part: [[name, path] for name, path in paths.items()] for part, paths in parts.items()},
        }

    def _half(self, attends: bool) -> dict[str, Any]:
        """Keys of the config of half a layer, where they differ from the parent's."""
        half, config = self.sizes.half(), self.loaded
        heads, key_heads = (half.heads, half.key_heads) if attends or not self.sizes.heads % 2 else (1, 1)
        wanted: dict[str, Any] = {"hidden_size": half.width, "num_attention_heads": heads}
        if getattr(config, "num_key_value_heads", None) is not None:
            wanted["num_key_value_heads"] = key_heads
        wanted["head_dim"] = half.head_dim
        wanted |= {key: half.inner for key in INNER if key in type(config).__dataclass_fields__ and vars(config)[key]}
        rates = {key: 0.0 for key, value in vars(config).items() if _is_dropout(key) and isinstance(value, int | float)}
        return wanted | rates

    def _output(self, paths: Mapping[str, str], *, in_layer: bool = False) -> str:
        """The linear map at the end of a branch, by its path there or in the layer."""
        layer = self.layers[-1]
        for output in self.family.outputs:
            for name, path in paths.items():
                inside = output == path or output.startswith(f"{path}.")
                if inside and any(output == known for known, _ in layer.named_modules()):
                    return output if in_layer else f"{name}{output[len(path) :]}"
        if self.folder.family is None:
            raise ConfigError(
                f"model_type {self.folder.model_type!r} is not in the registry, and which maps of its layers end in "
                "the stream is not known, so that pairs cannot be built from them: use --method zero, copy or fresh"
            )
        raise ConfigError(
            f"model_type {self.folder.model_type!r}: the maps into the stream are not where the registry has them, in "
            f"this version of Transformers: {', '.join(self.family.outputs)}"
        )

    def _family_by_shape(self) -> Family:
        """A family whose parts are all that has parameters in a layer."""
        layer = self.layers[-1]
        modules = {name for name, _ in layer.named_modules()}
        owned = {name for name, _ in layer.named_parameters()}
        for model_type, family in FAMILIES.items():
            paths = [*family.attention.values(), *family.mlp.values()]
            covered = all(any(name.startswith(f"{path}.") for path in paths) for name in owned)
            if not family.post_norm and set(paths) <= modules and covered:
                took = f"its layers are taken to be {self.path}, with parts as in {model_type!r}"
                self.notes = (f"model_type {self.folder.model_type!r} is not in the registry: {took}",)
                return replace(family, layers=self.path.removeprefix(f"{_prefix(self.model)}."))
        raise ConfigError(
            f"model_type {self.folder.model_type!r}: which parts of a layer are norm, attention and MLP is not known, "
            "so that pairs cannot be built from them: use --method zero, copy or fresh"
        )

    def entry(self, layer: int, name: str) -> TensorEntry | None:
        """Where a tensor of a layer is, by the name that Transformers has for it; None if the folder has none."""
        found = self._on_disk(layer, name)
        return None if found is None else self.folder.layer_tensors(layer)[found]

    def rows(self, entry: TensorEntry, start: int, stop: int) -> Tensor:
        """Some rows of a tensor, in its own type."""
        size = (entry.stop - entry.start) // entry.shape[0]
        chunks = read_range(self.folder.path / entry.file, entry.start + start * size, entry.start + stop * size)
        data = bytearray(b"".join(chunks))
        return torch.frombuffer(data, dtype=DTYPES[entry.dtype]).reshape(stop - start, *entry.shape[1:])

    def _on_disk(self, layer: int, name: str) -> str | None:
        there = self.folder.layer_tensors(layer)
        if name in there:
            return name
        parameters = dict(self.layers[layer].named_parameters())
        if name not in parameters:
            return None
        saved = list(as_on_disk(self.model, self.path, layer, {name: parameters[name]}))
        names = [*saved, *(name.replace(new, old) for old, new in LEGACY.items())] if len(saved) == 1 else []
        return next((name for name in names if name in there), None)

    def dtype(self, layer: int) -> str:
        """The type of a layer's weights on the disk: that of its widest matrix."""
        entries = self.folder.layer_tensors(layer).values()
        return max(entries, key=lambda entry: (len(entry.shape), entry.size)).dtype


def _prefix(model: nn.Module) -> str:
    return str(getattr(model, "base_model_prefix", ""))


def _is_dropout(key: str) -> bool:
    return "dropout" in key or key.endswith("_pdrop")


def input_width(module: Any) -> int:
    """The width that a linear map reads."""
    return int(module.weight.shape[0 if is_transposed(module) else 1])


def is_transposed(module: nn.Module) -> bool:
    """Whether a linear map stores its weight as `(input, output)`, as GPT-2 does."""
    return type(module).__name__ == "Conv1D"
