"""DESIGN section 6: imports point downward, between folders and within them; no torch below nn, nor in the help."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "ppdgrow"
# From the ground up. What stands in one row does not know what stands beside it.
FLOORS = (
    ("errors", "signals", "units"),
    ("provenance", "seeding", "statistics", "atomic"),
    ("console",),
    ("config",),
    ("nn", "data"),
    ("checkpoint", "optim"),
    ("surgery", "pretrained"),
    ("engine",),
    ("training",),
    ("growth",),
    ("comparison", "probing"),
    ("api",),
    ("cli",),
)
NO_TORCH = ("cli", "console", "config.load", "atomic", "statistics", "console.picture", "provenance")
ENTRY = ("__init__", "__main__")  # of the package itself: they look the others up when called
Graph = dict[str, set[str]]


def read_package() -> dict[str, str]:
    """Source by dotted module name below `ppdgrow`."""
    return {
        ".".join(path.relative_to(PACKAGE).with_suffix("").parts): path.read_text(encoding="utf-8")
        for path in sorted(PACKAGE.rglob("*.py"))
    }


def imports(source: str) -> Iterator[str]:
    """Every ppdgrow module or name that a file imports, also inside functions and under TYPE_CHECKING."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = (alias.name for alias in node.names)
            yield from (name.removeprefix("ppdgrow.") for name in names if name.startswith("ppdgrow."))
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            module = node.module or ""
            if module == "ppdgrow" or module.startswith("ppdgrow."):
                yield from (f"{module}.{alias.name}".removeprefix("ppdgrow.") for alias in node.names)


def module_graph(sources: dict[str, str]) -> Graph:
    """Which module imports which; a name imported from a folder is the folder's `__init__`."""
    graph: Graph = {}
    for name, source in sources.items():
        targets = set()
        for wanted in imports(source):
            parts = wanted.split(".")
            tries = [".".join(parts[:length]) for length in range(len(parts), 0, -1)]
            tries = [candidate for one in tries for candidate in (one, f"{one}.__init__")]
            targets |= {next((candidate for candidate in tries if candidate in sources), "")} - {"", name}
        graph[name] = targets
    return graph


def room(module: str) -> str:
    return module.split(".")[0]


def upward(graph: Graph) -> list[str]:
    """Imports that do not point to a lower floor."""
    level = {name: number for number, row in enumerate(FLOORS) for name in row}
    return [
        f"{module} imports {target}"
        for module, targets in graph.items()
        for target in sorted(targets)
        if not {module, target} & set(ENTRY)
        and room(module) != room(target)
        and level[room(target)] >= level[room(module)]
    ]


def circle(graph: Graph) -> list[str]:
    """Some modules that import each other in a ring, if there are any."""
    done: set[str] = set()

    def visit(module: str, path: list[str]) -> list[str]:
        if module in path:
            return [*path[path.index(module) :], module]
        if module in done:
            return []
        for target in sorted(graph.get(module, ())):
            found = visit(target, [*path, module])
            if found:
                return found
        done.add(module)
        return []

    return next((found for module in graph if (found := visit(module, []))), [])


def between_rooms(graph: Graph) -> Graph:
    rooms: Graph = {}
    for module, targets in graph.items():
        if module not in ENTRY:
            known = rooms.setdefault(room(module), set())
            known |= {room(target) for target in targets if target not in ENTRY} - {room(module)}
    return rooms


def test_imports_point_downward() -> None:
    assert upward(module_graph(read_package())) == []


def test_no_modules_and_no_folders_import_each_other_in_a_ring() -> None:
    graph = module_graph(read_package())
    del graph["__init__"], graph["__main__"]
    assert circle(graph) == []
    assert circle(between_rooms(graph)) == []


@pytest.mark.parametrize(
    "line",
    [
        "from ppdgrow.growth.trial_round import Round",
        "from ppdgrow import growth",
        "import ppdgrow.growth.trial_round",
        "def f():\n    from ppdgrow.growth.trial_round import Round",
        "if TYPE_CHECKING:\n    from ppdgrow.growth.trial_round import Round",
    ],
)
def test_control_an_upward_import_is_seen(line: str) -> None:
    sources = read_package()
    sources["engine.loop"] += f"\n{line}\n"
    assert any(fault.startswith("engine.loop imports growth") for fault in upward(module_graph(sources)))


def test_control_an_import_of_a_neighbour_is_seen() -> None:
    sources = read_package()
    sources["probing.probe"] += "\nfrom ppdgrow.comparison.compare import compare_runs\n"
    assert upward(module_graph(sources)) == ["probing.probe imports comparison.compare"]


def test_control_a_ring_within_a_folder_is_seen() -> None:
    sources = read_package()
    sources["config.kinds"] += "\ndef late():\n    from ppdgrow.config.load import resolve\n"
    assert "config.kinds" in circle(module_graph(sources))


def test_control_a_ring_of_folders_is_seen() -> None:
    sources = read_package()
    sources["data.dataset"] += "\nfrom ppdgrow.training.context import Setting\n"
    assert set(circle(between_rooms(module_graph(sources)))) == {"data", "training"}


def test_every_room_has_a_floor() -> None:
    rooms = {p.name.removesuffix(".py") for p in PACKAGE.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()}
    assert rooms - set(ENTRY) == {name for row in FLOORS for name in row}


@pytest.mark.parametrize("folder", sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py")))
def test_every_folder_says_what_it_holds_and_what_it_may_import(folder: str) -> None:
    words = ast.get_docstring(ast.parse((PACKAGE / folder / "__init__.py").read_text(encoding="utf-8"))) or ""
    assert "May import" in words


@pytest.mark.parametrize("module", NO_TORCH)
def test_no_torch_on_floor_0_and_in_the_help(module: str) -> None:
    heavy = ("torch", "torchvision", "datasets", "tokenizers", "numpy")
    code = f"import sys, ppdgrow.{module}; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
