"""The command line as it stands: a change of its surface must be meant.

To accept a change: `PPDGROW_WRITE_SURFACE=1 pytest tests/cli/test_surface.py`, then read the diff.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

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
