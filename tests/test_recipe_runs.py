"""Every recipe runs: for two steps at a tiny width, and its growths, drawn together, really happen."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from synthetic_wikitext import write_wikitext

import ppdgrow
from ppdgrow.checkpoint import read_jsonl
from ppdgrow.config.load import read_yaml
from ppdgrow.data.named import Cifar10

ROOT = Path(__file__).parent.parent
RECIPES = sorted((ROOT / "recipes").glob("*.yaml"))
GROWING = [path for path in RECIPES if "growth" in read_yaml(path)]
TINY = {
    "model.layers": 2,
    "model.width": 16,
    "model.heads": 2,
    "train.batch_size": 4,
    "train.eval_batches": 2,
    "train.eval_every": 2,
    "train.precision": "fp32",
}
FEW_IMAGES = {"train": range(64), "validation": range(49_936, 50_000), "test": range(64)}


def tiny(path: Path) -> dict[str, Any]:
    """What makes a recipe small; the rest of it stays."""
    recipe = read_yaml(path)
    values = dict(TINY)
    if recipe["data.name"] != "cifar10":
        values["data.sequence_length"] = 16
    if str(recipe.get("data.tokenizer")).startswith("bpe"):
        values["data.tokenizer"] = "bpe:300"
    return values


@pytest.fixture(autouse=True)
def _tiny_data(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for WikiText-2, and a few of the real images of CIFAR-10, for the recipes that name them."""
    monkeypatch.chdir(tmp_path)
    if read_yaml(request.getfixturevalue("path"))["data.name"] == "cifar10":
        monkeypatch.setattr(Cifar10, "rows", FEW_IMAGES)
        monkeypatch.setenv("PPDGROW_DATA", str(request.getfixturevalue("real_data")))
    else:
        monkeypatch.setenv("PPDGROW_DATA", str(write_wikitext(tmp_path / "data")))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.name)
def test_every_recipe_runs_for_two_steps(path: Path) -> None:
    document = ppdgrow.train(recipe=path, values={**tiny(path), "train.steps": 2, "growth": []}, out="run", quiet=True)
    assert document["step"] == 2
    assert ppdgrow.load("run").architecture.num_layers == 2


def drawn_together(growth: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], int]:
    """The growths two steps apart, each tried for two steps, and the step after the last of them."""
    step, near = 2, copy.deepcopy(growth)
    for entry in near:
        trial = entry.setdefault("trial", {})
        trial["steps"] = 2
        if entry["at"] != "plateau":
            entry["at"] = step
        step += 4
    return near, step


@pytest.mark.parametrize("path", GROWING, ids=lambda path: path.name)
def test_the_growths_of_a_recipe_happen(path: Path) -> None:
    growth, steps = drawn_together(read_yaml(path)["growth"])
    document = ppdgrow.train(
        recipe=path, values={**tiny(path), "train.steps": steps, "growth": growth}, out="run", quiet=True
    )
    decided = {event["step"]: event["decision"] for event in document["growth"]}
    fixed = {entry["at"] for entry in growth if entry["at"] != "plateau"}
    assert fixed <= set(decided), "every growth came to a decision"
    grown = [event for event in read_jsonl(Path("run", "growth.jsonl")) if event["event"] == "grow"]
    assert len(grown) >= len(fixed)
    assert all(event["bit_exact"] for event in grown if event["method"] == "pair")
    accepted = sum(decision == "accept" for decision in decided.values())
    assert (ppdgrow.load("run").architecture.num_layers > 2) == (accepted > 0)
