"""What made a result, for the record: the command, the version and commit of this code, and the machine."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

from ppdgrow import __version__

_CPU_INFO = Path("/proc/cpuinfo")
_PACKAGE = Path(__file__).resolve().parent


def provenance() -> dict[str, Any]:
    """Command line, `ppdgrow` version, `commit` (None outside a checkout), Python version, machine."""
    program = Path(sys.argv[0]).name if sys.argv and sys.argv[0] else "python"
    return {
        "command": shlex.join(["ppdgrow" if program == "__main__.py" else program, *sys.argv[1:]]),
        "ppdgrow": __version__,
        "commit": commit(_PACKAGE),
        "python": platform.python_version(),
        "machine": machine(),
    }


@cache
def commit(package: Path) -> str | None:
    """The commit of the checkout that `package` is part of, with `-dirty` where tracked files differ from it.

    None where there is no git, or where the folder only lies inside somebody else's checkout.
    """
    tracked = _git(package, "ls-files", "--error-unmatch", "__init__.py")
    return _git(package, "describe", "--always", "--exclude", "*", "--abbrev=12", "--dirty") if tracked else None


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    return done.stdout.strip() or None


@cache
def machine() -> str:
    """Processor and number of cores; a GPU is named by the environment of a run."""
    try:
        text = _CPU_INFO.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        text = ""
    lines = (line.partition(":") for line in text.partition("\n\n")[0].splitlines())
    details = {key.strip(): value.strip() for key, _, value in lines}
    name = details.get("model name") or platform.processor() or platform.machine()
    if "cpu family" in details:
        name += f" (family {details['cpu family']}, model {details.get('model', '?')})"
    return f"{name}, {os.cpu_count()} cores"
