"""DESIGN section 6: imports point downward, and floor 0 and the command line know no torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "ppdgrow"
FLOORS = {
    "errors": 0,
    "atomic": 0,
    "console": 0,
    "layout": 0,
    "terminal": 0,
    "signals": 0,
    "accounting": 0,
    "provenance": 0,
    "config": 0,
    "seeding": 1,
    "nn": 1,
    "data": 2,
    "checkpoint": 2,
    "optim": 2,
    "surgery": 2,
    "engine": 3,
    "experiment": 4,
    "cli": 5,
    "api": 5,
    "arguments": 1,
}


def room(module: str) -> str:
    return module.split(".")[1]


def imports(path: Path) -> list[str]:
    """Every ppdgrow module that a file imports, also inside functions."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            if node.module == "ppdgrow":
                found += [f"ppdgrow.{alias.name}" for alias in node.names]
            else:
                found.append(node.module or "")
    return [name for name in found if name.startswith("ppdgrow.")]


def faults(floors: dict[str, int]) -> list[str]:
    wrong = []
    for path in sorted(PACKAGE.rglob("*.py")):
        here = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if here in ("__init__", "__main__"):
            continue
        for target in imports(path):
            there = room(target)
            if there == "__version__" or there == here:
                continue
            # Floor 0 is one room of small files; elsewhere two rooms of one floor do not know each other.
            allowed = floors[there] < floors[here] or floors[there] == floors[here] <= 1
            if not allowed:
                wrong.append(f"{path.relative_to(PACKAGE)} imports {target}")
    return wrong


def test_imports_point_downward() -> None:
    assert faults(FLOORS) == []


def test_control_the_check_sees_an_upward_import() -> None:
    assert any("imports ppdgrow.engine" in fault for fault in faults(FLOORS | {"experiment": 2}))


def test_every_module_has_a_floor() -> None:
    rooms = {p.name.removesuffix(".py") for p in PACKAGE.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()}
    assert rooms - {"__init__", "__main__"} == set(FLOORS)


@pytest.mark.parametrize("module", ["cli", "console", "accounting", "config.load", "atomic"])
def test_no_torch_on_floor_0_and_in_the_help(module: str) -> None:
    heavy = ("torch", "torchvision", "datasets", "tokenizers", "numpy")
    code = f"import sys, ppdgrow.{module}; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
