"""`compare --accept --twin` end to end: a growth that does nothing is no gain over its twin."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from command_line import TINY, Command, Result

from ppdgrow.checkpoint import Checkpoint, RunFolder, read_checkpoint, write_checkpoint

STEPS = 6


@pytest.fixture
def trial(ppdgrow: Command, shallow: Path) -> Path:
    """Zero blocks that never move, so that the grown model is its twin; beside it that twin."""
    ppdgrow(f"grow {shallow} --method zero --out grown --quiet")
    ppdgrow(f"train grown --steps {STEPS} --pair-lr 0 --out trial --quiet")
    ppdgrow(f"train {shallow} --steps {STEPS} --out twin --quiet")
    return Path("trial")


def test_a_growth_that_does_nothing_is_no_gain_over_its_twin(ppdgrow: Command, trial: Path) -> None:
    line = "compare shallow trial --accept --json"
    by_parent = ppdgrow(line).document
    assert by_parent["verdict"] == "accept", "the budget alone lowered the loss"
    assert (by_parent["decision"]["rule"], by_parent["decision"]["twin"]) == ("parent", None)

    tolerant = ppdgrow(f"{line} --twin twin").document
    assert tolerant["verdict"] == "accept"
    found = tolerant["decision"]
    assert (found["rule"], found["margin"], found["epsilon"]) == ("twin", 0.01, 0.0)
    assert found["twin"] == {"difference": 0.0, "low": 0.0, "high": 0.0, "examples": 8}
    assert found["loss_after"] == tolerant["runs"][2]["validation"]["loss"]

    demanding = ppdgrow(f"{line} --twin twin --margin -0.001", code=3).document
    assert demanding["verdict"] == "reject"
    assert [(c["name"], c["passed"]) for c in demanding["criteria"]] == [("twin rule", False), ("parent rule", True)]
    assert demanding["warnings"] == []

    overruled = ppdgrow(f"{line} --twin twin --margin -0.001 --rule parent").document
    assert overruled["verdict"] == "accept"
    assert overruled["decision"]["twin"] == demanding["decision"]["twin"], "both figures, whichever decides"
    ppdgrow(f"{line} --twin twin --rule parent --epsilon -9", code=3)


def test_the_document_says_what_deciding_cost(ppdgrow: Command, trial: Path) -> None:
    document = ppdgrow("compare shallow trial --accept --twin twin --json").document
    decision = document["decision"]
    assert list(decision) == ["rule", "loss_before", "loss_after", "epsilon", "twin", "margin", "cost"]
    runs = {run["name"]: run for run in document["runs"]}
    assert list(runs) == ["shallow", "trial", "twin"]
    for name in ("trial", "twin"):
        cost = decision["cost"][name]
        assert cost["tokens"] == STEPS * 4 * 16
        assert cost["flops"] == runs[name]["flops"] - runs["shallow"]["flops"]
        assert cost["seconds"] == pytest.approx(runs[name]["seconds"] - runs["shallow"]["seconds"])
    assert decision["cost"]["trial"]["flops"] > decision["cost"]["twin"]["flops"]


def test_the_difference_is_that_of_the_recorded_losses(ppdgrow: Command, shallow: Path) -> None:
    """A growth that learns: the models differ, and the recorded losses by as much as the paired mean."""
    ppdgrow("grow shallow --pairs 2 --out grown --quiet")
    ppdgrow(f"train grown --steps {STEPS} --out trial --quiet")
    ppdgrow(f"train shallow --steps {STEPS} --out twin --quiet")
    shown = ppdgrow("compare shallow trial --accept --twin twin --device cpu --margin 9")
    document = ppdgrow("compare shallow trial --accept --twin twin --margin 9 --json").document
    grown, twin = (run["validation"]["loss"] for run in document["runs"][1:])
    found = document["decision"]["twin"]
    assert found["difference"] == pytest.approx(grown - twin, abs=1e-9)
    assert found["difference"] != 0
    assert found["low"] < found["difference"] < found["high"]
    assert f"grown - twin {found['difference']:+.6f}, 95 % [" in shown.stdout
    assert "verdict: accept by the twin rule" in shown.stdout
    assert "evaluating trial and twin on 8 validation examples of stdlib (device cpu, fp32)" in shown.stderr
    coarse = ppdgrow("compare shallow trial --accept --twin twin --margin 9 --precision bf16 --json").document
    assert coarse["decision"]["twin"]["difference"] != found["difference"], "the precision is used"


def test_a_grown_twin_and_one_of_another_budget_are_refused(ppdgrow: Command, trial: Path) -> None:
    def refused(twin: str) -> Result:
        return ppdgrow(f"compare shallow trial --accept --twin {twin}", code=2)

    assert "a twin is not grown" in refused("trial").stderr
    assert "a twin is not grown" in refused("grown").stderr
    assert "not trained for the same budget" in refused("shallow").stderr
    ppdgrow(f"train shallow --steps {STEPS + 1} --out longer --quiet")
    assert "not trained for the same budget" in refused("longer").stderr
    assert "'nowhere' does not exist" in ppdgrow("compare shallow trial --accept --twin nowhere", code=4).stderr


def test_a_twin_on_other_batches_is_doubted(ppdgrow: Command, trial: Path) -> None:
    ppdgrow(f"train shallow --steps {STEPS} --seed 7 -o train.lr=1e-3 --out other --quiet")
    warned = ppdgrow("compare shallow trial --accept --twin other --margin 9").stderr
    assert "not trained alike (train.lr: 0.002 and 0.001; train.seed: 0 and 7)" in warned
    ppdgrow(f"train --layers 2 --steps {10 + STEPS} --out stranger --quiet", *TINY)
    warned = ppdgrow("compare shallow trial --accept --twin stranger --margin 9").stderr
    assert "the lineage of stranger does not show that it descends from this checkpoint of shallow" in warned


def test_a_twin_without_data_says_where_it_looked(ppdgrow: Command, trial: Path) -> None:
    for run in ("trial", "twin"):
        recipe = Path(run, "recipe.yaml")
        recipe.write_text(recipe.read_text(encoding="utf-8").replace("name: stdlib", "name: wikitext2"), "utf-8")
    assert "nowhere" in ppdgrow("compare shallow trial --accept --twin twin --data-dir nowhere", code=4).stderr
    ppdgrow("compare shallow trial --accept")


@pytest.mark.skipif(torch.cuda.is_available(), reason="the device is there")
def test_a_device_that_is_not_there_is_refused(ppdgrow: Command, trial: Path) -> None:
    assert "cuda" in ppdgrow("compare shallow trial --accept --twin twin --device cuda", code=2).stderr


def altered(run: str, change: Callable[[Checkpoint], Checkpoint]) -> None:
    """Write the newest checkpoint of a run again, changed."""
    folder = RunFolder(Path(run)).newest_valid()
    assert folder is not None
    checkpoint = change(read_checkpoint(folder))
    shutil.rmtree(folder)
    write_checkpoint(folder, checkpoint)


def test_other_data_than_that_of_the_recorded_losses_is_told(ppdgrow: Command, trial: Path) -> None:
    def other_copy(checkpoint: Checkpoint) -> Checkpoint:
        data = checkpoint.state.data
        data = data.model_copy(update={"sha256": data.sha256 | {"validation": "d" * 64}})
        return replace(checkpoint, state=checkpoint.state.model_copy(update={"data": data}))

    for run in ("shallow", "trial", "twin"):
        altered(run, other_copy)
    warnings = ppdgrow("compare shallow trial --accept --twin twin --json").document["warnings"]
    assert any("the validation split of stdlib had other content when trial was trained" in w for w in warnings)
    assert not any("split" in w for w in ppdgrow("compare shallow trial --accept --json").document["warnings"])


def test_a_model_without_a_finite_loss_is_not_decided(ppdgrow: Command, trial: Path) -> None:
    def broken(checkpoint: Checkpoint) -> Checkpoint:
        tensors = {name: torch.full_like(tensor, torch.nan) for name, tensor in checkpoint.tensors.items()}
        return replace(checkpoint, tensors=tensors)

    altered("twin", broken)
    assert "diverged" in ppdgrow("compare shallow trial --accept --twin twin --json", code=5).stderr


@pytest.mark.parametrize(
    "options",
    [
        "--epsilon 0.0",
        "--margin 0.1",
        "--rule parent",
        "--twin twin",
        "--device auto",
        "--precision auto",
        "--data-dir .",
        "--accept --margin 0.1",
        "--accept --rule twin",
        "--accept --device cpu",
        "--accept --precision fp32",
        "--accept --data-dir .",
        "--accept --twin twin --margin nan",
        "--accept --epsilon inf",
    ],
)
def test_an_option_that_would_do_nothing_is_refused(ppdgrow: Command, options: str) -> None:
    error = ppdgrow(f"compare shallow trial {options}", code=2).stderr
    assert f"--{options.split('--')[-1].split()[0]}" in error
    assert "expected a finite number" in error or "add --" in error
