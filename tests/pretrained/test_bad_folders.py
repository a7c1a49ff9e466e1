"""Folders that cannot be deepened: one line that says what was found and a way out, and the right code."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import edit_config, make_folder

from ppdgrow.checkpoint.safe_read import WAY_OUT
from ppdgrow.errors import ConfigError, InvalidInputError
from ppdgrow.pretrained.folder import read_folder
from ppdgrow.pretrained.recognition import is_pretrained

INDEX = "model.safetensors.index.json"
Damage = Callable[[Path], Any]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder("llama", tmp_path_factory.mktemp("models") / "llama", shards=True)


@pytest.fixture
def folder(good: Path, tmp_path: Path) -> Path:
    """A sharded Llama, to be damaged."""
    return Path(shutil.copytree(good, tmp_path / "llama"))


def edit_index(folder: Path, edit: Callable[[dict[str, str]], Any]) -> None:
    document = json.loads((folder / INDEX).read_text())
    edit(document["weight_map"])
    (folder / INDEX).write_text(json.dumps(document))


def only_pickled(folder: Path, name: str = "pytorch_model.bin") -> None:
    for file in (*folder.glob("*.safetensors"), folder / INDEX):
        file.unlink()
    (folder / name).write_bytes(b"anything")


def edit_shard(folder: Path, edit: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    shard = sorted(folder.glob("*.safetensors"))[-1]
    tensors = load_file(shard)
    edit(tensors)
    save_file(tensors, shard, metadata={"format": "pt"})
    edit_index(folder, lambda index: index.update(dict.fromkeys(tensors, shard.name)))


def retype(tensors: dict[str, torch.Tensor], dtype: torch.dtype) -> None:
    name = next(name for name in tensors if name.endswith("down_proj.weight"))
    tensors[name] = tensors[name].to(dtype)


def cut(folder: Path) -> None:
    shard = sorted(folder.glob("*.safetensors"))[0]
    shard.write_bytes(shard.read_bytes()[:-8])


def drop_layer(index: dict[str, str]) -> None:
    for name in [name for name in index if ".layers.3." in name]:
        del index[name]


def replace_folder(folder: Path, files: dict[str, str]) -> None:
    shutil.rmtree(folder)
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text)


def typed(**config: Any) -> Damage:
    return lambda folder: edit_config(folder, **config)


BAD: dict[str, tuple[Damage, str]] = {
    "pickled weights": (only_pickled, r"pytorch_model\.bin.*expected safetensors.*save_pretrained"),
    "pickled shards": (
        lambda folder: only_pickled(folder, "pytorch_model-00001-of-00002.bin"),
        r"expected safetensors.*save_pretrained",
    ),
    "no weights": (lambda folder: only_pickled(folder, "notes.txt"), r"no weights: neither .*fresh copy"),
    "a missing shard": (
        lambda folder: sorted(folder.glob("*.safetensors"))[0].unlink(),
        r"model-00001-of-.*missing.*fresh copy",
    ),
    "a shard that is cut": (cut, r"not a whole safetensors file.*fresh copy"),
    "an index that leads out": (
        lambda folder: edit_index(folder, lambda index: index.update(x="../outside.safetensors")),
        r"'\.\./outside\.safetensors' is not plain",
    ),
    "an index with an absolute path": (
        lambda folder: edit_index(folder, lambda index: index.update(x="/etc/passwd.safetensors")),
        r"is not plain",
    ),
    "an index with a tensor that is nowhere": (
        lambda folder: edit_index(folder, lambda index: index.update(x=next(iter(index.values())))),
        r"'x' is listed for .* but not in it",
    ),
    "an index without some tensors": (lambda folder: edit_index(folder, drop_layer), r"is not listed in"),
    "an empty index": (lambda folder: edit_index(folder, dict.clear), r"expected a 'weight_map'"),
    "a tensor in two shards": (
        lambda folder: save_file({"lm_head.weight": torch.ones(2)}, sorted(folder.glob("*.safetensors"))[0]),
        r"tensor 'lm_head\.weight' is in 'model-00001-of-.* too",
    ),
    "no numbered layers": (
        lambda folder: save_file({"weight": torch.ones(2)}, folder / "model.safetensors"),
        r"no numbered layers.*fresh copy",
    ),
    "more layers in the config": (typed(num_hidden_layers=5), r"num_hidden_layers is 5.*have 4 layers.*fresh copy"),
    "fewer layers in the config": (typed(num_hidden_layers=3), r"num_hidden_layers is 3.*have 4 layers"),
    "no layers in the config": (typed(num_hidden_layers=0), r"num_hidden_layers is 0, expected"),
    "a config that Transformers refuses": (typed(hidden_size="wide"), r"Transformers [\d.]+ refuses it"),
    "bitsandbytes": (
        typed(quantization_config={"quant_method": "bitsandbytes", "load_in_4bit": True}),
        r"quantised \(bitsandbytes\).*original folder",
    ),
    "GPTQ": (typed(quantization_config={"quant_method": "gptq", "bits": 4}), r"quantised \(gptq\)"),
    "GPTQ that the config hides": (
        lambda folder: edit_shard(
            folder, lambda new: new.update({"model.layers.3.mlp.up_proj.qweight": torch.ones(2)})
        ),
        r"qweight' \(F32\) is quantised",
    ),
    "weights of 8 bits": (
        lambda folder: edit_shard(folder, lambda new: retype(new, torch.int8)),
        r"down_proj\.weight' \(I8\) is quantised",
    ),
    "weights in fp8": (
        lambda folder: edit_shard(folder, lambda new: retype(new, torch.float8_e4m3fn)),
        r"\(F8_E4M3\) is quantised",
    ),
    "GGUF": (
        lambda folder: replace_folder(folder, {"model.Q4_K_M.gguf": "GGUF"}),
        r"is a GGUF file.*safetensors",
    ),
    "a LoRA adapter": (
        lambda folder: replace_folder(folder, {"adapter_config.json": "{}", "adapter_model.safetensors": ""}),
        r"has an adapter.*merge_and_unload",
    ),
    "an adapter beside its model": (
        lambda folder: (folder / "adapter_config.json").write_text("{}"),
        r"has an adapter.*merge_and_unload",
    ),
    "a mixture of experts": (
        typed(model_type="mixtral", num_local_experts=8),
        r"'mixtral' is a mixture of experts \(num_local_experts: 8\).*dense",
    ),
    "a mixture of experts by default": (typed(model_type="qwen3_moe"), r"'qwen3_moe' is a mixture of experts"),
    "a vision-language model": (
        typed(
            model_type="llava", text_config={"model_type": "llama"}, vision_config={"model_type": "clip_vision_model"}
        ),
        r"'llava' has several parts \(.*text_config",
    ),
    "gemma 3 with eyes": (typed(model_type="gemma3"), r"'gemma3' has several parts"),
    "an encoder and a decoder": (typed(model_type="t5"), r"'t5' has an encoder and a decoder"),
    "shared layers": (typed(model_type="albert"), r"'albert' shares weights between its layers"),
    "an unknown model_type": (
        typed(model_type="llama9"),
        r"'llama9' is not known to Transformers [\d.]+: pip install -U",
    ),
    "a model with code of its own": (
        typed(model_type="mine", auto_map={"AutoModel": "code.Mine"}),
        r"'mine' is not known .* code of its own, which ppdgrow does not run",
    ),
    "a model_type that is no text": (typed(model_type=7), r"expected a 'model_type'"),
    "a config that is no JSON": (
        lambda folder: (folder / "config.json").write_text('{"model_type": "llama",'),
        r"not valid JSON.*fresh copy",
    ),
    "a config with a byte order mark": (
        lambda folder: (folder / "config.json").write_text('\ufeff{"model_type": "llama"}', encoding="utf-8"),
        r"config\.json': not valid JSON \(it begins with a byte order mark.*fresh copy",
    ),
    "a git-lfs pointer": (
        lambda folder: sorted(folder.glob("*.safetensors"))[0].write_text("version https://git-lfs.github.com/spec/v1"),
        r"git-lfs pointer",
    ),
    "pairs without a parent": (typed(model_type="ppdgrow"), r"expected 'base' and 'base_model_type'"),
}


@pytest.mark.parametrize("fault", BAD)
def test_it_is_refused_in_one_line(fault: str, folder: Path) -> None:
    damage, message = BAD[fault]
    assert read_folder(folder).num_layers == 4, "control: it was whole before"
    damage(folder)
    assert is_pretrained(folder), "so that the commands come here"
    with pytest.raises(InvalidInputError, match=message) as found:
        read_folder(folder)
    said = str(found.value)
    assert "\n" not in said
    assert WAY_OUT not in said, "there are no older checkpoints of somebody else's model"
    assert str(folder) in said
    assert found.value.exit_code == 4


def test_a_quantisation_of_null_is_none(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": None}))
    assert read_folder(folder).num_layers == 4


def test_a_link_that_leads_out_is_not_followed(folder: Path, tmp_path: Path) -> None:
    shard = sorted(folder.glob("*.safetensors"))[0]
    shard.rename(tmp_path / "elsewhere.safetensors")
    shard.symlink_to(tmp_path / "elsewhere.safetensors")
    with pytest.raises(InvalidInputError, match="a symlink that leads out"):
        read_folder(folder)


@pytest.mark.parametrize("content", ["{}", "[]", '{"family": "transformer"}'])
def test_control_other_folders_are_none_of_transformers(content: str, tmp_path: Path) -> None:
    assert not is_pretrained(tmp_path)
    assert not is_pretrained(tmp_path / "missing")
    (tmp_path / "config.json").write_text(content)
    assert not is_pretrained(tmp_path)


def test_without_transformers_the_way_out_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.setitem(sys.modules, "transformers.models.auto.configuration_auto", None)
    with pytest.raises(ConfigError, match=r"pip install 'ppdgrow\[hf\]'"):
        read_folder(folder)


def test_a_layer_list_can_be_named(folder: Path) -> None:
    assert read_folder(folder, "model.layers").layers == "model.layers."
    assert read_folder(folder, "layers").layers == "model.layers."
    with pytest.raises(ConfigError, match=r"--layer-path 'blocks'.*which has model\.layers"):
        read_folder(folder, "blocks")


def test_a_single_file_is_taken_before_an_index_as_transformers_does(folder: Path) -> None:
    whole = {name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}
    save_file(whole, folder / "model.safetensors")
    (folder / INDEX).write_text("not read")
    assert read_folder(folder).files == ("model.safetensors",)
