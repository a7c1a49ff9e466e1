"""`recipes/experiment.py`: the arms that it promises, their cost, what is skipped, and what a signal leaves behind."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ppdgrow.checkpoint import RunFolder, read_jsonl
from ppdgrow.config.architecture import ImageInput, TokenInput, new_architecture
from ppdgrow.config.kinds import Task
from ppdgrow.config.load import Layer, read_yaml, resolve
from ppdgrow.nn.cost import training_flops_per_token

RECIPES = Path(__file__).parent.parent / "recipes"


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("experiment", RECIPES / "experiment.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["experiment"] = module
    sys.path.insert(0, str(RECIPES))  # as for a script that is run
    spec.loader.exec_module(module)
    return module


experiment = _load()


@pytest.mark.parametrize("name", sorted(experiment.SIZES))
def test_equal_steps_cost_what_the_grown_run_costs(name: str) -> None:
    """A model of 12 layers spends in `equal_steps` what 6 layers up to the growth and 12 after it spend in `steps`."""
    size, recipe = experiment.SIZES[name], resolve([Layer("test", read_yaml(RECIPES / f"{name}.yaml"))]).recipe
    spec: TokenInput | ImageInput
    if recipe.data.name == "wikitext2":
        vocabulary = 256 if recipe.data.tokenizer == "byte" else int(str(recipe.data.tokenizer).removeprefix("bpe:"))
        spec = TokenInput(vocabulary_size=vocabulary, sequence_length=recipe.data.sequence_length)
    else:
        spec = ImageInput(channels=3, height=32, width=32, patch_size=recipe.model.patch_size, num_classes=10)
    task: Task = "lm" if recipe.data.name == "wikitext2" else "classify"
    shallow, deep = (
        training_flops_per_token(new_architecture(recipe.model.model_copy(update={"layers": n}), task, spec))
        for n in (6, 12)
    )
    assert recipe.train.steps == size.steps
    assert size.equal_steps == round(size.steps - size.at + size.at * shallow / deep)


def test_the_sets_have_the_arms_of_the_experiment() -> None:
    headline, defaults = experiment.SETS["headline"], experiment.SETS["defaults"]
    assert headline.arms[0] == "scratch-12"
    assert not set(headline.seeds) & (set(defaults.seeds) | set(experiment.SETS["rates"].seeds)), "tuned on other seeds"
    assert len(defaults.arms) * len(defaults.seeds) <= 12
    assert all(arm in experiment.ARMS for chosen in experiment.SETS.values() for arm in chosen.arms)


def plan(folder: Path, *arms: str, seeds: tuple[int, ...] = (3, 4)) -> Any:
    size = replace(experiment.SIZES["wikitext2-cpu"], steps=20, at=8, equal_steps=17)
    return experiment.Plan(RECIPES / "wikitext2-cpu.yaml", size, folder, "scratch-12", arms, seeds)


def test_arms_that_start_from_one_shallow_model_share_it(tmp_path: Path) -> None:
    found = plan(tmp_path, "scratch-12", "attention", "zero", "scratch-6", "at-50", "many-late")
    assert [str(job) for job in found.shallow_jobs()] == [
        f"{name}, seed {seed}" for seed in (3, 4) for name in ("shallow-6-8", "shallow-6-10", "shallow-2-16")
    ]
    commands = {str(job): job.commands for job in found.arm_jobs()}
    parents = {commands[f"{arm}, seed 3"][0][1] for arm in ("attention", "zero", "scratch-6")}
    assert parents == {str(tmp_path / "shallow-6-8" / "seed-3")}
    for job in found.arm_jobs():
        trained = sum(int(command[command.index("--steps") + 1]) for command in job.commands if command[0] == "train")
        start = {"at-50": 10, "many-late": 16, "scratch-12": 0}.get(job.name, 8)
        assert start + trained == 20, "every arm ends with the same step"


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(RECIPES.parent))
    (tmp_path / "logs").mkdir()
    return experiment.Runner(tmp_path / "logs", 2, experiment.lock(tmp_path))


TINY = (
    *("--width", "16", "--steps", "6", "-o", "model.heads=2", "-o", "data.sequence_length=16"),
    *("-o", "train.batch_size=4", "-o", "train.eval_batches=2"),
)


def test_what_is_done_is_skipped_and_a_failure_stops_no_other_job(tmp_path: Path, runner: Any) -> None:
    good = experiment.Job("good", 0, (("train", *TINY, "--out", "good"),))
    bad = experiment.Job("bad", 0, (("train", "--width", "-1"), ("train", *TINY, "--out", "never")))
    assert runner.all([bad, good]) == [bad]
    assert runner.log(bad).read_text().count("error: ") == 2, "tried twice, and the reason is in its log"
    assert not (tmp_path / "never").exists(), "a command after a failed one does not run"
    run = RunFolder(tmp_path / "good")
    before = {file: file.stat().st_mtime_ns for file in run.path.rglob("*") if file.is_file()}
    assert runner.all([good]) == []
    assert {file: file.stat().st_mtime_ns for file in run.path.rglob("*") if file.is_file()} == before


def test_the_report_holds_what_there_is_against_the_baseline_of_the_set(tmp_path: Path) -> None:
    def made(*arms: str) -> None:
        for arm in arms:
            (tmp_path / "out" / arm / "seed-3" / "checkpoints" / "step-00000020").mkdir(parents=True)

    found = plan(tmp_path / "out", "attention", "zero", experiment.EQUAL)
    assert found.reports() == []
    made("attention")
    assert found.reports() == [], "no other arm may take the place of the baseline"
    made("scratch-12")
    (command,) = found.reports()
    assert command[1:3] == (str(tmp_path / "out" / "scratch-12"), str(tmp_path / "out" / "attention"))
    assert command[3] == "--report", "an arm without runs is left out"
    made(experiment.EQUAL)
    assert [Path(command[1]).name for command in found.reports()] == ["scratch-12", experiment.EQUAL]


def test_a_command_that_outlives_a_killed_script_keeps_the_next_one_waiting(tmp_path: Path) -> None:
    """The lock is inherited: it is free when the script and all its commands have ended, and not before."""
    held = experiment.lock(tmp_path)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=(held,))
    os.close(held)  # the script is gone
    waiting = threading.Thread(target=lambda: os.close(experiment.lock(tmp_path)), daemon=True)
    waiting.start()
    waiting.join(0.5)
    assert waiting.is_alive()
    child.communicate(b"\n")
    waiting.join(30)
    assert not waiting.is_alive()


def test_a_signal_reaches_every_run_and_each_saves(tmp_path: Path) -> None:
    """SIGTERM in mid-run reaches every command, and each leaves a checkpoint of its very step."""
    data = os.environ.get("PPDGROW_DATA")
    if not data or not (Path(data) / "wikitext-2").is_dir():
        pytest.skip("needs PPDGROW_DATA with wikitext-2/")
    line = [sys.executable, str(RECIPES / "experiment.py"), "wikitext2-cpu", "--arms", "scratch-12", "--no-report"]
    line += ["--seeds", "5", "6", "--out", str(tmp_path / "out")]
    environment = os.environ | {"PYTHONPATH": str(RECIPES.parent), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(line, env=environment, stderr=subprocess.PIPE, text=True)
    runs = [RunFolder(tmp_path / "out" / "scratch-12" / f"seed-{seed}") for seed in (5, 6)]
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not all(read_jsonl(run.metrics_path) for run in runs):
        time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 143
    assert "give the same line again" in said
    for run in runs:
        newest = run.newest_valid()
        assert newest is not None
        assert newest == run.checkpoint_path(read_jsonl(run.metrics_path)[-1]["step"])
