"""Pairs are cut and drawn without holding a layer in memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from test_memory import CHILD, LARGE, LIMIT, sparse_llama

PLAIN = 'grow_plain(read_folder(Path(sys.argv[1])), method="zero", positions=[3], out=Path(sys.argv[2]))'
PAIRS = """grow_pairs(
    read_folder(Path(sys.argv[1])), kinds=["attention", "ffn"], positions=[1, 3], out=Path(sys.argv[2]),
    source=sys.argv[3], seed=0)"""


@pytest.mark.slow
@pytest.mark.parametrize("source", ["slice", "random"])
def test_memory_stays_below_300_mb(source: str, tmp_path: Path) -> None:
    child = CHILD.replace(PLAIN, PAIRS).replace("plain import grow_plain", "pairs import grow_pairs")
    child = child.replace("int(sys.argv[3])", "0")
    assert PAIRS in child
    size = sparse_llama(tmp_path / "parent", LARGE)
    assert size > 2 * LIMIT
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", child, str(tmp_path / "parent"), str(tmp_path / "out"), source],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["peak"] < LIMIT
