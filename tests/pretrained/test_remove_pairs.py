"""Pairs are taken out again: the parent comes back, and of a trained model everything else stays."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from models_with_pairs import folders, grown_folder, trained_model
from tiny_models import load, logits, read_config, tensors

from ppdgrow.errors import ConfigError
from ppdgrow.pretrained.folder import read_folder
from ppdgrow.pretrained.load import load_pretrained
from ppdgrow.pretrained.removal import remove_pairs


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert", "vit"])
def test_without_pairs_it_is_the_parent(name: str, tmp_path: Path) -> None:
    parent, grown = folders(name)
    removed = remove_pairs(read_folder(grown), ["p1", "p2", "p3"], out=tmp_path / "out")
    assert removed.preserves
    assert (removed.layers_before, removed.layers_after) == (10, 4)
    assert removed.parameters_after == read_folder(tmp_path / "out").parameters == read_folder(parent).parameters
    old, new = tensors(parent), tensors(tmp_path / "out")
    assert old.keys() == new.keys()
    assert all(torch.equal(new[key], tensor) for key, tensor in old.items())
    assert torch.equal(logits(load(tmp_path / "out", name), name), logits(load(parent, name), name))
    assert not (tmp_path / "out" / "modeling_ppdgrow.py").exists()


def test_of_a_trained_model_all_else_stays(tmp_path: Path) -> None:
    trained_model(folders("llama")[1]).save_pretrained(tmp_path / "trained")  # all tensors in one file
    removed = remove_pairs(read_folder(tmp_path / "trained"), ["p1", "last"], out=tmp_path / "out")
    assert (removed.ids, removed.preserves) == (("p1", "p3"), False)
    assert [block["id"] for block in read_config(tmp_path / "out")["pairs"]["blocks"]] == ["p2"]
    old, new = tensors(tmp_path / "trained"), tensors(tmp_path / "out")
    assert {key for key in old if key not in new} == {key for key in old if ".pairs.p1." in key or ".pairs.p3." in key}
    assert all(torch.equal(old[key], tensor) for key, tensor in new.items())
    model = load_pretrained(tmp_path / "out").eval()
    assert model.num_parameters() == removed.parameters_after
    assert not torch.equal(logits(model, "llama"), logits(load_pretrained(tmp_path / "trained").eval(), "llama"))


def test_what_is_not_there_is_not_removed(tmp_path: Path) -> None:
    parent, grown = grown_folder("llama", tmp_path, kinds=("ffn",), positions=(1,))
    for folder, ids in ((grown, ["p2"]), (grown, ["p1", "p7"]), (grown, []), (parent, ["last"])):
        with pytest.raises(ConfigError, match="has the pairs"):
            remove_pairs(read_folder(folder), ids, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
