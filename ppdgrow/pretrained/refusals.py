"""What ppdgrow does not deepen: folders of other formats, and models without one list of layers of their own.

Each refusal is one line that says what was found and a way out.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ppdgrow.checkpoint.safe_read import invalid, one_line
from ppdgrow.checkpoint.shards import INDEX, SINGLE
from ppdgrow.errors import InvalidInputError

CONFIG = "config.json"
ADAPTER = "adapter_config.json"
FRESH_COPY = "get a fresh copy of the folder"
PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.h5", "*.msgpack", "*.bin.index.json")
# Counts that only a mixture of experts has.
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
# Configs in a config: of a model of several towers.
TOWERS = ("text_config", "vision_config", "audio_config", "thinker_config", "encoder", "decoder", "language_config")


def refuse_other_folders(path: Path) -> None:
    if not path.is_dir():
        raise InvalidInputError(f"{str(path)!r} is no folder: give the folder with {CONFIG} and the weights")
    if (path / ADAPTER).exists():
        raise InvalidInputError(
            f"{str(path)!r} has an adapter ({ADAPTER}), not a whole model: merge it first, "
            "with PEFT's merge_and_unload() and save_pretrained()"
        )
    gguf = sorted(path.glob("*.gguf"))
    if gguf and not (path / SINGLE).exists() and not (path / INDEX).exists():
        raise InvalidInputError(
            f"{str(gguf[0])!r} is a GGUF file, whose weights are quantised or renamed: "
            "take the model's original folder with safetensors"
        )


def refuse_quantised_config(path: Path, config: Mapping[str, Any]) -> None:
    if (found := config.get("quantization_config")) is not None:
        method = found.get("quant_method", "of an unknown method") if isinstance(found, dict) else found
        raise InvalidInputError(
            f"{str(path / CONFIG)!r}: the weights are quantised ({one_line(str(method))}): "
            "take the model's original folder, in bf16, fp16 or fp32"
        )


def refuse_other_models(path: Path, config: Mapping[str, Any], loaded: Any) -> None:
    """Refuse by name what has no single list of layers with weights of their own."""
    what = f"{str(path / CONFIG)!r}: model_type {one_line(repr(config['model_type']))}"
    experts = [key for key in EXPERTS if isinstance(value := getattr(loaded, key, None), int) and value > 1]
    if experts:
        experts.sort(key=lambda key: key not in config)  # as the file spells it
        raise InvalidInputError(
            f"{what} is a mixture of experts ({experts[0]}: {getattr(loaded, experts[0])}), which ppdgrow does not "
            "deepen yet: take a dense model"
        )
    if getattr(loaded, "is_encoder_decoder", False):
        raise InvalidInputError(
            f"{what} has an encoder and a decoder, which ppdgrow does not deepen yet: take a model with one stack"
        )
    if getattr(loaded, "add_cross_attention", False):
        raise InvalidInputError(
            f"{what} attends to an encoder (add_cross_attention), which ppdgrow does not deepen yet: "
            "take a model with one stack"
        )
    towers = list(type(loaded).sub_configs) or [key for key in TOWERS if isinstance(config.get(key), dict)]
    if towers:
        raise InvalidInputError(
            f"{what} has several parts ({', '.join(towers)}), as a vision-language model has, which ppdgrow does not "
            "deepen yet: save its language model alone"
        )
    if getattr(loaded, "num_hidden_groups", None):
        raise InvalidInputError(
            f"{what} shares weights between its layers, so that a further layer has none of its own: "
            "take a model without sharing"
        )


def refuse_without_safetensors(path: Path) -> None:
    if (path / SINGLE).exists() or (path / INDEX).exists():
        return
    pickled = sorted(file.name for pattern in PICKLED for file in path.glob(pattern))
    if not pickled:
        raise invalid(path, f"no weights: neither {SINGLE} nor {INDEX}")
    raise InvalidInputError(
        f"{str(path / pickled[0])!r}: weights in a format that can run code or that ppdgrow does not read, expected "
        "safetensors: where you trust it, load it by from_pretrained() and save it by save_pretrained()"
    )
