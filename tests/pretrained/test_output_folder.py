"""What lies in a grown folder: all that belongs to the model, nothing that is only the parent's; whole or not there."""

from __future__ import annotations

import errno
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from full_disk import Disk
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tiny_models import load, logits, make_folder, read_config, tensors, transformers

from ppdgrow.atomic import sha256_file
from ppdgrow.errors import ConfigError, InvalidInputError, StorageError
from ppdgrow.pretrained import write
from ppdgrow.pretrained.folder import read_folder
from ppdgrow.pretrained.plain import grow_plain

INDEX = "model.safetensors.index.json"
CARRIED = {
    "tokenizer.json": "{}",
    "tokenizer_config.json": "{}",
    "special_tokens_map.json": "{}",
    "added_tokens.json": "{}",
    "vocab.txt": "a\nb\n",
    "merges.txt": "#version: 0.2\n",
    "chat_template.jinja": "{{ messages }}",
    "preprocessor_config.json": "{}",
    "LICENSE": "Apache",
    "NOTICE.md": "of somebody",
    "modeling_mine.py": "x = 1\n",
    "1_Pooling/config.json": '{"pooling_mode_mean_tokens": true}',
    "2_Dense/pytorch_model.bin": "weights of the next module",
    "modules.json": '[{"path": ""}, {"path": "1_Pooling"}, {"path": "2_Dense"}]',
}
LEFT = {
    "pytorch_model.bin": "old weights",
    "tf_model.h5": "old weights",
    "onnx/model.onnx": "old weights",
    "onnx/config.json": "{}",
    "consolidated.safetensors": "old weights",
    "optimizer.pt": "state",
    ".gitattributes": "lfs",
    ".cache/huggingface/x.lock": "",
}
CARD = "---\nlicense: apache-2.0\nlanguage: en\n---\n\n# Parent\n\nIts story.\n"


def fill(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


@pytest.fixture
def parent(tmp_path: Path) -> Path:
    return make_folder("llama", tmp_path / "parent")


def grow(parent: Path, out: Path, method: Any = "zero") -> Any:
    return grow_plain(read_folder(parent), method=method, positions=(2,), out=out)


def test_what_belongs_to_the_model_goes_along(parent: Path, tmp_path: Path) -> None:
    fill(parent, {**CARRIED, **LEFT, "README.md": CARD})
    grown = grow(parent, tmp_path / "grown")
    found = {file.relative_to(grown.out).as_posix() for file in grown.out.rglob("*") if file.is_file()}
    written = {"config.json", "README.md", "README.parent.md", INDEX}
    written |= {f"model-0000{number}-of-00002.safetensors" for number in (1, 2)}
    assert found == {*CARRIED, *written, "generation_config.json"}
    for name in (*CARRIED, "generation_config.json"):
        assert (grown.out / name).read_bytes() == (parent / name).read_bytes()
    assert "pytorch_model.bin" in grown.notes[-1]
    assert "onnx" in grown.notes[-1]
    assert all(
        file.stat().st_mode & 0o777 == (parent / "LICENSE").stat().st_mode & 0o777
        for file in grown.out.iterdir()
        if file.is_file()
    )


def test_links_do_not_carry_other_peoples_files_along(parent: Path, tmp_path: Path) -> None:
    fill(tmp_path / "elsewhere", {"secret.txt": "secret"})
    (parent / "extra").symlink_to(tmp_path / "elsewhere")
    grown = grow(parent, tmp_path / "grown")
    assert not (grown.out / "extra").exists()
    assert "extra" in grown.notes[-1]
    (parent / "tokenizer.json").symlink_to(tmp_path / "elsewhere" / "secret.txt")
    with pytest.raises(InvalidInputError, match="a symlink that leads out"):
        grow(parent, tmp_path / "again")
    assert not (tmp_path / "again").exists()


def test_the_card_tells_where_it_comes_from(parent: Path, tmp_path: Path) -> None:
    fill(parent, {"README.md": CARD})
    grow(parent, tmp_path / "grown")
    text = (tmp_path / "grown" / "README.md").read_text()
    assert text.startswith("---\nlicense: apache-2.0\nlanguage: en\n---\n\n# grown\n\nparent, made deeper with ppdgrow")
    assert "| layers | 4 -> 6 |" in text
    assert "model.layers.2, model.layers.3" in text
    assert "identical to the bit" in text
    assert "Its story" not in text
    assert (tmp_path / "grown" / "README.parent.md").read_text() == CARD
    grow(tmp_path / "grown", tmp_path / "again", "copy")
    text = (tmp_path / "again" / "README.md").read_text()
    assert text.startswith("---\nlicense: apache-2.0")
    assert len(re.findall("^- ", text, re.MULTILINE)) == 2
    assert "identical to the bit" not in text
    assert (tmp_path / "again" / "README.parent.md").read_text() == CARD


def test_a_parent_without_a_card(parent: Path, tmp_path: Path) -> None:
    (parent / "README.md").unlink(missing_ok=True)
    grown = grow(parent, tmp_path / "grown")
    assert (grown.out / "README.md").read_text().startswith("# grown\n")
    assert not (grown.out / "README.parent.md").exists()


@pytest.mark.parametrize("shards", [False, True])
def test_the_parents_files_keep_their_data_and_new_layers_have_their_own(shards: bool, tmp_path: Path) -> None:
    parent = make_folder("llama", tmp_path / "parent", shards=shards)
    for file in parent.glob("*.safetensors"):
        save_file(load_file(file), file, metadata={"format": "pt", "made by": "somebody"})
    before = read_folder(parent)
    grown = grow(parent, tmp_path / "grown")
    after = read_folder(grown.out)
    assert len(after.files) == len(before.files) + 1
    for old, new in zip(before.files, after.files, strict=False):
        assert data(parent / old) == data(grown.out / new)
        assert after.metadata[new] == {"format": "pt", "made by": "somebody"}
    last = {name for name, entry in after.entries.items() if entry.file == after.files[-1]}
    assert {name.split(".")[2] for name in last} == {"2", "3"}
    index = json.loads((grown.out / INDEX).read_text())
    assert index["weight_map"] == {name: entry.file for name, entry in after.entries.items()}
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in tensors(grown.out).values())
    assert all(entry.start % 8 == 0 for entry in after.entries.values())


def data(path: Path) -> bytes:
    raw = path.read_bytes()
    return raw[8 + int.from_bytes(raw[:8], "little") :]


def test_new_layers_fill_several_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write, "SHARD_BYTES", 30_000)
    parent = make_folder("gemma3_text", tmp_path / "parent", dtype="bfloat16")
    grown = grow(parent, tmp_path / "grown", "copy")
    assert len(read_folder(grown.out).files) > 2
    assert load(grown.out, "gemma3_text").num_parameters() == grown.parameters_after


def test_tensors_of_several_types_keep_theirs(parent: Path, tmp_path: Path) -> None:
    held = load_file(parent / "model.safetensors")
    mixed = {name: tensor if "norm" in name else tensor.bfloat16() for name, tensor in held.items()}
    save_file(mixed, parent / "model.safetensors", metadata={"format": "pt"})
    for method in ("zero", "copy", "fresh"):
        grown = grow(parent, tmp_path / method, method)
        for name, tensor in tensors(grown.out).items():
            assert tensor.dtype == (torch.float32 if "norm" in name else torch.bfloat16)


def test_buffers_and_names_of_older_versions_go_along(tmp_path: Path) -> None:
    parent = make_folder("gpt2", tmp_path / "parent")
    held = load_file(parent / "model.safetensors")
    old = {name.removeprefix("transformer."): tensor for name, tensor in held.items()}
    old |= {f"h.{number}.attn.bias": torch.ones(1, 1, 64, 64).tril() for number in range(4)}
    save_file(old, parent / "model.safetensors", metadata={"format": "pt"})
    folder = read_folder(parent)
    assert folder.parameters == load_quietly(parent).num_parameters()
    grown = grow(parent, tmp_path / "grown")
    assert grown.parameters_after == load_quietly(grown.out).num_parameters()
    assert "h.5.attn.bias" in tensors(grown.out)
    assert torch.equal(logits(load_quietly(parent), "gpt2"), logits(load_quietly(grown.out), "gpt2"))
    fresh = grow(parent, tmp_path / "fresh", "fresh")
    assert torch.equal(tensors(fresh.out)["h.2.attn.bias"], old["h.1.attn.bias"])


def load_quietly(path: Path) -> Any:
    """With tensors in the files that the model does not take."""
    return transformers().GPT2LMHeadModel.from_pretrained(path).eval()


def test_old_names_of_norms_are_understood(tmp_path: Path) -> None:
    parent = make_folder("bert", tmp_path / "parent")
    held = load_file(parent / "model.safetensors")
    old = {re.sub(r"LayerNorm\.weight$", "LayerNorm.gamma", name): tensor for name, tensor in held.items()}
    old = {re.sub(r"LayerNorm\.bias$", "LayerNorm.beta", name): tensor for name, tensor in old.items()}
    save_file(old, parent / "model.safetensors", metadata={"format": "pt"})
    grown = grow(parent, tmp_path / "grown", "fresh")
    drawn = tensors(grown.out)["bert.encoder.layer.2.output.LayerNorm.gamma"]
    assert torch.equal(drawn, torch.ones(32))
    load(grown.out, "bert")


def test_names_that_the_model_does_not_know_cannot_be_drawn(parent: Path, tmp_path: Path) -> None:
    held = load_file(parent / "model.safetensors")
    more = {name.replace("up_proj", "w3"): tensor.clone() for name, tensor in held.items() if "up_proj" in name}
    save_file(held | more, parent / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"has no mlp\.w3\.weight of shape \[48, 32\].*save_pretrained"):
        grow(parent, tmp_path / "grown", "fresh")
    assert not (tmp_path / "grown").exists()


@pytest.mark.parametrize("place", [".", "inside", ".."])
def test_nothing_is_written_into_the_parent(place: str, parent: Path) -> None:
    before = {file.name: sha256_file(file) for file in parent.iterdir()}
    with pytest.raises(ConfigError, match="lie in each other"):
        grow(parent, parent / place)
    assert {file.name: sha256_file(file) for file in parent.iterdir()} == before


def test_what_is_there_is_not_overwritten(parent: Path, tmp_path: Path) -> None:
    (tmp_path / "grown").mkdir()
    (tmp_path / "grown" / "mine.txt").write_text("mine")
    with pytest.raises(ConfigError, match="not empty"):
        grow(parent, tmp_path / "grown")
    (tmp_path / "grown" / "mine.txt").unlink()
    assert grow(parent, tmp_path / "grown").layers_after == 6


def test_a_full_disk_in_mid_write_leaves_nothing(parent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(parent, CARRIED)
    disk = Disk()
    monkeypatch.setattr(os, "fsync", disk.fsync)
    grow(parent, tmp_path / "counted")
    flushes = disk.empty()
    assert flushes > len(CARRIED)
    for at in (1, flushes // 2, flushes - 1):
        disk.fill(at)
        with pytest.raises(StorageError, match="No space left") as found:
            grow(parent, tmp_path / "grown")
        disk.empty()
        assert found.value.exit_code == 6
        assert sorted(path.name for path in tmp_path.iterdir()) == ["counted", "parent"]
    grow(parent, tmp_path / "grown")


def test_a_write_that_fails_is_no_fault_of_the_parent(
    parent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, chunks: Any) -> int:
        next(iter(chunks))
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(write, "_write_chunks", full)
    with pytest.raises(StorageError, match="No space left"):
        grow(parent, tmp_path / "grown")
    assert [path.name for path in tmp_path.iterdir()] == ["parent"]


def test_too_little_space_is_said_before_the_first_byte(
    parent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write, "free_bytes", lambda path: 1000)
    monkeypatch.setattr(write, "new_folder", None)
    with pytest.raises(StorageError, match=r"needed, .* free"):
        grow(parent, tmp_path / "grown")


def test_the_space_that_is_asked_for_is_what_is_written(
    parent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where what is carried along is more than the weights."""
    (parent / "tokenizer.json").write_text('"' + 300_000 * "x" + '"')
    written = sum(file.stat().st_size for file in grow(parent, tmp_path / "grown").out.iterdir())
    monkeypatch.setattr(write, "free_bytes", lambda path: written - 1)
    with pytest.raises(StorageError, match=r"needed, .* free"):
        grow(parent, tmp_path / "other")
    monkeypatch.setattr(write, "free_bytes", lambda path: written + 20_000)
    grow(parent, tmp_path / "other")


def test_a_parent_that_shrinks_meanwhile(parent: Path, tmp_path: Path) -> None:
    folder = read_folder(parent)
    (parent / "model.safetensors").write_bytes((parent / "model.safetensors").read_bytes()[:-4000])
    with pytest.raises(InvalidInputError, match="became shorter"):
        grow_plain(folder, method="copy", positions=(4,), out=tmp_path / "grown")
    assert [path.name for path in tmp_path.iterdir()] == ["parent"]


def test_every_weight_file_is_one_to_the_library(parent: Path, tmp_path: Path) -> None:
    grown = grow(parent, tmp_path / "grown")
    for file in grown.out.glob("*.safetensors"):
        with safe_open(file, framework="pt") as opened:
            assert opened.metadata() == {"format": "pt"}
    assert read_config(grown.out)["architectures"] == ["LlamaForCausalLM"]
