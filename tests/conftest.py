"""Shared fixtures: one torch thread, the command line in process, real data where it is present."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from command_line import TINY, Command, Result

from ppdgrow.cli import build_app
from ppdgrow.cli.app import run
from ppdgrow.data import Split
from ppdgrow.data.batches import Batch, Batches
from ppdgrow.data.named import Stdlib

_SOURCES: dict[str, bytes] = {}


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Nothing is read from, or left in, the cache of whoever runs the tests."""
    os.environ["PPDGROW_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder with wikitext-2/ and cifar10/; tests that need it skip without."""
    folder = Path(os.environ.get("PPDGROW_DATA", Path(__file__).parent.parent.parent / "shared" / "data"))
    if not (folder / "wikitext-2" / "train.txt").is_file():
        pytest.skip(f"no real data: set PPDGROW_DATA to a folder with wikitext-2/ and cifar10/ (looked in {folder})")
    return folder


@pytest.fixture(autouse=True)
def _sources_are_read_once(request: pytest.FixtureRequest) -> Iterator[None]:
    """The default data set without 2,000 files to open in each command, and with a test split that is soon read."""
    if request.path.name == "test_data_text.py":  # it looks at how they are read
        yield
        return
    read = Stdlib.read

    def once(self: Stdlib, split: Split) -> bytes:
        if split not in _SOURCES:
            _SOURCES[split] = read(self, split)[: 40_000 if split == "test" else None]
        return _SOURCES[split]

    with pytest.MonkeyPatch.context() as patch:  # of its own: a test may undo what it patched itself
        patch.setattr(Stdlib, "read", once)
        yield


@pytest.fixture
def ppdgrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    """Run a command line in a fresh folder; a failure that was not asked for fails the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PPDGROW_DATA", raising=False)

    def command(line: str, *more: str, code: int = 0) -> Result:
        capfd.readouterr()
        found = run(build_app(), [*line.split(), *more])
        out, err = capfd.readouterr()
        assert found == code, f"exit code {found}, expected {code}\n{out}\n{err}"
        assert "Traceback" not in err
        return Result(found, out, err)

    return command


@pytest.fixture
def shallow(ppdgrow: Command) -> Path:
    """A trained, undecayed two-layer model."""
    ppdgrow("train --layers 2 --steps 10 --no-decay --out shallow --quiet", *TINY)
    return Path("shallow")


@pytest.fixture
def stop_at(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Send this process a signal while a step's batch is drawn, the first time or a later one (an arm of a round)."""
    draw = Batches.at

    def arm(step: int, number: int, occurrence: int = 1) -> None:
        seen = 0

        def at(self: Batches, now: int) -> Batch:
            nonlocal seen
            seen += now == step
            if now == step and seen == occurrence:
                monkeypatch.setattr(Batches, "at", draw)
                os.kill(os.getpid(), number)
            return draw(self, now)

        monkeypatch.setattr(Batches, "at", at)

    return arm
