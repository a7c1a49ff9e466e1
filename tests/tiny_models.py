"""Tiny random models of Transformers, one of each family that ppdgrow knows, as folders."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

LAYERS = 4
VOCABULARY = 99
WINDOW = 4  # below the length of the inputs, so that kinds of layers differ


@dataclass(frozen=True)
class TinyModel:
    """How a tiny model of a family is made."""

    model_class: str
    config_class: str
    options: Mapping[str, Any] = field(default_factory=dict)
    decoder: bool = True

    def config(self, **options: Any) -> Any:
        return getattr(transformers(), self.config_class)(**{**COMMON, **self.options, **options})


def transformers() -> Any:
    """The library, untyped."""
    return import_module("transformers")


COMMON = {
    "hidden_size": 32,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "vocab_size": VOCABULARY,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id", "cls_token_id", "sep_token_id"), 1),
}
GROUPED = {"num_key_value_heads": 2, "head_dim": 8}
MODELS: Mapping[str, TinyModel] = {
    "gpt2": TinyModel("GPT2LMHeadModel", "GPT2Config"),
    "llama": TinyModel("LlamaForCausalLM", "LlamaConfig", GROUPED),
    "qwen3": TinyModel(
        "Qwen3ForCausalLM",
        "Qwen3Config",
        {**GROUPED, "use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 2},
    ),
    "mistral": TinyModel("MistralForCausalLM", "MistralConfig", {**GROUPED, "sliding_window": WINDOW}),
    "gemma3_text": TinyModel(
        "Gemma3ForCausalLM", "Gemma3TextConfig", {**GROUPED, "sliding_window": WINDOW, "sliding_window_pattern": 2}
    ),
    "phi3": TinyModel("Phi3ForCausalLM", "Phi3Config", {"num_key_value_heads": 2}),
    "bert": TinyModel("BertForMaskedLM", "BertConfig", decoder=False),
    "roberta": TinyModel("RobertaForMaskedLM", "RobertaConfig", decoder=False),
    "modernbert": TinyModel(
        "ModernBertForMaskedLM",
        "ModernBertConfig",
        {"local_attention": WINDOW, "global_attn_every_n_layers": 3},
        decoder=False,
    ),
    "vit": TinyModel("ViTForImageClassification", "ViTConfig", {"image_size": 8, "patch_size": 4}, decoder=False),
}
POST_NORM = ("bert", "roberta")
PRE_NORM = tuple(name for name in MODELS if name not in POST_NORM)
DECODERS = tuple(name for name, tiny in MODELS.items() if tiny.decoder)


def make_folder(
    name: str, path: Path, *, dtype: str = "float32", shards: bool = False, seed: int = 0, **options: Any
) -> Path:
    """Save a tiny model whose weights are all random, norms and biases too."""
    tiny = MODELS[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = getattr(transformers(), tiny.model_class)(tiny.config(**options))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
    model.to(getattr(torch, dtype)).save_pretrained(path, max_shard_size="20KB" if shards else "5GB")
    return path


def load(path: Path, name: str) -> Any:
    """The model in a folder by Transformers alone, in the type of its weights, which must all be there and fit."""
    model, report = getattr(transformers(), MODELS[name].model_class).from_pretrained(
        path, output_loading_info=True, dtype="auto"
    )
    assert not any(report.values()), report
    return model.eval()


def inputs(name: str) -> dict[str, torch.Tensor]:
    """Two examples; tokens are more than the window of local attention."""
    draw = torch.Generator().manual_seed(1)
    if name == "vit":
        return {"pixel_values": torch.randn(2, 3, 8, 8, generator=draw)}
    return {"input_ids": torch.randint(3, VOCABULARY, (2, 12), generator=draw)}


def logits(model: Any, name: str) -> torch.Tensor:
    given = {key: value.to(model.dtype) if value.is_floating_point() else value for key, value in inputs(name).items()}
    with torch.no_grad():
        found: torch.Tensor = model(**given).logits
    assert found.isfinite().all()
    return found


def tensors(path: Path) -> dict[str, torch.Tensor]:
    """All tensors of a folder, by the library."""
    return {name: tensor for file in sorted(path.glob("*.safetensors")) for name, tensor in load_file(file).items()}


def read_config(path: Path) -> Any:
    return json.loads((path / "config.json").read_text())


def edit_config(path: Path, **changes: Any) -> None:
    """Change keys of config.json; a key that is given None is taken out."""
    config = {**read_config(path), **changes}
    kept = {key: value for key, value in config.items() if value is not None}
    (path / "config.json").write_text(json.dumps(kept))


def write_byte_tokenizer(folder: Path) -> None:
    """A tokenizer whose 256 tokens are the bytes."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={character: number for number, character in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
