"""A growth within a run frees what it leaves behind: the models, optimizers and starting tensors before it."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import TINY, Command

from ppdgrow.checkpoint import RunFolder
from ppdgrow.growth import train as training
from ppdgrow.training.context import RunContext
from ppdgrow.training.preparation import Prepared, prepare
from ppdgrow.training.resume import Start
from ppdgrow.training.trainer import Trainer


class Watch:
    """Notes which of the objects of earlier trainers are alive as each trainer is made."""

    def __init__(self) -> None:
        self.objects: dict[str, weakref.ref[Any]] = {}
        self.alive: list[tuple[str, set[str]]] = []

    def note(self, **objects: object) -> None:
        self.objects |= {name.replace("_", " "): weakref.ref(found) for name, found in objects.items()}

    def look(self, name: str) -> None:
        self.alive.append((name, {name for name, found in self.objects.items() if found() is not None}))


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    """The collector of circles rests: what lies in one would stay for an unknown time."""
    watch, make = Watch(), Trainer.__init__

    def prepared(*args: Any) -> Prepared:
        found = prepare(*args)
        watch.note(model=found.model, tensors=next(iter(found.start.tensors.values())))
        if found.job.parent is not None:
            watch.note(parent=next(iter(found.job.parent.checkpoint.tensors.values())))
        return found

    def made(self: Trainer, context: RunContext, run: RunFolder, start: Start, **options: Any) -> None:
        name = options.get("label", f"run {start.step}")
        watch.look(name)
        make(self, context, run, start, **options)
        watch.note(**{f"model of {name}": self.engine.model, f"optimizer of {name}": self.engine.optimizer})
        if "label" not in options:  # of trials it is the parent's, which the next trial needs
            watch.note(**{f"tensors of {name}": next(iter(start.tensors.values()))})

    monkeypatch.setattr(training, "prepare", prepared)
    monkeypatch.setattr(Trainer, "__init__", made)
    gc.disable()
    yield watch
    gc.enable()


@pytest.mark.parametrize("rule", ["twin", "always"])
@pytest.mark.parametrize("begin", ["--layers 2", "shallow"])
def test_no_trainer_finds_an_older_one_in_memory(
    ppdgrow: Command, shallow: Path, watch: Watch, rule: str, begin: str
) -> None:
    first = 0 if begin != "shallow" else 10
    entry = f"{{at: {first + 4}, trial: {{steps: 2, rule: {rule}, margin: 9}}}}"
    more = TINY if begin != "shallow" else ()
    ppdgrow(f"train {begin} --steps 8 --out run", *more, "-o", f"growth=[{entry}]")
    made = [name for name, _ in watch.alive]
    twin = ["twin"] if rule == "twin" else []
    assert made == [f"run {first}", *twin, "trial 1.1", f"run {first + 6}"]
    assert watch.alive[0][1] >= {"model", "tensors"}, "control: the watch sees what lives"
    assert [names for _, names in watch.alive[1:]] == [set()] * (len(made) - 1)
