"""Recipes and scripts: each parses against the real schema, says how to run it, and names only real options."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import torch

from ppdgrow.config.load import Layer, read_yaml, resolve
from ppdgrow.config.schema import flatten, recipe_keys
from ppdgrow.config.yaml12 import format_value, parse_yaml
from ppdgrow.nn import branches
from ppdgrow.nn.coupling import Coupling, Pair

ROOT = Path(__file__).parent.parent
RECIPES = sorted((ROOT / "recipes").glob("*.yaml"))
SCRIPTS = sorted([*(ROOT / "recipes").glob("*.sh"), ROOT / "tests" / "run.sh", ROOT / ".ci" / "run"])
SURFACE = ROOT / "tests" / "cli" / "surface"


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.name)
def test_every_recipe_is_valid_and_says_how_to_run_it(path: Path) -> None:
    resolve([Layer(f"recipe {path}", read_yaml(path))])
    assert f"--recipe recipes/{path.name}" in path.read_text()


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_every_script_parses(path: Path) -> None:
    subprocess.run(["sh" if path.suffix else "bash", "-n", path], check=True)


@pytest.mark.parametrize("path", [*SCRIPTS, ROOT / "README.md"], ids=lambda path: path.name)
def test_every_ppdgrow_command_uses_options_that_exist(path: Path) -> None:
    text = path.read_text().replace("\\\n", " ")
    for command, rest in re.findall(r"^\s*ppdgrow (train|grow|probe|compare)\b(.*)$", text, flags=re.MULTILINE):
        help_text = (SURFACE / f"{command}.txt").read_text()
        for option in re.findall(r"(?<!\S)(--[a-z-]+|-o)\b", rest.split("#")[0]):
            assert option in help_text, f"{path.name}: ppdgrow {command} has no {option}"


def test_the_gate_runs_the_test_command_of_the_readme() -> None:
    assert "sh tests/run.sh" in (ROOT / ".ci" / "run").read_text()
    assert "sh tests/run.sh" in (ROOT / "README.md").read_text()
    assert "sh recipes/quickstart.sh" in (ROOT / "README.md").read_text()


def test_the_branch_of_the_readme_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The example class as it stands there, entered into the registry, cancels to the last bit."""
    section = (ROOT / "README.md").read_text().partition("\n## Adding a kind\n")[2]
    block = re.findall(r"^```python\n(.*?)^```", section, flags=re.MULTILINE | re.DOTALL)[0]
    namespace = dict(vars(branches))
    exec(block, namespace)
    monkeypatch.setitem(branches.BRANCHES, "gate", namespace["Gate"])
    config = branches.BranchConfig(8, heads=2, ffn_multiplier=4, kernel_size=4, norm="layer")
    pair = Pair(Coupling(("gate", "mlp"), config, causal=True), None, "inverse")
    for parameter in pair.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    x = torch.randn(2, 5, 8), torch.randn(2, 5, 8)
    assert all(torch.equal(before, after) for before, after in zip(x, pair(x), strict=True))
    assert not torch.equal(pair.plus(x)[0], x[0]), "the branch does something"


def test_the_readme_has_every_recipe_key_with_its_default() -> None:
    section = (ROOT / "README.md").read_text().partition("\n## Recipes\n")[2]
    (block,) = re.findall(r"^```yaml\n(.*?)^```", section, flags=re.MULTILINE | re.DOTALL)
    shown = flatten(parse_yaml(block, "README.md"))
    assert {key: format_value(value) for key, value in shown.items()} == {
        key: format_value(default) for key, default in recipe_keys().items()
    }


def test_the_tests_that_the_readme_names_are_there() -> None:
    named = re.findall(r"`(tests/[a-z_/]+\.py)`", (ROOT / "README.md").read_text())
    assert len(set(named)) >= 9
    for path in named:
        assert "def test_" in (ROOT / path).read_text() or "bench" in path, path
