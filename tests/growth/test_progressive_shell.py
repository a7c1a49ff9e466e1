"""The loop of single commands in recipes/progressive.sh and the one command with a recipe: one and the same run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from command_line import TINY, Command
from equality import events, result

from ppdgrow.config.load import Layer, read_yaml, resolve
from ppdgrow.config.schema import Recipe

ROOT = Path(__file__).parents[2]
RECIPE = """
growth:
  - {at: 100, method: fresh, position: end, scale: 100.0, trial: {steps: 3}, on_reject: {lower_lr: 0.5, retries: 1}}
  - {at: 110, pair: attention, trial: {steps: 4, rule: twin, margin: 1.0}}
"""
ROUNDS = """
100|3|--rule parent|0.5|1|--method fresh --position end --scale 100
110|4|--rule twin --margin 1.0|1.0|0|--pair attention
"""


def fake_environment(folder: Path) -> dict[str, str]:
    """An environment that is installed already and holds this very interpreter."""
    (folder / "bin").mkdir(parents=True)
    program = folder / "bin" / "ppdgrow"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ppdgrow "$@"\n')
    program.chmod(0o755)
    (folder / "installed").touch()
    return os.environ | {
        "PPDGROW_VENV": str(folder),
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "PYTHON": sys.executable,
    }


@pytest.mark.slow
def test_the_shell_loop_and_the_recipe_agree(ppdgrow: Command, tmp_path: Path) -> None:
    (tmp_path / "timeline.yaml").write_text(RECIPE)
    options = [*TINY, "-o", "train.lr=1e-2", "-o", "model.layers=2"]
    ppdgrow("train --recipe timeline.yaml --steps 120 --out whole --quiet", *options)

    settings = {"OUT": str(tmp_path / "steps"), "RECIPE": str(tmp_path / "timeline.yaml"), "STEPS": "120"}
    environment = fake_environment(tmp_path / "venv") | settings | {"ROUNDS": ROUNDS, "OPTIONS": " ".join(options)}
    script = ["sh", str(ROOT / "recipes" / "progressive.sh")]
    done = subprocess.run(script, env=environment, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == str(tmp_path / "steps" / "final")

    verdicts = re.findall(r"^verdict: (\w+) by the (\w+) rule", done.stdout, flags=re.MULTILINE)
    decisions = [event for event in events("whole") if event["event"] == "decision"]
    assert verdicts == [(event["decision"], event["rule"]) for event in decisions]
    assert [verdict for verdict, _ in verdicts] == ["reject", "reject", "accept"]
    whole, steps = result("whole"), result(str(tmp_path / "steps" / "final"))
    assert whole["tensors"].keys() == steps["tensors"].keys()
    assert all((whole["tensors"][name] == steps["tensors"][name]).all() for name in whole["tensors"])


def rounds_of(recipe: Recipe) -> list[list[str]]:
    """The growths of a recipe as the script writes them."""
    lines = []
    for entry in recipe.growth:
        trial, again = entry.trial, entry.on_reject
        rule = f"--rule {trial.rule}"
        rule += f" --epsilon {trial.epsilon}" if trial.epsilon else ""
        rule += f" --margin {trial.margin}" if trial.margin != 0.01 else ""
        growth: dict[str, Any] = {"--position": entry.position, "--scale": entry.scale, "--moments": entry.moments}
        defaults = {"--position": "interleave", "--scale": 1.0, "--moments": "copy_v"}
        how = f"--method {entry.method}" if entry.method != "pair" else f"--pair {','.join(entry.pair)}"
        how += f" --pairs {entry.pairs}" if entry.pairs != 1 else ""
        how += "".join(f" {flag} {value}" for flag, value in growth.items() if value != defaults[flag])
        retries = 0 if again.remove else again.retries
        lines.append([str(entry.at), str(trial.steps), rule, str(again.lower_lr or 1.0), str(retries), how])
    return lines


def test_the_script_and_the_recipe_beside_it_hold_the_same_ladder() -> None:
    recipe = resolve([Layer("recipe", read_yaml(ROOT / "recipes" / "progressive.yaml"))]).recipe
    text = (ROOT / "recipes" / "progressive.sh").read_text()
    rounds = re.search(r'^ROUNDS="\$\{ROUNDS:-\n(.*?)\n\}"$', text, flags=re.MULTILINE | re.DOTALL)
    assert rounds is not None
    assert [line.split("|") for line in rounds[1].splitlines()] == rounds_of(recipe)
    assert f'STEPS="${{STEPS:-{recipe.train.steps}}}"' in text
