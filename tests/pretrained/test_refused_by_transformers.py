"""Configs of which Transformers can make no model: one line, not a traceback, by every way in."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import edit_config, inputs, logits, make_folder

from ppdgrow.errors import InvalidInputError
from ppdgrow.pretrained.folder import read_folder
from ppdgrow.pretrained.load import load_pretrained
from ppdgrow.pretrained.pairs import grow_pairs
from ppdgrow.pretrained.plain import grow_plain

BAD: Mapping[str, tuple[dict[str, Any], str]] = {
    "an unknown activation": ({"hidden_act": "foo"}, r"Transformers [\d.]+ refuses it \(KeyError: 'foo'\)"),
    "unknown positions": ({"rope_scaling": {"type": "x"}}, r"Transformers [\d.]+ refuses it \(KeyError: 'x'\)"),
    "padding beyond the vocabulary": ({"pad_token_id": 500}, r"refuses it \(AssertionError: Padding_idx must"),
    "the head of another family": (
        {"architectures": ["GPT2LMHeadModel"]},
        r"architectures names 'GPT2LMHeadModel', which is no model of model_type 'llama'",
    ),
    "a head that is no list": ({"architectures": "LlamaForCausalLM"}, r"'LlamaForCausalLM', expected a list of names"),
    "a head that is no name": ({"architectures": [7]}, r"architectures is \[7\], expected a list of names"),
}


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder("llama", tmp_path_factory.mktemp("models") / "llama")


@pytest.fixture
def folder(good: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(good, tmp_path / "llama"))


@pytest.mark.parametrize("fault", BAD)
def test_it_is_refused_in_one_line(fault: str, folder: Path, tmp_path: Path) -> None:
    changes, message = BAD[fault]
    assert load_pretrained(folder) is not None, "control: it was whole before"
    edit_config(folder, **changes)
    ways = (
        lambda: load_pretrained(folder),
        lambda: grow_plain(read_folder(folder), method="copy", positions=(2,), out=tmp_path / "out"),
        lambda: grow_pairs(read_folder(folder), kinds=("ffn",), positions=(2,), out=tmp_path / "out"),
    )
    for way in ways:
        with pytest.raises(InvalidInputError, match=message) as found:
            way()
        assert "\n" not in str(found.value)
        assert str(folder / "config.json") in str(found.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("key", ["_attn_implementation", "attn_implementation"])
def test_attention_that_needs_another_package_is_not_asked_for(key: str, folder: Path, tmp_path: Path) -> None:
    expected = logits(load_pretrained(folder).eval(), "llama")
    edit_config(folder, **{key: "flash_attention_2"})
    parent = read_folder(folder)
    grow_plain(parent, method="zero", positions=(2,), out=tmp_path / "plain")
    grow_pairs(parent, kinds=("attention",), positions=(2,), out=tmp_path / "pairs")
    for path in (folder, tmp_path / "plain", tmp_path / "pairs"):
        assert torch.equal(logits(load_pretrained(path).eval(), "llama"), expected)
    with pytest.raises(ImportError, match="FlashAttention2"):  # negative control: it is not installed here
        load_pretrained(folder, attn_implementation="flash_attention_2")(**inputs("llama"))
