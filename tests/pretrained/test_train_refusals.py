"""What `train` refuses of a folder, or of what is asked of it: one line, the right exit code, nothing left behind."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import Command, snapshot
from safetensors.torch import load_file, save_file
from text_folders import TINY, add_tokenizer, tiny, trained, write_text
from tiny_models import edit_config, make_folder, transformers

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "vocab_size": 99}
Refused = Callable[..., str]


@pytest.fixture
def refused(ppdgrow: Command) -> Refused:
    """The one line that a command ends with, after which everything is as it was before."""
    write_text()

    def run(line: str, *more: str, code: int) -> str:
        before = snapshot()
        failed = ppdgrow(line, *tiny(*more), code=code)
        assert failed.stderr.count("\n") == 1, failed.stderr
        assert failed.stdout == ""
        assert snapshot() == before
        assert failed.stderr.startswith("error: ")
        return failed.stderr

    return run


def copy_of(name: str) -> Path:
    """A folder that a test may change."""
    shutil.copytree(trained(name)[0], "parent")
    return Path("parent")


# --- what is asked


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--width", "16"), "model.width is 16 (--width), but the checkpoint"),
        (("--layers", "6"), "model.layers is 6 (--layers)"),
        (("--model", "transformer"), "model.family is 'transformer' (--model)"),
        (("-o", "model.dropout=0.1"), "is what its config.json says: leave it out"),
        (("-o", "model.heads=8"), "is what its config.json says: leave it out"),
        (("-o", "model.stream=coupled"), "is what its config.json says: leave it out"),
        (("-o", "model.task=mlm"), "model.task is 'mlm' (-o), but the checkpoint"),
        (("-o", "model.task=classify"), "model.task is 'classify' (-o), but the checkpoint"),
        (("-o", "data.tokenizer=byte"), "data.tokenizer is 'byte' (-o)"),
        (("-o", "data.tokenizer=pretrained:12345678"), "data.tokenizer is 'pretrained:12345678' (-o)"),
        (("-o", "growth=[{at: 1}]"), "grow its folder with ppdgrow grow"),
        (("--grow-to", "6"), "grow its folder with ppdgrow grow"),
        (("--only", "pairs"), "no grown blocks yet"),
        (("-o", "data.sequence_length=65"), "has 64 positions: use at most 64"),
        (("--data", "cifar10"), "does not fit data.name 'cifar10'"),
    ],
)
def test_options(more: tuple[str, ...], said: str, refused: Refused) -> None:
    folder, _ = trained("llama")
    assert said in refused(f"train {folder} --steps 2 --out out", *more, code=2)


def test_a_recipe_with_a_growth(refused: Refused) -> None:
    Path("recipe.yaml").write_text("growth: [{at: 2, pair: ffn}]\n")
    folder, _ = trained("llama")
    assert "grow its folder" in refused(f"train {folder} --recipe recipe.yaml --steps 4 --out out", code=2)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--model", "pretrained"), "for folders of Transformers: give it as the checkpoint"),
        (("-o", "data.tokenizer=pretrained:12345678"), "give the folder as the checkpoint"),
        (("-o", "data.tokenizer=pretrained:1234"), "expected byte, word or bpe:N"),
    ],
)
def test_without_a_folder(more: tuple[str, ...], said: str, refused: Refused) -> None:
    assert said in refused("train --steps 2 --out out", *more, code=2)


@pytest.mark.parametrize(("name", "positions"), [("roberta", 62), ("bert", 64)])
def test_the_positions_of_a_model(name: str, positions: int, refused: Refused, ppdgrow: Command) -> None:
    """RoBERTa counts its positions from behind the padding's id, and has fewer than its config says."""
    folder, _ = trained(name)
    line = f"train {folder} --steps 1 --out out"
    failed = refused(line, "-o", f"data.sequence_length={positions + 1}", code=2)
    assert f"has {positions} positions: use at most {positions}" in failed
    ppdgrow(f"{line} --quiet", *tiny("-o", f"data.sequence_length={positions}"))


def test_a_sequence_of_two_frame_tokens(refused: Refused) -> None:
    folder, _ = trained("bert")
    failed = refused(f"train {folder} --steps 1 --out out", "-o", "data.sequence_length=2", code=2)
    assert "use at least 3" in failed


# --- the folder


def without_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


def with_more_tokens(folder: Path) -> None:
    add_tokenizer(folder, size=120)


def without_mask(folder: Path) -> None:
    add_tokenizer(folder, mask=None, size=98)  # an id is free, which nothing was trained to be the mask


def without_a_layer(folder: Path) -> None:
    file = folder / "model.safetensors"
    kept = {name: tensor for name, tensor in load_file(file).items() if ".layer.1." not in name or "query" not in name}
    save_file(kept, file, metadata={"format": "pt"})


FOLDERS: dict[str, tuple[str, Callable[[Path], object], int, str]] = {
    "no tokenizer": ("llama", without_tokenizer, 2, "'parent' has no tokenizer.json"),
    "no JSON": ("llama", lambda f: (f / "tokenizer.json").write_text("{"), 4, "'parent/tokenizer.json'"),
    "no UTF-8": ("llama", lambda f: (f / "tokenizer.json").write_bytes(b"\xff"), 4, "not UTF-8 text"),
    "more tokens": ("llama", with_more_tokens, 2, "has 120 tokens, but its config.json a vocabulary of 99"),
    "no mask token": ("bert", without_mask, 2, "has no mask token ([MASK] or <mask>)"),
    "a tensor is missing": ("bert", without_a_layer, 4, "query"),
    "another width": ("llama", lambda f: edit_config(f, intermediate_size=40), 4, "config.json makes it [32, 40]"),
    "what cannot be computed": ("llama", lambda f: edit_config(f, num_key_value_heads=3), 4, "model.layers"),
    "a mixture of experts": (
        "llama",
        lambda f: edit_config(f, model_type="mixtral", num_local_experts=4),
        4,
        "mixture of experts (num_local_experts: 4)",
    ),
}


@pytest.mark.parametrize("what", FOLDERS)
def test_folders(what: str, refused: Refused) -> None:
    name, change, code, said = FOLDERS[what]
    change(copy_of(name))
    assert said in refused("train parent --steps 2 --out out", code=code)


def test_a_model_of_images(refused: Refused) -> None:
    make_folder("vit", Path("parent"))
    add_tokenizer(Path("parent"))
    for more in ((), ("-o", "model.task=mlm")):
        said = refused("train parent --steps 2 --out out", *more, code=2)
        assert "ViTForImageClassification, and training takes language models alone: lm or mlm" in said


def save(model_class: str, config_class: str, **options: Any) -> None:
    config = getattr(transformers(), config_class)(**SIZES, **options)
    getattr(transformers(), model_class)(config).save_pretrained("parent")
    add_tokenizer(Path("parent"))


@pytest.mark.parametrize(
    ("model_class", "config_class", "task", "other"),
    [
        ("BertForSequenceClassification", "BertConfig", "mlm", "lm"),
        ("LlamaForSequenceClassification", "LlamaConfig", "lm", "mlm"),
        ("BertModel", "BertConfig", "mlm", "lm"),
    ],
)
def test_another_head_or_none(
    model_class: str, config_class: str, task: str, other: str, refused: Refused, ppdgrow: Command
) -> None:
    """What the model lacks of the head of a language model is drawn, by the seed."""
    save(model_class, config_class, pad_token_id=1)
    line = "train parent --steps 1 --out out"
    assert f"is a {model_class}, not a model for lm or mlm: add -o model.task={task}" in refused(line, code=2)
    assert f"cannot be trained for the task {other}" in refused(line, "-o", f"model.task={other}", code=2)
    ask = ("-o", f"model.task={task}")
    said = ppdgrow(line, *tiny(*ask)).stderr
    assert f"the new {'MaskedLM' if task == 'mlm' else 'CausalLM'} head is drawn: " in said
    unused = {"BertModel": "pooler.dense", "LlamaForSequenceClassification": "score"}.get(model_class, "classifier")
    assert f"the weights {'bert.pooler.dense, ' * (unused == 'classifier')}{unused}\n" in said


def test_a_head_for_next_tokens_on_a_model_that_sees_them(refused: Refused, ppdgrow: Command) -> None:
    save("BertLMHeadModel", "BertConfig")
    line = "train parent --steps 1 --out out"
    assert "a BertLMHeadModel without is_decoder sees the tokens that it is to predict" in refused(line, code=2)
    edit_config(Path("parent"), is_decoder=True)
    assert ppdgrow(f"{line} --json", *TINY).document["validation"]["bits_per_byte"] > 0


def test_a_new_head_is_drawn_by_the_seed_and_is_there_afterwards(ppdgrow: Command) -> None:
    write_text()
    save("BertModel", "BertConfig")
    ask = tiny("-o", "model.task=mlm")
    for out, more in (("one", ()), ("same", ()), ("other", ("--seed", "1"))):
        ppdgrow(f"train parent --steps 1 --lr 1e-9 --out {out} --quiet", *ask, *more)
    one, same, other = (
        load_file(f"{run}/checkpoints/step-00000001/model.safetensors") for run in ("one", "same", "other")
    )
    assert all(same[name].equal(tensor) for name, tensor in one.items())
    name = "cls.predictions.transform.dense.weight"
    assert float((one[name] - other[name]).abs().max()) > 1e-3
    ppdgrow("train one --steps 1 --out on --quiet")


# --- the environment


@pytest.mark.parametrize("of_a_run", [False, True], ids=["a folder", "a run"])
def test_transformers_is_not_installed(of_a_run: bool, refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    path = trained("llama")[of_a_run]
    loaded = [name for name in sys.modules if name.split(".")[0] == "transformers"]
    ours = [name for name in sys.modules if name in ("ppdgrow.pretrained.parent", "ppdgrow.pretrained.language_model")]
    for name in (*loaded, "ppdgrow.pretrained.modeling_ppdgrow"):
        monkeypatch.setitem(sys.modules, name, None)
    for name in ours:
        monkeypatch.delitem(sys.modules, name)
    assert "pip install 'ppdgrow[hf]'" in refused(f"train {path} --steps 1 --out out", code=2)


def test_control_the_folders_are_taken_as_they_are(ppdgrow: Command) -> None:
    write_text()
    for name in ("llama", "bert"):
        folder, _ = trained(name)
        assert ppdgrow(f"train {folder} --steps 1 --dry-run --json", *TINY).document["state"] == "new"
