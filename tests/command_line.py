"""The command line in process, on tiny models."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TINY = ["--width", "16"]
for key, value in {
    "model.heads": 2,
    "data.sequence_length": 16,
    "train.batch_size": 4,
    "train.eval_batches": 2,
    "train.eval_every": 5,
    "train.save_every": 6,
    "train.warmup_steps": 2,
}.items():
    TINY += ["-o", f"{key}={value}"]


@dataclass(frozen=True)
class Result:
    """What a command left on the terminal."""

    code: int
    stdout: str
    stderr: str

    @property
    def document(self) -> dict[str, Any]:
        """The JSON of stdout."""
        return json.loads(self.stdout)


Command = Callable[..., Result]


def snapshot() -> dict[str, str]:
    """The sha256 of every file below the current folder, by path."""
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(Path().rglob("*")) if path.is_file()
    }
