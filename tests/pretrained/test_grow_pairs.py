"""`grow_pairs` on folders: the function and every old byte stay, new tensors are where and as many as said."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from models_with_pairs import KINDS, PLACES, grown_folder
from safetensors import safe_open
from tiny_models import MODELS, edit_config, load, logits, make_folder, read_config, tensors

from ppdgrow.errors import ConfigError, InvalidInputError
from ppdgrow.pretrained.folder import read_folder
from ppdgrow.pretrained.load import load_pretrained
from ppdgrow.pretrained.pairs import grow_pairs

FORMS: Mapping[str, dict[str, Any]] = {
    "fp32 sliced": {"source": "slice"},
    "bf16 sliced, sharded": {"source": "slice", "dtype": "bfloat16", "shards": True},
    "fp16 drawn": {"source": "random", "dtype": "float16"},
}
ROOT = math.sqrt(2.0)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", MODELS)
def test_the_function_and_every_old_byte_stay(name: str, form: str, tmp_path: Path) -> None:
    parent, grown = grown_folder(name, tmp_path, **FORMS[form])
    model = load_pretrained(grown).eval()
    before = logits(load(parent, name), name)
    assert torch.equal(logits(model, name), before)

    old, new = tensors(parent), tensors(grown)
    assert all(torch.equal(new[key], tensor) and new[key].dtype == tensor.dtype for key, tensor in old.items())
    added = {key: tensor for key, tensor in new.items() if key not in old}
    assert all(".pairs.p" in key for key in added)
    assert {tensor.dtype for tensor in added.values()} == {model.dtype}
    assert model.num_parameters() == read_folder(grown).parameters

    last = next(key for key in reversed(added) if "p2.g_minus" in key and added[key].dim() == 2)
    model.get_parameter(_module_name(model, last)).data.add_(0.5)  # the check above sees one tensor of one branch
    assert not torch.equal(logits(model, name), before)


def _module_name(model: Any, key: str) -> str:
    """What a model calls a tensor of a folder whose names have another prefix."""
    end = key.partition(".pairs.")[2]
    return next(name for name, _ in model.named_parameters() if name.endswith(f".pairs.{end}"))


def _half_of(name: str) -> tuple[int, int]:
    """Parameters of an attention and an MLP branch of the tiny models, counted by hand: width 16, 24 hidden units."""
    inner = {"gpt2": 64}.get(name, 24)
    queries, keys = 16, 16 if name in ("gpt2", "bert", "roberta", "modernbert", "vit") else 8
    biases = name in ("gpt2", "bert", "roberta", "vit")
    norm = 32 if biases else 16
    attention = norm + 16 * (2 * queries + 2 * keys) + (queries + 2 * keys + 16 if biases else 0)
    attention += {"qwen3": 16, "gemma3_text": 16}.get(name, 0)  # norms of a head's 8 channels
    maps = 2 if biases else 3
    return attention, norm + maps * 16 * inner + (inner + 16 if biases else 0)


@pytest.mark.parametrize("name", MODELS)
def test_as_many_parameters_as_counted_by_hand(name: str, tmp_path: Path) -> None:
    parent = read_folder(make_folder(name, tmp_path / "parent"))
    grown = grow_pairs(parent, kinds=KINDS, positions=PLACES, out=tmp_path / "grown")
    attention, mlp = _half_of(name)
    added = 2 * (attention + mlp) + 4 * mlp + 2 * 32 * 32
    assert grown.parameters_after - grown.parameters_before == added
    assert read_folder(tmp_path / "grown").parameters == grown.parameters_after
    assert (grown.layers_before, grown.layers_after, grown.ids) == (4, 10, ("p1", "p2", "p3"))


def _across(*parts: torch.Tensor) -> torch.Tensor:
    return torch.cat(parts)


# What the branches of a pair after the first layer are cut from, written out: width 32, 4 heads of 8 channels (2 key
# and value heads where they are shared), 48 hidden units; f reads [16:], writes [:16], g the converse.
CUTS: Mapping[str, dict[str, Any]] = {
    "llama": {
        "f_plus.norm.weight": lambda t: t["input_layernorm.weight"][16:],
        "f_plus.attention.q_proj.weight": lambda t: t["self_attn.q_proj.weight"][:16, 16:] * ROOT,
        "f_plus.attention.k_proj.weight": lambda t: t["self_attn.k_proj.weight"][:8, 16:] * ROOT,
        "f_minus.attention.v_proj.weight": lambda t: t["self_attn.v_proj.weight"][:8, 16:] * ROOT,
        "f_plus.attention.o_proj.weight": lambda t: t["self_attn.o_proj.weight"][:16, :16],
        "f_minus.attention.o_proj.weight": lambda t: -t["self_attn.o_proj.weight"][:16, :16],
        "g_plus.norm.weight": lambda t: t["post_attention_layernorm.weight"][:16],
        "g_plus.mlp.up_proj.weight": lambda t: t["mlp.up_proj.weight"][0::2, :16] * ROOT,
        "g_minus.mlp.down_proj.weight": lambda t: -t["mlp.down_proj.weight"][16:, 0::2],
    },
    "qwen3": {
        "f_plus.attention.q_norm.weight": lambda t: t["self_attn.q_norm.weight"],
        "f_minus.attention.k_norm.weight": lambda t: t["self_attn.k_norm.weight"],
    },
    "gpt2": {
        "f_plus.attention.c_attn.weight": lambda t: (
            _across(*(t["attn.c_attn.weight"].T[at : at + 16, 16:] for at in (0, 32, 64))).T * ROOT
        ),
        "f_plus.attention.c_attn.bias": lambda t: _across(*(t["attn.c_attn.bias"][at : at + 16] for at in (0, 32, 64))),
        "f_minus.attention.c_proj.weight": lambda t: -t["attn.c_proj.weight"][:16, :16],
        "f_minus.attention.c_proj.bias": lambda t: -t["attn.c_proj.bias"][:16],
        "g_plus.mlp.c_fc.weight": lambda t: t["mlp.c_fc.weight"][:16, 0::2] * ROOT,
        "g_plus.mlp.c_fc.bias": lambda t: t["mlp.c_fc.bias"][0::2],
        "g_minus.mlp.c_proj.weight": lambda t: -t["mlp.c_proj.weight"][0::2, 16:],
    },
    "phi3": {
        "f_plus.attention.qkv_proj.weight": lambda t: (
            _across(*(t["self_attn.qkv_proj.weight"][rows] for rows in (slice(0, 16), slice(32, 40), slice(48, 56))))[
                :, 16:
            ]
            * ROOT
        ),
        "g_plus.mlp.gate_up_proj.weight": lambda t: (
            _across(t["mlp.gate_up_proj.weight"][0:48:2], t["mlp.gate_up_proj.weight"][48::2])[:, :16] * ROOT
        ),
    },
    "modernbert": {
        "f_plus.attention.Wqkv.weight": lambda t: (
            _across(*(t["attn.Wqkv.weight"][at : at + 16] for at in (0, 32, 64)))[:, 16:] * ROOT
        ),
        "f_minus.attention.Wo.weight": lambda t: -t["attn.Wo.weight"][:16, :16],
        "g_plus.mlp.Wi.weight": lambda t: _across(t["mlp.Wi.weight"][0:48:2], t["mlp.Wi.weight"][48::2])[:, :16] * ROOT,
        "f_plus.norm.weight": lambda t: torch.ones(16),  # the first layer has none
    },
    "bert": {
        "f_plus.norm.weight": lambda t: t["attention.output.LayerNorm.weight"][16:],
        "f_plus.attention.query.bias": lambda t: t["attention.self.query.bias"][:16],
        "f_minus.output.weight": lambda t: -t["attention.output.dense.weight"][:16, :16],
        "g_plus.norm.bias": lambda t: t["output.LayerNorm.bias"][:16],
        "g_plus.mlp.dense.weight": lambda t: t["intermediate.dense.weight"][0::2, :16] * ROOT,
        "g_minus.output.bias": lambda t: -t["output.dense.bias"][16:],
    },
    "vit": {  # which is saved under the names of older versions
        "f_plus.attention.q_proj.weight": lambda t: t["attention.attention.query.weight"][:16, 16:] * ROOT,
        "f_minus.attention.o_proj.bias": lambda t: -t["attention.output.dense.bias"][:16],
        "g_minus.mlp.fc2.weight": lambda t: -t["output.dense.weight"][16:, 0::2],
    },
}


@pytest.mark.parametrize("name", CUTS)
def test_slices_are_what_is_written_out(name: str, tmp_path: Path) -> None:
    parent, grown = grown_folder(name, tmp_path, kinds=("attention",), positions=(1,))
    prefix = read_folder(parent).layers + "0."
    old = {key.removeprefix(prefix): tensor for key, tensor in tensors(parent).items() if key.startswith(prefix)}
    new = tensors(grown)
    for key, expected in CUTS[name].items():
        torch.testing.assert_close(new[f"{prefix}pairs.p1.{key}"], expected(old), rtol=1e-6, atol=0)


def test_ffn_pairs_take_odd_hidden_units_in_f(tmp_path: Path) -> None:
    parent, grown = grown_folder("llama", tmp_path, kinds=("ffn",), positions=(3,))
    old, new = tensors(parent)["model.layers.2.mlp.down_proj.weight"], tensors(grown)
    assert torch.equal(new["model.layers.2.pairs.p1.f_plus.mlp.down_proj.weight"], old[:16, 1::2])
    assert torch.equal(new["model.layers.2.pairs.p1.g_plus.mlp.down_proj.weight"], old[16:, 0::2])


def test_an_odd_number_of_heads_is_rounded_up_where_heads_have_a_width_of_their_own(tmp_path: Path) -> None:
    options: dict[str, Any] = {"num_attention_heads": 6, "num_key_value_heads": 3, "hidden_size": 48}
    parent, grown = grown_folder("llama", tmp_path, positions=(1,), **options)
    assert tensors(grown)["model.layers.0.pairs.p1.f_plus.attention.q_proj.weight"].shape == (32, 24)
    assert torch.equal(logits(load_pretrained(grown).eval(), "llama"), logits(load(parent, "llama"), "llama"))


def test_one_key_head_stays_one(tmp_path: Path) -> None:
    parent, grown = grown_folder("llama", tmp_path, positions=(1,), num_key_value_heads=1)
    new = tensors(grown)
    assert new["model.layers.0.pairs.p1.f_plus.attention.k_proj.weight"].shape == (8, 16)
    assert torch.equal(logits(load_pretrained(grown).eval(), "llama"), logits(load(parent, "llama"), "llama"))


def test_new_tensors_are_a_shard_of_their_own(tmp_path: Path) -> None:
    _, grown = grown_folder("llama", tmp_path, shards=True)
    held = {}
    for file in grown.glob("*.safetensors"):
        with safe_open(file, framework="pt") as opened:
            held[file.name] = {".pairs." in name for name in opened.keys()}  # noqa: SIM118
    assert sorted(map(str, held.values())).count("{True}") == 1
    assert all(len(kinds) == 1 for kinds in held.values())


def test_a_draw_follows_the_seed_and_scale_the_output_projections(tmp_path: Path) -> None:
    parent = read_folder(make_folder("llama", tmp_path / "parent"))
    found = {}
    cases: dict[str, dict[str, Any]] = {"a": {}, "b": {}, "seed": {"seed": 1}, "scale": {"scale": 0.5}}
    for label, options in cases.items():
        grow_pairs(parent, kinds=("attention",), positions=(2,), out=tmp_path / label, source="random", **options)
        found[label] = {key: value for key, value in tensors(tmp_path / label).items() if ".pairs." in key}
    assert all(torch.equal(found["a"][key], found["b"][key]) for key in found["a"])
    name = "model.layers.1.pairs.p1.f_plus.attention.{}_proj.weight"
    assert not torch.equal(found["a"][name.format("q")], found["seed"][name.format("q")])
    assert torch.equal(found["a"][name.format("q")], found["scale"][name.format("q")])
    assert torch.equal(found["a"][name.format("o")] * 0.5, found["scale"][name.format("o")])


def test_a_folder_with_pairs_is_grown_again(tmp_path: Path) -> None:
    _, once = grown_folder("llama", tmp_path, kinds=("attention",), positions=(2,))
    grown = grow_pairs(
        read_folder(once), kinds=("attention-first", "attention"), positions=(0, 2), out=tmp_path / "twice"
    )
    assert grown.ids == ("p2", "p3")
    assert (grown.layers_before, grown.layers_after) == (6, 10)
    config = read_config(tmp_path / "twice")
    assert [(block["id"], block["kind"]) for block in config["pairs"]["blocks"]] == [
        ("p1", "attention"),
        ("p2", "ffn"),
        ("p3", "attention"),
    ]
    first, second = load_pretrained(once).eval(), load_pretrained(tmp_path / "twice").eval()
    assert torch.equal(logits(first, "llama"), logits(second, "llama"))
    old, new = tensors(once), tensors(tmp_path / "twice")
    assert all(torch.equal(new[key], tensor) for key, tensor in old.items())
    assert [entry["ids"] for entry in config["base"]["ppdgrow"]["lineage"]] == [["p1"], ["p2", "p3"]]


def test_a_family_that_is_not_in_the_registry_is_found_by_shape(tmp_path: Path) -> None:
    parent = make_folder("llama", tmp_path / "parent")
    edit_config(parent, model_type="seed_oss", architectures=["SeedOssForCausalLM"], attention_out_bias=False)
    folder = read_folder(parent)
    assert folder.family is None
    grown = grow_pairs(folder, kinds=("attention", "ffn"), positions=(1, 3), out=tmp_path / "grown")
    assert "'seed_oss' is not in the registry: its layers are taken to be model.layers" in grown.notes[0]
    model = load_pretrained(tmp_path / "grown").eval()
    assert type(model).__mro__[2].__name__ == "SeedOssForCausalLM"
    assert torch.equal(logits(model, "llama"), logits(load_pretrained(parent).eval(), "llama"))


REFUSED: Mapping[str, tuple[str, dict[str, Any], dict[str, Any], str]] = {
    "an unknown kind": ("llama", {}, {"kinds": ("recurrent",)}, "--pair recurrent is not for"),
    "a source of runs": ("llama", {}, {"source": "copy"}, "--source 'copy' is not for"),
    "a place behind the end": ("llama", {}, {"positions": (5,)}, "expected numbers from 0 to 4"),
    "tokens in varying number": ("bert", {}, {"kinds": ("depthwise",)}, "the number of tokens varies"),
    "an odd width": ("gpt2", {"hidden_size": 33, "num_attention_heads": 3}, {}, "hidden size 33 of"),
    "heads that cannot be halved": ("bert", {"hidden_size": 36, "num_attention_heads": 3}, {}, "use --pair ffn"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_grown_is_refused(case: str, tmp_path: Path) -> None:
    name, options, growth, message = REFUSED[case]
    folder = read_folder(make_folder(name, tmp_path / "parent", **options))
    given = {"kinds": ("attention",), "positions": (1,), **growth}
    with pytest.raises(ConfigError, match=message) as caught:
        grow_pairs(folder, out=tmp_path / "grown", **given)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "grown").exists()


def test_where_heads_cannot_be_halved_ffn_pairs_can_be_built(tmp_path: Path) -> None:
    parent, grown = grown_folder(
        "bert", tmp_path, kinds=("ffn",), positions=(1,), hidden_size=36, num_attention_heads=3
    )
    assert torch.equal(logits(load_pretrained(grown).eval(), "bert"), logits(load(parent, "bert"), "bert"))


def test_depthwise_pairs_in_an_image_model(tmp_path: Path) -> None:
    parent, grown = grown_folder("vit", tmp_path, kinds=("depthwise",), positions=(0, 4))
    model = load_pretrained(grown).eval()
    before = logits(load(parent, "vit"), "vit")
    assert torch.equal(logits(model, "vit"), before)
    with torch.no_grad():
        model.vit.layers[3].pairs.p2.g_minus.output_projection().weight.mul_(-1)
    assert not torch.allclose(logits(model, "vit"), before)


def test_the_folder_says_what_it_is(tmp_path: Path) -> None:
    _, grown = grown_folder("llama", tmp_path)
    config = json.loads((grown / "config.json").read_text())
    assert (config["model_type"], config["base_model_type"]) == ("ppdgrow", "llama")
    assert "model_type" not in config["base"]
    assert config["architectures"] == ["PPDGrowForCausalLM"]
    assert config["auto_map"]["AutoModelForCausalLM"] == "modeling_ppdgrow.PPDGrowForCausalLM"
    assert "AutoModelForMaskedLM" not in config["auto_map"]
    assert "trust_remote_code=True" in (grown / "README.md").read_text()


@pytest.mark.parametrize("pairs", [None, {"blocks": None}, {"blocks": [{"id": "p1", "kind": "ffn"}]}])
def test_pairs_that_are_named_otherwise(pairs: Any, tmp_path: Path) -> None:
    _, grown = grown_folder("llama", tmp_path, kinds=("ffn",), positions=(1,))
    edit_config(grown, pairs=pairs)
    with pytest.raises(InvalidInputError, match=r"config.json.*pairs.blocks .*, expected"):
        grow_pairs(read_folder(grown), kinds=("ffn",), positions=(1,), out=tmp_path / "twice")
