"""README's "Adding a kind", done from its text alone on a copy of the package: one class, one line, four commands."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import TINY

from ppdgrow.config.kinds import PAIR_NAMES

ROOT = Path(__file__).parent.parent
SECTION = (ROOT / "README.md").read_text(encoding="utf-8").partition("\n## Adding a kind\n")[2].partition("\n## ")[0]
COMMANDS = """
train --data text.txt --layers 2 --steps 4 --no-decay --out shallow --quiet {tiny}
grow shallow --pair {kind} --out grown --quiet
probe grown --plot probe.png --quiet
train grown --steps 4 --out trained --quiet
grow trained --pair {kind} --out again --quiet
compare shallow trained --quiet
"""
SCRIPT = """
import shlex, sys
from ppdgrow.cli import build_app
from ppdgrow.cli.app import run
for line in sys.argv[1:]:
    if code := run(build_app(), shlex.split(line)):
        sys.exit(f"exit code {code}: {line}")
"""


def follow(text: str, package: Path) -> str:
    """Do what the text says to a copy of the package; the name of the new kind."""
    new_class, new_line = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    insert(package / "nn" / "branches.py", "BRANCHES", f"{new_class}\n\n", ahead=True)
    insert(package / "config" / "kinds.py", "KINDS", new_line, ahead=False)
    return new_line.split('"')[1]


def insert(path: Path, registry: str, text: str, *, ahead: bool) -> None:
    """Put a text before a registry, or into it as its last line."""
    source = path.read_text(encoding="utf-8")
    start = source.index(f"\n{registry}: ") + 1
    place = start if ahead else source.index("\n}\n", start) + 1
    path.write_text(source[:place] + text + source[place:], encoding="utf-8")


def test_one_class_and_one_line_are_enough_for_every_command(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "ppdgrow", tmp_path / "ppdgrow", ignore=shutil.ignore_patterns("__pycache__"))
    kind = follow(SECTION, tmp_path / "ppdgrow")
    assert kind not in PAIR_NAMES, "a kind that is there already proves nothing"
    (tmp_path / "text.txt").write_text("To be, or not to be: that is the question.\n\n" * 200, encoding="utf-8")
    pytest.importorskip("matplotlib")
    lines = COMMANDS.format(kind=kind, tiny=" ".join(TINY)).split("\n")[1:-1]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *lines],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "probe.png").stat().st_size > 1000
    assert kind in (tmp_path / "trained" / "growth.jsonl").read_text(encoding="utf-8")


def test_control_without_the_line_there_is_no_such_kind(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "ppdgrow", tmp_path / "ppdgrow", ignore=shutil.ignore_patterns("__pycache__"))
    kinds = (tmp_path / "ppdgrow" / "config" / "kinds.py").read_text(encoding="utf-8")
    kind = follow(SECTION, tmp_path / "ppdgrow")
    assert f'"{kind}"' not in kinds
    with pytest.raises(ValueError, match="not enough values"):
        follow(re.sub(r"```python\n +\".*?```", "", SECTION, flags=re.DOTALL), tmp_path / "ppdgrow")
