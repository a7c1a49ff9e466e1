"""`train --only pairs` of a folder: what was grown since the last training moves, all else keeps type and bytes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from command_line import Command
from safetensors.torch import load_file, save_file
from text_folders import TINY, VALUES, add_tokenizer, step_folder, text_folder, trained, write_text
from tiny_models import COMMON, edit_config, tensors, transformers

from ppdgrow.pretrained.parent import read_pretrained


def weights(run: Path, step: int) -> dict[str, torch.Tensor]:
    return load_file(step_folder(run, step) / "model.safetensors")


def changed(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> set[str]:
    """Names of tensors that are of another type or value, or new."""
    same = {name for name in before if after[name].dtype == before[name].dtype and _same_bytes(before, after, name)}
    return after.keys() - same


def _same_bytes(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor], name: str) -> bool:
    return torch.equal(one[name].view(torch.uint8), other[name].view(torch.uint8))


@pytest.mark.parametrize(
    ("name", "dtype", "shards"), [("gpt2", "float32", False), ("llama", "bfloat16", True), ("bert", "float16", False)]
)
def test_the_parent_keeps_its_bytes_and_the_pairs_move(name: str, dtype: str, shards: bool) -> None:
    options = {} if dtype == "float32" else {"dtype": dtype, "shards": shards}
    folder, run = trained(name, pairs=True, **options)
    parent, grown, after = tensors(folder.parent / "parent"), tensors(folder), weights(run, 2)
    assert {tensor.dtype for tensor in parent.values()} == {getattr(torch, dtype)}
    pairs = grown.keys() - parent.keys()
    assert pairs
    assert changed(parent, after) == pairs
    for key in pairs:
        assert after[key].dtype == torch.float32, key
        assert not torch.equal(after[key], grown[key].float()), key


def test_control_without_only_all_weights_move_and_are_fp32() -> None:
    folder, run = trained("llama")
    after = weights(run, 2)
    assert changed(tensors(folder), after) == after.keys()
    assert {tensor.dtype for tensor in after.values()} == {torch.float32}


def test_mixed_types_of_a_model_without_a_head(ppdgrow: Command) -> None:
    """Names on the disk lack the prefix of the class that is trained; norms are in fp64, as no fp32 holds them."""
    write_text()
    config = transformers().BertConfig(**{**COMMON, "num_hidden_layers": 2})
    transformers().BertModel(config).bfloat16().save_pretrained("parent")
    add_tokenizer(Path("parent"))
    draw = torch.Generator().manual_seed(0)
    mixed = {
        name: torch.randn(tensor.shape, generator=draw, dtype=torch.float64) if "LayerNorm" in name else tensor
        for name, tensor in tensors(Path("parent")).items()
        if not name.startswith("pooler")
    }
    save_file(mixed, "parent/model.safetensors", metadata={"format": "pt"})
    before = {f"bert.{name}": tensor for name, tensor in mixed.items()}
    ppdgrow("grow parent --pair ffn --out grown --no-eval --quiet")
    line = "train grown --only pairs --steps 1 -o model.task=mlm --out one --json"
    assert ppdgrow(line, *TINY).document["step"] == 1
    ppdgrow("train one --only pairs --steps 1 --out two --quiet")
    one, two = weights(Path("one"), 1), weights(Path("two"), 2)
    head = {name for name in one if name.startswith("cls.")}
    pairs = {name for name in one if ".pairs.p1." in name}
    assert head
    assert changed(before, one) == changed(before, two) == head | pairs
    assert changed(one, two) == head | pairs


def test_new_layers_of_all_growths_since_the_last_training_are_new(ppdgrow: Command) -> None:
    write_text()
    text_folder("llama", Path("parent"), dtype="bfloat16")
    ppdgrow("grow parent --method zero --out one --no-eval --quiet")  # behind layer 2
    ppdgrow("grow one --method copy --position start --out two --no-eval --quiet")
    assert read_pretrained(Path("one")).architecture.newest == ("l3", "l4")
    assert read_pretrained(Path("two")).architecture.newest == ("l1", "l2", "l5", "l6")
    ppdgrow("train two --only pairs --steps 4 --out run --quiet", *TINY)
    before, after = tensors(Path("two")), weights(Path("run"), 4)
    moved = {name for name in before if name.startswith(tuple(f"model.layers.{number}." for number in (0, 1, 4, 5)))}
    assert changed(before, after) == moved
    assert not any(torch.equal(before[name].float(), after[name]) for name in moved)
    # Growth after training: only that is new, also where the run was saved elsewhere by Transformers in between.
    ppdgrow("grow run --pair ffn --out three --no-eval --quiet")
    transformers().AutoModelForCausalLM.from_pretrained(step_folder(Path("run"), 4)).save_pretrained("saved")
    (Path("saved") / "tokenizer.json").write_bytes(Path("parent/tokenizer.json").read_bytes())
    ppdgrow("grow saved --pair ffn --out four --no-eval --quiet")
    ppdgrow("grow four --pair ffn --out five --no-eval --quiet")
    assert read_pretrained(Path("saved")).architecture.newest == ("l1", "l2", "l5", "l6"), "it may be trained on"
    for folder, newest in (("three", ("p1",)), ("four", ("p1",)), ("five", ("p1", "p2"))):
        assert set(read_pretrained(Path(folder)).architecture.newest) == set(newest), folder


def test_what_was_taken_out_is_not_new(ppdgrow: Command) -> None:
    write_text()
    text_folder("bert", Path("parent"))
    ppdgrow("grow parent --pair ffn,attention --out grown --no-eval --quiet")
    ppdgrow("grow grown --remove last --out less --no-eval --quiet")
    assert read_pretrained(Path("less")).architecture.newest == ("p1",)
    ppdgrow("grow less --remove last --out none --no-eval --quiet")
    refused = ppdgrow("train none --only pairs --out run", *TINY, code=2)
    assert "no grown blocks" in refused.stderr
    assert refused.stderr.count("\n") == 1
    assert not Path("run").exists()


def test_a_run_that_goes_on_trains_the_same_blocks(ppdgrow: Command) -> None:
    _, run = trained("gpt2", pairs=True)
    ppdgrow(f"train {run} --only pairs --steps 1 --out on --quiet", "-o", f"train.lr={VALUES['train.lr']}")
    names = changed(weights(run, 2), weights(Path("on"), 3))
    assert names == {name for name in weights(run, 2) if ".pairs." in name}


@pytest.mark.parametrize(
    "lineage", ["text", ["text"], [{"new_layers": 3}], [{"new_layers": ["a"]}], [{"new_layers": [], "ids": [[]]}], {}]
)
def test_a_lineage_that_is_none_is_no_growth(lineage: object, tmp_path: Path) -> None:
    folder = text_folder("llama", tmp_path / "parent")
    edit_config(folder, ppdgrow={"lineage": lineage})
    found = read_pretrained(folder).architecture
    assert found.newest == ()
    assert "ppdgrow" not in found.config


def test_blocks_are_named_by_their_ids(ppdgrow: Command) -> None:
    write_text()
    folder, _ = trained("llama", pairs=True, dtype="bfloat16", shards=True)
    ppdgrow(f"train {folder} --only l2,p2 --steps 1 --out run --quiet", *TINY)
    moved = changed(tensors(folder), weights(Path("run"), 1))
    p1 = {name for name in weights(Path("run"), 1) if ".pairs.p1." in name}
    expected = {n for n in weights(Path("run"), 1) if n.startswith("model.layers.1.") or ".pairs.p2." in n} - p1
    assert moved == expected
    refused = ppdgrow(f"train {folder} --only l5 --steps 1 --out other", *TINY, code=2)
    assert "train.only names l5, but the blocks of the model are l1, l2, p1, l3, l4, p2" in refused.stderr
