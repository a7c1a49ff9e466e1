"""The command line as it stands: a change of its surface must be meant.

To accept a change: `PPDGROW_WRITE_SURFACE=1 pytest tests/cli/test_surface.py`, then read the diff.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ppdgrow.config.explain import key_table

SURFACE = Path(__file__).parent / "surface"
COMMANDS = ["", "train", "grow", "probe", "compare"]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_plain_grouped_and_as_recorded(command: str) -> None:
    environment = os.environ | {"COLUMNS": "80", "PYTHONIOENCODING": "ascii", "NO_COLOR": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "ppdgrow", *command.split(), "--help"],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    assert done.stdout.isascii()
    assert "Example:" in done.stdout
    assert done.stderr == ""
    recorded = SURFACE / f"{command or 'ppdgrow'}.txt"
    if os.environ.get("PPDGROW_WRITE_SURFACE"):
        SURFACE.mkdir(exist_ok=True)
        recorded.write_text(done.stdout)
    assert done.stdout == recorded.read_text()


def test_the_recipe_keys_are_listed_one_a_line() -> None:
    command = [sys.executable, "-m", "ppdgrow", "train", "--keys"]
    listed, document = (
        subprocess.run([*command, *more], capture_output=True, text=True, check=True).stdout
        for more in ([], ["--json"])
    )
    assert [line.split()[0] for line in listed.splitlines()] == ["key", *(key for key, *_ in key_table())]
    assert re.search(r"^train\.clip_norm +1\.0 +a number greater than 0 +largest gradient norm", listed, re.MULTILINE)
    assert listed.isascii()
    assert [tuple(row.values()) for row in json.loads(document)["keys"]] == list(key_table())
