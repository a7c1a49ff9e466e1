"""A stopped `train` of a folder goes on to the same bits, whatever stopped it; damage is named."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command_line import Command
from equality import differences
from full_disk import Disk
from kill_worker import Worker
from killing import kinds
from tampering import seal
from text_folders import TINY, step_folder, text_folder, train_two_steps, trained, write_text

import ppdgrow as package
from ppdgrow.checkpoint import RunFolder, read_checkpoint, write_checkpoint
from ppdgrow.errors import InvalidInputError


def copied(run: Path, place: Path) -> Path:
    shutil.copytree(run, place)
    return place


@pytest.mark.parametrize(
    ("name", "pairs"), [("gpt2", False), ("bert", True), pytest.param("gpt2", True, marks=pytest.mark.slow)]
)
def test_from_an_older_step_it_comes_to_the_same_bits(name: str, pairs: bool, tmp_path: Path) -> None:
    """With dropout (GPT-2 and BERT drop a tenth), masks, and frozen weights."""
    folder, whole = trained(name, pairs=pairs)
    run = copied(whole, tmp_path / "run")
    shutil.rmtree(step_folder(run, 2))
    train_two_steps(folder, run, pairs=pairs)
    assert differences(str(run), str(whole)) == []


def test_control_other_random_streams_are_seen(tmp_path: Path) -> None:
    folder, whole = trained("gpt2")
    run = copied(whole, tmp_path / "run")
    shutil.rmtree(step_folder(run, 2))
    write_checkpoint(step_folder(run, 1), replace(read_checkpoint(step_folder(run, 1)), rng={}))
    train_two_steps(folder, run)
    assert any("transformer.wte.weight" in line for line in differences(str(run), str(whole)))


def test_a_finished_run_says_so_and_another_command_is_refused(ppdgrow: Command) -> None:
    write_text()
    folder = text_folder("llama", Path("parent"))
    line = f"train {folder} --steps 2 --out run --json"
    first = ppdgrow(line, *TINY).document
    before = {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()}
    assert ppdgrow(line, *TINY).document == first
    assert "already finished" in ppdgrow(line.removesuffix(" --json"), *TINY).stderr
    for more in (["--lr", "1e-4"], ["--steps", "3"], ["--seed", "1"]):
        refused = ppdgrow(line.removesuffix(" --json"), *TINY, *more, code=2)
        assert "holds" in refused.stderr
        assert refused.stderr.count("\n") == 1
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 1e-5}))
    assert "holds a run from another checkpoint" in ppdgrow(line, *TINY, code=2).stderr
    assert {path: path.read_bytes() for path in before} == before


# --- stopped from outside


def test_a_signal_saves_and_the_same_command_goes_on(ppdgrow: Command, stop_at: Callable[..., None]) -> None:
    folder, whole = trained("bert", pairs=True)
    stop_at(1, signal.SIGTERM, 2)  # the first time the precision is chosen
    with pytest.raises(package.InterruptedRunError, match="step 1, which is saved"):
        train_two_steps(folder, Path("run"), pairs=True)
    train_two_steps(folder, Path("run"), pairs=True)
    assert differences("run", str(whole)) == []


def test_a_full_disk_leaves_nothing_half_written(ppdgrow: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, whole = trained("llama", pairs=True)
    disk = Disk()
    monkeypatch.setattr("os.fsync", disk.fsync)
    for at in (2, 12):  # the recipe, and the first checkpoint
        disk.fill(at)
        with pytest.raises(package.StorageError, match="No space left on device"):
            train_two_steps(folder, Path("run"), pairs=True)
        disk.empty()
        assert not list(Path().rglob(".tmp-*"))
        steps = RunFolder(Path("run")).checkpoints()
        assert RunFolder(Path("run")).newest_valid() == (steps[-1] if steps else None)
    train_two_steps(folder, Path("run"), pairs=True)
    assert differences("run", str(whole)) == []


@pytest.mark.slow
def test_a_kill_in_saving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_text()
    text_folder("gpt2", Path("parent"))
    modules = ("ppdgrow.pretrained.parent", "transformers.models.gpt2.modeling_gpt2")
    line = ["train", "parent", "--steps", "4", "--quiet", "--out"]
    with Worker(tmp_path, modules) as worker:

        def run(out: str, **how: Any) -> Any:
            return worker.run(tmp_path, [*line, out, *TINY], **how)

        whole = run("r")
        assert whole.code == 0, whole.stderr
        Path("r").rename("whole")
        saving = kinds(whole.operations, r"(open|rename|fsync) r/checkpoints/")
        for at in _some(saving, 5):
            stopped = run("r", kill_at=at, torn=True)
            assert stopped.killed, whole.operations[at]
            assert run("r").code == 0
            assert differences("r", "whole") == [], whole.operations[at]
            shutil.rmtree("r")


def _some(places: Sequence[int], number: int) -> list[int]:
    return [places[place * (len(places) - 1) // (number - 1)] for place in range(number)]


# --- damaged


def cut(step: Path) -> None:
    data = (step / "model.safetensors").read_bytes()
    (step / "model.safetensors").write_bytes(data[: len(data) // 2])


def altered(step: Path) -> None:
    text = (step / "config.json").read_text()
    assert '"rms_norm_eps": 1e-06' in text
    (step / "config.json").write_text(text.replace('"rms_norm_eps": 1e-06', '"rms_norm_eps": 2e-06'))


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "weights cut off": (cut, "model.safetensors"),
    "config altered": (altered, "config.json"),
    "tokenizer gone": (lambda step: (step / "tokenizer.json").unlink(), "tokenizer.json"),
    "code altered": (lambda step: (step / "modeling_ppdgrow.py").write_text("print()"), "modeling_ppdgrow.py"),
    "manifest gone": (lambda step: (step / "manifest.json").unlink(), "no manifest.json"),
}


@pytest.mark.parametrize("what", DAMAGES)
def test_a_damaged_step_is_named_and_passed_over(what: str, ppdgrow: Command) -> None:
    folder, whole = trained("llama", pairs=True)
    run = copied(whole, Path("run"))
    damage, named = DAMAGES[what]
    damage(step_folder(run, 2))
    reasons: list[str] = []
    assert RunFolder(run).newest_valid(reasons) == step_folder(run, 1)
    (reason,) = reasons
    assert named in reason
    shutil.rmtree(step_folder(run, 1))
    for line in (f"train {run} --steps 1 --out on", f"grow {run} --pair ffn --out on", f"probe {run}"):
        refused = ppdgrow(line, code=4)
        assert named in refused.stderr
        assert refused.stderr.count("\n") == 1
    with pytest.raises(InvalidInputError, match="no checkpoint of 'run' is intact"):
        train_two_steps(folder, run, pairs=True)
    assert not Path("on").exists()


def test_an_altered_step_is_passed_over_by_the_same_command(tmp_path: Path) -> None:
    folder, whole = trained("llama", pairs=True)
    run = copied(whole, tmp_path / "run")
    altered(step_folder(run, 2))
    train_two_steps(folder, run, pairs=True)
    assert differences(str(run), str(whole)) == []


def change(step: Path, **values: Any) -> None:
    """Change keys of config.json, `a__b` that within `a`; None takes one out."""
    config = json.loads((step / "config.json").read_text())
    for key, value in values.items():
        *path, last = key.split("__")
        place = config
        for part in path:
            place = place[part]
        place.pop(last) if value is None else place.update({last: value})
    (step / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"ppdgrow": None}, "task: Field required"),
        ({"ppdgrow__training__newest": "p1"}, "newest"),
        ({"ppdgrow__training__format": 99}, "format"),
        ({"base": None}, "KeyError: 'base'"),
        ({"base_model_type": "nonesuch"}, "nonesuch"),
        ({"pairs__blocks": [{"id": "p1", "kind": "ffn", "after": 9}]}, "IndexError"),
        ({"base__vocab_size": 50}, "is (99, 32), expected (50, 32)"),
        ({"base__num_hidden_layers": 5}, "'model.layers.4.input_layernorm.weight' is missing"),
    ],
)
def test_a_config_that_does_not_fit_the_weights_is_one_line(
    values: dict[str, Any], said: str, ppdgrow: Command
) -> None:
    """Sealed anew, so that it has to be found by looking inside."""
    _, whole = trained("llama", pairs=True)
    run = copied(whole, Path("run"))
    shutil.rmtree(step_folder(run, 1))
    change(step_folder(run, 2), **values)
    seal(step_folder(run, 2))
    refused = ppdgrow(f"train {run} --steps 1 --out on", code=4)
    assert said in refused.stderr
    assert refused.stderr.count("\n") == 1
    assert not Path("on").exists()
