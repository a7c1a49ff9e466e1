"""The tensors of a folder are those that its config asks for: one that is missing or of another shape is named."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from models_with_pairs import folders
from safetensors.torch import load_file, save_file
from tiny_models import MODELS, edit_config, make_folder

from ppdgrow.errors import InvalidInputError
from ppdgrow.pretrained.expected_tensors import refuse_other_tensors
from ppdgrow.pretrained.folder import read_folder
from ppdgrow.pretrained.load import load_pretrained
from ppdgrow.pretrained.pairs import grow_pairs
from ppdgrow.pretrained.plain import grow_plain

UP = "model.layers.2.mlp.up_proj.weight"


def edit_tensors(folder: Path, edit: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    held = load_file(folder / "model.safetensors")
    edit(held)
    save_file(held, folder / "model.safetensors", metadata={"format": "pt"})


def widen_vocabulary(folder: Path) -> None:
    edit_config(folder, vocab_size=None)  # so that it is the default


BAD: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a missing tensor": (
        lambda folder: edit_tensors(folder, lambda held: held.pop(UP)),
        rf"tensor '{UP}' is missing, expected with shape \[48, 32\]",
    ),
    "a missing embedding": (
        lambda folder: edit_tensors(folder, lambda held: held.pop("model.embed_tokens.weight")),
        r"tensor 'model\.embed_tokens\.weight' is missing, expected with shape \[99, 32\]",
    ),
    "a missing head": (
        lambda folder: edit_tensors(folder, lambda held: held.pop("lm_head.weight")),
        r"tensor 'lm_head\.weight' is missing",
    ),
    "a tensor of another shape": (
        lambda folder: edit_tensors(folder, lambda held: held.update({UP: held[UP][:-1].clone()})),
        rf"tensor '{UP}' has shape \[47, 32\], and config\.json makes it \[48, 32\]",
    ),
    "other heads": (
        lambda folder: edit_config(folder, num_attention_heads=8),
        r"tensor 'model\.layers\.0\.self_attn\.o_proj\.weight' has shape \[32, 32\], .* makes it \[32, 64\]",
    ),
    "no vocabulary": (widen_vocabulary, r"has shape \[99, 32\], and config\.json makes it \[32000, 32\]"),
    "odd hidden units": (
        lambda folder: edit_config(folder, intermediate_size=63),
        r"tensor 'model\.layers\.0\.mlp\.down_proj\.weight' has shape \[32, 48\], .* makes it \[32, 63\]",
    ),
    "no width": (lambda folder: edit_config(folder, hidden_size=0), r"has shape \[99, 32\], .* makes it \[99, 0\]"),
}


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder("llama", tmp_path_factory.mktemp("models") / "llama")


@pytest.mark.parametrize("fault", BAD)
def test_it_is_named(fault: str, good: Path, tmp_path: Path) -> None:
    folder, out = Path(shutil.copytree(good, tmp_path / "llama")), tmp_path / "out"
    damage, message = BAD[fault]
    refuse_other_tensors(read_folder(folder))  # control: it was whole before
    damage(folder)
    ways = (
        lambda: load_pretrained(folder),
        lambda: grow_plain(read_folder(folder), method="copy", positions=(2,), out=out),
        lambda: grow_plain(read_folder(folder), method="zero", positions=(2,), out=out),
        lambda: grow_pairs(read_folder(folder), kinds=("ffn",), positions=(2,), out=out),
    )
    for way in ways:
        with pytest.raises(InvalidInputError, match=message) as found:
            way()
        assert "\n" not in str(found.value)
        assert str(folder) in str(found.value)
        assert found.value.exit_code == 4
    assert not out.exists()


@pytest.mark.parametrize("name", MODELS)
def test_every_family_has_them_with_and_without_pairs(name: str) -> None:
    for folder in folders(name):
        refuse_other_tensors(read_folder(folder))


def test_a_tensor_of_a_pair_is_named(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(folders("llama")[1], tmp_path / "grown"))
    entries = read_folder(folder).entries
    name = next(key for key, entry in entries.items() if ".pairs." in key and len(entry.shape) == 2)
    shard = folder / entries[name].file
    held = load_file(shard)
    held[name] = held[name][:-1].clone()
    save_file(held, shard, metadata={"format": "pt"})
    with pytest.raises(InvalidInputError, match=f"tensor '{name}' has shape"):
        load_pretrained(folder)


def test_what_loads_well_is_not_refused(tmp_path: Path) -> None:
    """Norms by the names of TensorFlow, buffers of older versions, a head beside the model, no pooler."""
    folder = make_folder("bert", tmp_path / "bert")

    def rename(held: dict[str, torch.Tensor]) -> None:
        for name in list(held):
            old = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
            held[old] = held.pop(name)
        held["bert.embeddings.position_ids"] = torch.arange(64)[None]
        held["cls.seq_relationship.weight"] = torch.zeros(2, 32)

    edit_tensors(folder, rename)
    refuse_other_tensors(read_folder(folder))
    edit_config(folder, architectures=["BertModel"])
    refuse_other_tensors(read_folder(folder))
    edit_config(folder, architectures=None)
    refuse_other_tensors(read_folder(folder))
    tied = make_folder("llama", tmp_path / "llama", tie_word_embeddings=True)
    assert "lm_head.weight" not in read_folder(tied).entries
    refuse_other_tensors(read_folder(tied))
