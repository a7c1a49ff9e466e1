"""`compare` of folders of Transformers with the runs that trained them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import make_folder, transformers, write_byte_tokenizer

import ppdgrow
from ppdgrow.checkpoint import read_jsonl
from ppdgrow.cli import build_app
from ppdgrow.cli.app import run
from ppdgrow.errors import ConfigError, InvalidInputError

RECIPE: dict[str, Any] = {
    "data": {"name": "notes", "sequence_length": 16},
    "train": {"steps": 6, "batch_size": 4, "eval_batches": 2, "eval_every": 3, "lr": 2e-3},
}
WORDS = ["alpha", "beta", "gamma", "delta", "hello", "world", "one", "two"]


def write_text(folder: Path, step: int) -> Path:
    """Three splits of words in an order that `step` decides."""
    folder.mkdir()
    for split, count in (("train", 600), ("validation", 300), ("test", 300)):
        words = [WORDS[(number * step + number // 7) % len(WORDS)] for number in range(count)]
        (folder / f"{split}.txt").write_text(" ".join(words) + "\n")
    return folder


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A small Llama, the same with a pair, and two seeds of both, trained."""
    place = tmp_path_factory.mktemp("place")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        write_text(Path("notes"), 3)
        write_text(Path("other notes"), 5)
        write_byte_tokenizer(make_folder("llama", Path("hf/llama"), vocab_size=256))
        ppdgrow.grow("hf/llama", pair="ffn", pairs=1, out="hf/grown", quiet=True)
        for seed in (0, 1):
            for arm, parent, only in (("all", "hf/llama", "all"), ("pairs", "hf/grown", "pairs")):
                train = {**RECIPE["train"], "seed": seed, "only": only}
                out = f"runs/{arm}/seed-{seed}"
                ppdgrow.train(parent, recipe={**RECIPE, "train": train}, out=out, quiet=True)
        yield place


@pytest.fixture(autouse=True)
def in_place(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)


def compared(*paths: str, **options: Any) -> dict[str, Any]:
    """The document, with its arms by name."""
    document = ppdgrow.compare(*paths, quiet=True, **options)
    return {**document, "arms": {arm["name"]: arm for arm in document["arms"]}}


def files(folder: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path(folder).iterdir() if path.is_file()}


def loss_of(folder: str, notes: str) -> float:
    """Transformers' own loss on the validation batches that the runs have: eight windows, evenly spread."""
    model = transformers().AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = transformers().PreTrainedTokenizerFast(tokenizer_file=f"{folder}/tokenizer.json")
    ids = torch.tensor(tokenizer(Path(notes, "validation.txt").read_text())["input_ids"])
    available = (len(ids) - 1) // 16
    starts = torch.arange(8) * available // 8 * 16
    windows = ids[starts[:, None] + torch.arange(17)]
    with torch.no_grad():
        logits = model(input_ids=windows[:, :-1]).logits
    return float(torch.nn.functional.cross_entropy(logits.flatten(0, 1).double(), windows[:, 1:].flatten()))


def test_the_model_before_is_evaluated_on_the_batches_of_the_runs() -> None:
    before = files("hf/llama")
    found = compared("hf/llama", "runs/all", "runs/pairs", on=["other notes"])
    llama = found["arms"]["llama"]
    assert llama["loss"]["mean"] == pytest.approx(loss_of("hf/llama", "notes"), abs=1e-6)
    assert llama["on"]["other notes"]["loss"]["mean"] == pytest.approx(loss_of("hf/llama", "other notes"), abs=1e-6)
    first = next(run for run in found["runs"] if run["name"] == "llama")
    assert (first["steps"], first["flops"], first["seeds"]) == (0, 0, [])
    assert files("hf/llama") == before, "the folder is only read, and nothing is recorded in it"


def test_every_seed_is_held_against_the_one_model_before() -> None:
    found = compared("hf/llama", "runs/all", "runs/pairs")
    runs = {run["name"]: run for run in found["runs"]}
    for arm in ("all", "pairs"):
        own = [run for run in found["runs"] if run["arm"] == arm]
        losses = [run["validation"]["loss"] for run in own]
        expected = sum(losses) / 2 - runs["llama"]["validation"]["loss"]
        assert len(losses) == 2
        assert found["arms"][arm]["loss_difference"]["mean"] == pytest.approx(expected)
    assert not any("seed" in warning for warning in found["warnings"])
    assert {criterion["run"] for criterion in found["criteria"]} == {"pairs"}, "what was not trained judges nothing"
    assert found["pays"] in ("yes", "no"), "the ungrown arm beside it is the control"
    assert found["arms"]["all"]["flops_ratio"] is None


def test_without_a_control_there_is_no_verdict_in_words(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(build_app(), ["compare", "hf/llama", "runs/pairs"]) == 0
    printed = capfd.readouterr().out
    assert "verdict: none (llama was not trained here, and is held against them by its loss alone)" in printed
    assert "whether growing paid is not known: there is no ungrown control" in printed


def test_a_folder_may_be_any_arm_and_grown(tmp_path: Path) -> None:
    found = compared("runs/all", "runs/pairs", "hf/llama", "hf/grown", report=[tmp_path / "report.md"])
    llama, grown = (found["arms"][name]["loss"]["mean"] for name in ("llama", "grown"))
    assert llama == grown, "pairs cancel to the last bit"
    assert "grown" in (tmp_path / "report.md").read_text()


def test_the_curves_are_drawn_beside_it(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    compared("hf/llama", "runs/all", "runs/pairs", plot=tmp_path / "curves.svg")
    assert (tmp_path / "curves.svg").read_text().count("<svg") == 1


def test_figures_of_a_run_beside_it_are_recorded_as_ever() -> None:
    compared("hf/llama", "runs/all", on=["other notes"])
    lines = [line for seed in (0, 1) for line in read_jsonl(Path(f"runs/all/seed-{seed}/on.jsonl"))]
    assert len(lines) == 2


def test_folders_alone_are_refused() -> None:
    with pytest.raises(ConfigError, match="has no loss of its own: give a run beside it"):
        compared("hf/llama", "hf/grown")


def test_a_folder_is_the_parent_of_a_decision(capfd: pytest.CaptureFixture[str]) -> None:
    words = ["compare", "hf/grown", "runs/pairs/seed-0", "--accept"]
    assert run(build_app(), words) == 2, "it has the same blocks"
    assert "has the same blocks as 'grown'" in capfd.readouterr().err
    words = ["compare", "hf/llama", "runs/pairs/seed-0", "--accept", "--twin", "runs/all/seed-0", "--json"]
    assert run(build_app(), words) in (0, 3)
    found = json.loads(capfd.readouterr().out)
    before, after = (run["validation"]["loss"] for run in found["runs"][:2])
    assert (found["decision"]["loss_before"], found["decision"]["loss_after"]) == (before, after)
    assert not any("lineage" in warning for warning in found["warnings"]), "the growth records what it grew"


def test_a_document_of_it_is_json(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(build_app(), ["compare", "hf/llama", "runs/all", "--json"]) == 0
    assert [arm["name"] for arm in json.loads(capfd.readouterr().out)["arms"]] == ["llama", "all"]


def test_the_same_data_by_on_is_the_same_loss_also_with_a_drawn_head_and_in_bf16() -> None:
    folder = make_folder("llama", Path("hf/headless"), vocab_size=256)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": ["LlamaForSequenceClassification"]}))
    tensors = load_file(folder / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file({**tensors, "score.weight": torch.zeros(2, 32)}, folder / "model.safetensors", metadata={"format": "pt"})
    write_byte_tokenizer(folder)
    train = {**RECIPE["train"], "precision": "bf16"}
    recipe = {**RECIPE, "model": {"task": "lm"}, "train": train}
    ppdgrow.train("hf/headless", recipe=recipe, out="runs/headless", quiet=True)
    found = compared("hf/headless", "runs/headless", on=["notes"])
    for arm in found["arms"].values():
        assert arm["on"]["notes"]["loss"]["mean"] == arm["loss"]["mean"]
        assert arm["on"]["notes"]["accuracy"]["mean"] == arm["accuracy"]["mean"]


def test_where_nothing_is_judged_there_is_no_verdict_in_the_document() -> None:
    assert compared("hf/llama", "runs/pairs")["verdict"] is None
    assert compared("runs/all", "runs/pairs")["verdict"] in ("accept", "reject")


def test_a_growth_whose_outputs_were_identical_is_exact() -> None:
    criteria = compared("runs/all", "runs/pairs")["criteria"]
    (spike,) = [one for one in criteria if one["name"] == "no insertion spike" and one["run"] == "pairs"]
    assert (spike["passed"], spike["value"]) == (True, 0)


def test_a_run_that_is_not_there_is_named() -> None:
    with pytest.raises(InvalidInputError, match="'runs/nowhere' does not exist"):
        compared("hf/llama", "runs/nowhere")


def test_a_folder_that_a_run_was_not_trained_from_is_doubted() -> None:
    write_byte_tokenizer(make_folder("llama", Path("hf/stranger"), vocab_size=256, seed=1))
    doubt = "not trained from stranger, or that changed since"
    assert any(doubt in warning for warning in compared("hf/stranger", "runs/all")["warnings"])
    assert not any("not trained from" in warning for warning in compared("hf/llama", "runs/pairs")["warnings"])
