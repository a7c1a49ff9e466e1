"""Ways in which the file system and the kernel let a process down."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any


def leftovers(folder: Path) -> list[Path]:
    return sorted(folder.rglob(".tmp-*"))


def failing(number: int, call: Callable[..., Any], at: int = 1) -> Callable[..., Any]:
    """A system call that fails with an error number, from its `at`-th call on."""
    calls = 0

    def fail(*args: Any, **keys: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls >= at:
            raise OSError(number, os.strerror(number))
        return call(*args, **keys)

    return fail


def in_child(work: Callable[[], object]) -> int:
    """Do something in a forked process; how it ended, as `Popen.returncode` says it."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def die(*args: Any, **keys: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)
