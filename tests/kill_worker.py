"""Commands in forked processes that die where a test says: at a moment, at an operation on files, at a call.

A server process imports everything once and forks a child for each command, since to import torch takes seconds. It
never computes anything itself, so that its children start without threads.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod", "os.truncate", "os.link", "os.symlink")
DEADLINE = 120.0


@dataclass(frozen=True)
class Place:
    """A call (`module:name.name`), and what happens just before it: a signal to oneself, or to wait for ever.

    `nth` is which of the calls, the first is 1; `number` is None where the process is to wait.
    """

    target: str
    nth: int = 1
    number: int | None = None


@dataclass(frozen=True)
class Outcome:
    """How a command ended.

    `code` is negative if a signal killed it. `steps` are the last steps done, by run folder. `operations` is each
    operation on a file of the folder. `leaving` is the time from the (last) signal to the end.
    """

    code: int
    seconds: float
    leaving: float
    stdout: str
    stderr: str
    steps: dict[str, int]
    operations: list[str]

    @property
    def killed(self) -> bool:
        """Whether SIGKILL ended it."""
        return self.code == -signal.SIGKILL


class Worker:
    """The client: starts the server, and has commands run one at a time.

    `scratch` holds what they print, `modules` are further ones for the server to import.
    """

    def __init__(self, scratch: Path, modules: Sequence[str] = ()) -> None:
        self._scratch = scratch
        root = str(Path(__file__).parents[1])
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": root}
        self._server = subprocess.Popen(
            [sys.executable, str(Path(__file__)), *modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_error: object) -> None:
        """End the server."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.close()
        self._server.wait(timeout=DEADLINE)
        self._server.stdout.close()

    def run(
        self,
        folder: Path,
        arguments: Sequence[str],
        *,
        kill_after: float | None = None,
        kill_at: int | None = None,
        torn: bool = False,
        places: Sequence[Place] = (),
        signals: Sequence[tuple[float, int]] = (),
        in_place: bool = False,
    ) -> Outcome:
        """Run a command line in a folder.

        Args:
            folder: the current folder of the command.
            arguments: without the program's name.
            kill_after: seconds until SIGKILL.
            kill_at: the operation on files before which the process kills itself, from 0.
            torn: with `kill_at`, if that operation flushes a file, the file loses its end, as if it were half-written.
            places: calls at which something happens.
            signals: seconds and signal, one after the other, from the start, or from the moment at which a place waits.
            in_place: the negative control: folders are written where they will stand.
        """
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        log = self._scratch / "log"
        for name in ("out", "err", "steps", "operations", "reached"):
            log.with_suffix(f".{name}").unlink(missing_ok=True)
        request = {
            "folder": str(folder),
            "arguments": list(arguments),
            "kill_after": kill_after,
            "kill_at": kill_at,
            "torn": torn,
            "places": [asdict(place) for place in places],
            "signals": list(signals),
            "in_place": in_place,
            "log": str(log),
        }
        self._server.stdin.write(f"{json.dumps(request)}\n")
        self._server.stdin.flush()
        reply = json.loads(self._server.stdout.readline())
        steps = {}
        for line in _text(log, "steps").splitlines():
            run, _, step = line.rpartition(" ")
            steps[run] = int(step)
        operations = _text(log, "operations").splitlines()
        return Outcome(**reply, stdout=_text(log, "out"), stderr=_text(log, "err"), steps=steps, operations=operations)


def _text(log: Path, kind: str) -> str:
    path = log.with_suffix(f".{kind}")
    return path.read_text() if path.exists() else ""


def _serve() -> None:
    import torch

    torch.set_num_threads(1)
    for name in ("cli", "cli.app", "growth.train", "growth.grow", "comparison.compare"):
        importlib.import_module(f"ppdgrow.{name}")
    for name in ("ppdgrow.probing.probe", "torch._dynamo", "tokenizers", "safetensors.torch", *sys.argv[1:]):
        importlib.import_module(name)
    for line in sys.stdin:
        print(json.dumps(_request(json.loads(line))), flush=True)


def _request(request: dict[str, Any]) -> dict[str, Any]:
    started = time.monotonic()
    pid = os.fork()
    if pid == 0:
        _child(request)
    ended = os.pidfd_open(pid)
    reached = Path(request["log"]).with_suffix(".reached")
    leaving_from = started
    try:
        if request["kill_after"] is not None and not _wait(ended, request["kill_after"]):
            os.kill(pid, signal.SIGKILL)
        waits = any(place["number"] is None for place in request["places"])
        while waits and request["signals"] and not reached.exists() and not _wait(ended, 0.005):
            pass
        for delay, number in request["signals"]:
            if not _wait(ended, delay):
                leaving_from = time.monotonic()
                os.kill(pid, number)
        if not _wait(ended, DEADLINE):
            os.kill(pid, signal.SIGKILL)
    finally:
        os.close(ended)
    _, status = os.waitpid(pid, 0)
    now = time.monotonic()
    if reached.exists() and not waits:
        leaving_from = float(reached.read_text())
    return {"code": os.waitstatus_to_exitcode(status), "seconds": now - started, "leaving": now - leaving_from}


def _wait(descriptor: int, seconds: float) -> bool:
    """Whether the process of a pidfd has ended, after so many seconds at most."""
    return bool(select.select([descriptor], [], [], seconds)[0])


def _child(request: dict[str, Any]) -> None:
    code = 99
    try:
        log = Path(request["log"])
        for descriptor, kind in ((1, "out"), (2, "err")):
            file = os.open(log.with_suffix(f".{kind}"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(file, descriptor)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.chdir(request["folder"])
        _report_steps(log.with_suffix(".steps"))
        if request["in_place"]:
            _write_in_place()
        for place in request["places"]:
            _patch(Place(**place), log.with_suffix(".reached"))
        _watch_operations(log.with_suffix(".operations"), request["kill_at"], request["torn"])
        from ppdgrow.cli import build_app
        from ppdgrow.cli.app import run

        code = run(build_app(), request["arguments"])
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _report_steps(path: Path) -> None:
    """Have each trainer say the steps that it has done."""
    from ppdgrow.engine.loop import Engine
    from ppdgrow.training.trainer import Trainer

    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    to, train_step = Trainer.to, Engine._train_step
    current = ""

    def report(self: Any, *arguments: Any, **options: Any) -> Any:
        done = train_step(self, *arguments, **options)
        os.write(file, f"{current} {self.step}\n".encode())
        return done

    def named(self: Any, *arguments: Any, **options: Any) -> None:
        nonlocal current
        current = str(self.run.path)
        to(self, *arguments, **options)

    Engine._train_step = report  # type: ignore[method-assign]
    Trainer.to = named  # type: ignore[method-assign]


def _patch(place: Place, reached: Path) -> None:
    module, _, names = place.target.partition(":")
    *owners, name = names.split(".")
    owner: Any = importlib.import_module(module)
    for part in owners:
        owner = getattr(owner, part)
    original: Callable[..., Any] = getattr(owner, name)
    calls = 0

    def patched(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == place.nth:
            if place.number is None:
                reached.write_text(str(time.monotonic()))
                until = time.monotonic() + DEADLINE
                while time.monotonic() < until:
                    time.sleep(1.0)
            else:
                if not reached.exists():
                    reached.write_text(str(time.monotonic()))
                os.kill(os.getpid(), place.number)
        return original(*arguments, **options)

    setattr(owner, name, patched)


def _write_in_place() -> None:
    """A writer of folders as one must not be."""
    from contextlib import contextmanager

    from ppdgrow import atomic

    @contextmanager
    def in_place(path: Path, *, replace: bool = True) -> Any:
        path.mkdir(parents=True, exist_ok=True)
        yield path

    for module in list(sys.modules.values()):
        if getattr(module, "new_folder", None) is atomic.new_folder and module is not atomic:
            module.new_folder = in_place  # type: ignore[attr-defined]


def _watch_operations(path: Path, kill_at: int | None, torn: bool) -> None:
    """Note each operation on a file below the current folder, and die before one of them.

    Nothing is flushed to the disk: what a killed process has written stays with the kernel.
    """
    here = str(Path.cwd())
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    count = 0
    busy = False

    def note(what: str, where: str, *, to: str = "", descriptor: int | None = None) -> None:
        nonlocal count, busy
        if busy:
            return
        busy = True
        try:
            if count == kill_at:
                if torn and descriptor is not None:
                    _tear(descriptor)
                os.kill(os.getpid(), signal.SIGKILL)
            count += 1
            os.write(log, f"{what} {os.path.relpath(where, here)}{to}\n".encode())
        finally:
            busy = False

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            if not isinstance(arguments[0], str | bytes | os.PathLike) or not arguments[2] & WRITING:
                return
        elif event not in CHANGES:
            return
        where = os.path.abspath(os.fsdecode(arguments[0])) if not isinstance(arguments[0], int) else here  # noqa: PTH100
        if where.startswith(here) and "__pycache__" not in where:
            to = f" -> {os.path.relpath(os.fsdecode(arguments[1]), here)}" if event == "os.rename" else ""
            note(event.removeprefix("os."), where, to=to)

    def noted(descriptor: Any) -> None:
        number = descriptor if isinstance(descriptor, int) else descriptor.fileno()
        where = os.readlink(f"/proc/self/fd/{number}")  # noqa: PTH115
        if where.startswith(here):
            note("fsync", where, descriptor=number)

    os.fsync = noted  # type: ignore[assignment]
    sys.addaudithook(hook)


def _tear(descriptor: int) -> None:
    """Cut a file as if the process had died in the midst of its last `write`."""
    path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))  # noqa: PTH115
    if path.is_file():
        size = path.stat().st_size
        os.truncate(path, max(0, size - 7) if path.suffix == ".jsonl" else size // 2)


if __name__ == "__main__":
    _serve()
