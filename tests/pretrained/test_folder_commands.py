"""`grow` and `probe` of folders of Transformers, as commands: what they say, write and refuse."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from command_line import Command, snapshot
from safetensors.torch import load_file, save_file
from tiny_models import MODELS, POST_NORM, PRE_NORM, make_folder, transformers

import ppdgrow as package
from ppdgrow.pretrained.check import same_outputs

CPU = torch.device("cpu")


@pytest.fixture
def parent(ppdgrow: Command) -> Path:
    return make_folder("llama", Path("hf/parent"))


def edit_weights(folder: Path, which: str, change: float) -> None:
    """Add to all tensors whose name has `which` in it."""
    for file in folder.glob("*.safetensors"):
        tensors = load_file(file)
        changed = {name: tensor + change if which in name else tensor for name, tensor in tensors.items()}
        save_file(changed, file, metadata={"format": "pt"})


@pytest.mark.parametrize("name", MODELS)
def test_pairs_are_put_in_measured_and_probed(name: str, ppdgrow: Command) -> None:
    make_folder(name, Path("parent"))
    grown = ppdgrow("grow parent --pair attention,ffn --pairs 2 --out grown --json").document
    assert grown["bit_exact"] is True
    assert (grown["layers_before"], grown["layers_after"], grown["pairs"]) == (4, 8, ["p1", "p2"])
    assert grown["parameters_after"] > grown["parameters_before"]
    assert (grown["run"], grown["checkpoint"], grown["parent"]) == ("grown", "grown", "parent")
    found = ppdgrow("probe grown --json").document
    assert found["passed"] is True
    assert [pair["id"] for pair in found["pairs"]] == ["p1", "p2"]
    for pair in found["pairs"]:
        assert pair["tied"] is True
        assert pair["gradient_norm"] > 0
        assert pair["gradient_antisymmetry"] == 0
        assert {figure["max_abs"] for figure in pair["cancellation"].values()} == {0}
        assert {"fp32", "bf16"} <= pair["cancellation"].keys()


@pytest.mark.parametrize("name", PRE_NORM)
def test_zeroed_layers_keep_the_outputs(name: str, ppdgrow: Command) -> None:
    make_folder(name, Path("parent"))
    grown = ppdgrow("grow parent --method zero --out grown --json").document
    assert (grown["bit_exact"], grown["layers_after"]) == (True, 6)
    assert ppdgrow("probe grown --json").document["pairs"] == []


@pytest.mark.parametrize("name", POST_NORM)
def test_zeroed_layers_are_refused_where_the_stream_is_normalised(name: str, ppdgrow: Command) -> None:
    make_folder(name, Path("parent"))
    refused = ppdgrow("grow parent --method zero --out grown", code=2)
    assert "grow it by pairs" in refused.stderr
    assert not Path("grown").exists()


def test_copied_layers_change_the_outputs_and_that_is_said(parent: Path, ppdgrow: Command) -> None:
    grown = ppdgrow(f"grow {parent} --method copy --out grown")
    assert "the outputs differ" in grown.stdout
    assert json.loads(Path("grown/growth.jsonl").read_text())["bit_exact"] is False


def test_control_a_changed_weight_is_seen(parent: Path, ppdgrow: Command) -> None:
    ppdgrow(f"grow {parent} --pair attention --out grown")
    assert same_outputs(parent, Path("grown"), CPU)
    edit_weights(Path("grown"), "f_minus.attention.o_proj", 1e-3)
    assert not same_outputs(parent, Path("grown"), CPU)
    found = ppdgrow("probe grown --json").document
    (pair,) = found["pairs"]
    assert found["passed"] is True
    assert pair["tied"] is False
    assert pair["separation"] > 0
    assert pair["activity"] > 0
    assert 0 < pair["round_trips"]["fp32"] < pair["bound"]["fp32"]


def test_outputs_that_are_not_numbers_are_no_proof(parent: Path, ppdgrow: Command) -> None:
    """Negative control of the check at growth: what cannot be compared is not written."""
    edit_weights(parent, "layers.3.mlp.down_proj", float("nan"))
    refused = ppdgrow(f"grow {parent} --pair ffn --out grown", code=7)
    assert "nothing was written" in refused.stderr
    assert [path.name for path in Path().iterdir()] == ["hf"]
    assert "not finite" in ppdgrow(f"probe {parent}", code=5).stderr


def test_without_comparison_no_model_is_built(parent: Path, ppdgrow: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ppdgrow.growth.folder.same_outputs", None)
    grown = ppdgrow(f"grow {parent} --pair ffn --no-eval --out grown")
    assert "not compared (--no-eval)" in grown.stdout
    assert json.loads(Path("grown/growth.jsonl").read_text())["bit_exact"] is None


def test_a_second_growth_keeps_the_lineage_and_the_input_is_only_read(parent: Path, ppdgrow: Command) -> None:
    before = snapshot()
    ppdgrow(f"grow {parent} --pair ffn --out one")
    second = ppdgrow("grow one --pair attention-first,attention-first --out two --json").document
    assert (second["layers_before"], second["layers_after"], second["pairs"]) == (6, 10, ["p2", "p3"])
    events = [json.loads(line) for line in Path("two/growth.jsonl").read_text().splitlines()]
    assert [event["parent"] for event in events] == ["hf/parent", "one"]
    assert before.items() <= snapshot().items()


def test_a_pair_is_taken_out_again(parent: Path, ppdgrow: Command) -> None:
    ppdgrow(f"grow {parent} --pair ffn,attention --out grown")
    less = ppdgrow("grow grown --remove last --out less --json").document
    assert (less["layers_before"], less["layers_after"], less["pairs"], less["bit_exact"]) == (8, 6, ["p2"], True)
    none = ppdgrow("grow less --remove p1 --out none")
    assert "identical to the last bit" in none.stdout
    assert same_outputs(parent, Path("none"), CPU)
    assert "already done" in ppdgrow("grow less --remove p1 --out none").stderr
    assert "has the pairs p1" in ppdgrow("grow less --remove p2 --out other", code=2).stderr


def test_a_repeated_growth_is_done_and_another_one_is_refused(parent: Path, ppdgrow: Command) -> None:
    given = f"grow {parent} --pair ffn --out grown"
    ppdgrow(given)
    before = snapshot()
    assert "already done" in ppdgrow(given).stderr
    other = ppdgrow(f"grow {parent} --pair attention --out grown", code=2)
    assert "holds something else" in other.stderr
    assert snapshot() == before


def test_without_a_place_a_folder_beside_the_input_is_named(parent: Path, ppdgrow: Command) -> None:
    grown = ppdgrow(f"grow {parent} --pair ffn")
    out = Path(grown.stdout.splitlines()[-1])
    assert out.parent == parent.parent
    assert out.name.startswith("parent-grown-")
    assert ppdgrow(f"grow {parent} --pair attention").stdout.splitlines()[-1] != str(out)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--pair", "ffn", "--out", "hf/parent"), 2, "is the input or in it"),
        (("--pair", "ffn", "--out", "hf/parent/grown"), 2, "is the input or in it"),
        (("--pair", "depthwise", "--out", "grown"), 2, "the number of tokens varies"),
        (("--pair", "recurrent", "--out", "grown"), 2, "recurrent"),
        (("--pair", "ffn", "--source", "copy", "--out", "grown"), 2, "expected slice or random"),
        (("--pair", "ffn", "--position", "9", "--out", "grown"), 2, "position 9 does not exist"),
        (("--remove", "last", "--out", "grown"), 2, "has the pairs none"),
        (("--pair", "ffn", "--layer-path", "model.nothing", "--out", "grown"), 2, "--layer-path"),
    ],
)
def test_what_does_not_fit_is_refused(
    words: tuple[str, ...], code: int, said: str, parent: Path, ppdgrow: Command
) -> None:
    before = snapshot()
    refused = ppdgrow(f"grow {parent}", *words, code=code)
    assert said in refused.stderr
    assert refused.stderr.count("\n") == 1
    assert snapshot() == before


@pytest.mark.parametrize("words", [("--plot", "x.svg"), ("--sample", "a"), ("--precision", "bf16")])
def test_probe_refuses_what_needs_data(words: tuple[str, ...], parent: Path, ppdgrow: Command) -> None:
    refused = ppdgrow(f"probe {parent}", *words, code=2)
    assert words[0] in refused.stderr


def test_training_says_what_it_lacks_in_such_a_folder(parent: Path, ppdgrow: Command) -> None:
    refused = ppdgrow(f"train {parent}", code=2)
    assert "'hf/parent' has no tokenizer.json" in refused.stderr
    assert refused.stderr.count("\n") == 1


def test_comparison_says_what_it_needs_beside_such_a_folder(parent: Path, ppdgrow: Command) -> None:
    refused = ppdgrow(f"compare {parent} {parent}", code=2)
    assert "a folder of Transformers, which has no loss of its own" in refused.stderr


def test_commands_on_runs_do_not_import_transformers(tmp_path: Path) -> None:
    """From the first step to the comparison."""
    code = """
import sys, ppdgrow
values = {"model.layers": 1, "model.width": 16, "model.heads": 2, "data.sequence_length": 16, "train.steps": 2}
values |= {"data.name": "words.txt", "train.batch_size": 2, "train.eval_batches": 1, "train.decay": False}
ppdgrow.train(values=values, out="s", quiet=True)
ppdgrow.grow("s", out="g", quiet=True)
ppdgrow.train("g", values={"train.steps": 2}, out="t", quiet=True)
ppdgrow.probe("t", quiet=True)
ppdgrow.compare("s", "t", quiet=True)
ppdgrow.load("t")
print("transformers" in sys.modules)
"""
    (tmp_path / "words.txt").write_text("some words and others\n" * 200)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path, env=environment()
    )
    assert done.stdout.strip() == "False", done.stderr


def environment() -> dict[str, str]:
    """That of the tests, with the package that they import."""
    return {**os.environ, "PYTHONPATH": str(Path(package.__file__).parents[1])}


@pytest.mark.parametrize("line", ["grow hf/parent --pair ffn", "probe hf/parent"])
def test_without_transformers_the_way_out_is_named(
    line: str, parent: Path, ppdgrow: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "transformers"]:
        monkeypatch.setitem(sys.modules, name, None)
    assert "pip install 'ppdgrow[hf]'" in ppdgrow(line, code=2).stderr


def test_a_repeated_growth_of_another_parent_or_with_a_damaged_result_is_refused(
    parent: Path, ppdgrow: Command
) -> None:
    line = f"grow {parent} --pair ffn --out grown"
    ppdgrow(line)
    edit_weights(parent, "layers", 0.1)
    assert "holds something else" in ppdgrow(line, code=2).stderr
    ppdgrow(f"grow {parent} --pair ffn --out again")
    Path("again/model-00001-of-00002.safetensors").unlink()
    refused = ppdgrow(f"grow {parent} --pair ffn --out again", code=4)
    assert "model-00001-of-00002.safetensors" in refused.stderr


def save(model_class: str, config_class: str, **options: object) -> None:
    library = transformers()
    config = getattr(library, config_class)(**options)
    getattr(library, model_class)(config).save_pretrained("other")


def test_zero_that_is_no_identity_is_not_written(ppdgrow: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a model that is not in the registry nothing is known but what its outputs say."""
    monkeypatch.setattr("ppdgrow.pretrained.folder.FAMILIES", {})
    save("DistilBertForMaskedLM", "DistilBertConfig", dim=32, hidden_dim=48, n_layers=3, n_heads=4, vocab_size=99)
    refused = ppdgrow("grow other --method zero --out grown", code=7)
    assert "nothing was written" in refused.stderr
    assert not Path("grown").exists()


def test_a_model_without_learned_positions_is_compared(ppdgrow: Command) -> None:
    save("BloomForCausalLM", "BloomConfig", hidden_size=32, n_layer=3, n_head=4, vocab_size=99)
    assert ppdgrow("grow other --method copy --out grown --json").document["bit_exact"] is False
    assert len(ppdgrow("probe grown --json").document["blocks"]) == 5


@pytest.mark.parametrize("command", ["grow", "probe"])
@pytest.mark.parametrize("content", ["[]", "", "{", None])
def test_a_damaged_config_is_named(content: str | None, command: str, parent: Path, ppdgrow: Command) -> None:
    config = parent / "config.json"
    config.unlink()
    if content is not None:
        config.write_text(content)
    refused = ppdgrow(f"{command} {parent}", code=4)
    assert "config.json" in refused.stderr
    assert "run folder" not in refused.stderr


def test_options_that_do_nothing_are_named(parent: Path, ppdgrow: Command) -> None:
    grown = ppdgrow(f"grow {parent} --pair ffn --moments copy --precision fp32 --out grown")
    for option in ("--moments", "--precision"):
        assert f"{option} does nothing to a folder of Transformers" in grown.stderr
    assert "does nothing" not in ppdgrow(f"grow {parent} --pair ffn --out other").stderr


def test_what_a_folder_lacks_is_drawn_alike_for_both(ppdgrow: Command) -> None:
    """A model without its pooler, as many on the hub are, whose class has one."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    save("BertModel", "BertConfig", **sizes, vocab_size=99)
    file = Path("other/model.safetensors")
    kept = {name: tensor for name, tensor in load_file(file).items() if not name.startswith("pooler")}
    save_file(kept, file, metadata={"format": "pt"})
    assert ppdgrow("grow other --pair ffn --out grown --json").document["bit_exact"] is True


def test_several_choices_are_compared(ppdgrow: Command) -> None:
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    save("BertForMultipleChoice", "BertConfig", **sizes, vocab_size=99)
    assert ppdgrow("grow other --method copy --out grown --json").document["bit_exact"] is False
