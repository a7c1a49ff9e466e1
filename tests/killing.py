"""Commands that are killed or interrupted, what must hold right after, and what must hold once they went on.

After each kill: the newest checkpoint is valid and not older than before, at most `save_every` steps are lost, what is
half-written is not mistaken for whole. At the end: the run of an unbroken command, to the bit and to the file.
"""

from __future__ import annotations

import json
import random
import re
import shutil
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from command_line import TINY
from equality import events, result, same
from kill_worker import Outcome, Place, Worker

from ppdgrow.checkpoint import RunFolder, read_checkpoint, read_state
from ppdgrow.errors import InvalidInputError

SAVE_EVERY = 6
EVALUATION = "ppdgrow.engine.evaluate:evaluate_together"
METHODS = ("pair", "zero", "copy", "fresh")
TRAIN = "train --layers 2 --steps 21 --data ../words.txt -o model.dropout=0.1 --quiet --out r"
GROWTH = (
    "growth=[{at: 15, trial: {steps: 3, epsilon: 1.0}}, "
    "{at: 20, trial: {steps: 4, epsilon: -9.0}, candidates: [{method: zero}, {method: copy, pair: attention}]}]"
)
LAST = "growth=[{at: 14, trial: {steps: 3, epsilon: 1.0}}]"
RECORDS = ("test.jsonl", "on.jsonl")  # of figures that compare has found
CHAIN = 3  # kills of one run before it may end


@dataclass(frozen=True)
class Scenario:
    """A command in a folder with the runs `s` and `b`; what it writes is the run `out`, if that is not None.

    `interrupted` is the evaluation that a signal interrupts before the scenario begins, 0 for none.
    """

    arguments: Sequence[str]
    out: str | None
    interrupted: int = 0


def _scenario(line: str, *options: str, out: str | None = "r", interrupted: int = 0) -> Scenario:
    return Scenario([*line.split(), *options], out, interrupted)


SCENARIOS = {
    "train": _scenario(TRAIN, *TINY),
    "muon": _scenario(TRAIN, *TINY, "-o", "train.optimizer=muon"),
    # an evaluation in the midst of the run was interrupted; and that of the last step, which is saved a second time
    "unevaluated": _scenario(TRAIN, *TINY, interrupted=2),
    "resave": _scenario(TRAIN, *TINY, "-o", "train.keep=1", interrupted=5),
    "progressive": _scenario("train s --steps 13 --quiet --out r -o", GROWTH),
    "trial-last": _scenario("train s --steps 5 --quiet --out r -o", LAST),
    **{f"grow-{method}": _scenario(f"grow s --method {method} --quiet --out r") for method in METHODS},
    "remove": _scenario("grow g --remove last --quiet --out r"),
    "compare": _scenario("compare s b --test --on ../others.txt --json", out=None),
}


@dataclass
class Bench:
    """The worker, the folder with the scenarios' inputs, and what each unbroken command does."""

    worker: Worker
    base: Path
    whole: dict[str, tuple[Outcome, dict[str, Any]]] = field(default_factory=dict)

    def folder(self, name: str) -> Path:
        """A new folder in which a scenario can begin."""
        prepared = self.base / f"before-{name}"
        if not prepared.exists():
            shutil.copytree(self.base / "runs", prepared)
            scenario = SCENARIOS[name]
            if scenario.interrupted:
                place = Place(EVALUATION, scenario.interrupted, signal.SIGTERM)
                outcome = self.worker.run(prepared, scenario.arguments, places=[place])
                assert outcome.code == 143, outcome.stderr
        work = self.base / "work"
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(prepared, work)
        return work

    def unbroken(self, name: str) -> tuple[Outcome, dict[str, Any]]:
        """How the command ends if nothing happens, and what it leaves."""
        if name not in self.whole:
            folder = self.folder(name)
            outcome = self.worker.run(folder, SCENARIOS[name].arguments)
            assert outcome.code == 0, outcome.stderr
            self.whole[name] = outcome, leaves(folder, name, outcome)
        return self.whole[name]


@contextmanager
def new_bench(base: Path) -> Iterator[Bench]:
    """Inputs: an undecayed run `s`, `g` grown from it, a baseline `b`, and two texts."""
    (base / "others.txt").write_text("".join(f"another line, {number}\n" for number in range(900)))
    (base / "words.txt").write_text("".join(f"line {number} of text {number * number}\n" for number in range(900)))
    runs = base / "runs"
    runs.mkdir()
    with Worker(base) as worker:
        for line, options in (
            ("train --layers 2 --steps 12 --no-decay -o model.dropout=0.1 --data ../words.txt --quiet --out s", TINY),
            ("train --layers 3 --steps 12 --data ../words.txt --quiet --out b", TINY),
            ("grow s --pair attention --quiet --out g", []),
        ):
            outcome = worker.run(runs, [*line.split(), *options])
            assert outcome.code == 0, outcome.stderr
        yield Bench(worker, base)


def tree(folder: Path) -> dict[str, bytes]:
    """Every file, but for locks and the documents of a comparison."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in (".lock", *RECORDS)
    }


def names(folder: Path) -> set[str]:
    """Everything that is there, but for locks; which steps are saved depends on where a run was interrupted."""
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.name != ".lock"}
    return {re.sub(r"r/checkpoints/step-[0-9]+", "r/checkpoints/step-N", name) for name in found}


def leaves(folder: Path, name: str, outcome: Outcome) -> dict[str, Any]:
    """What must not depend on how often the command was killed."""
    out = SCENARIOS[name].out
    found: dict[str, Any] = {"names": names(folder)}
    if out is None:
        recorded = {(run, name): (folder / run / name).read_text() for run in ("s", "b") for name in RECORDS}
        return found | {"recorded": recorded, "document": json.loads(outcome.stdout)}
    return found | {"result": result(str(folder / out)), "events": events(str(folder / out))}


def newest_step(run: Path) -> int | None:
    newest = RunFolder(run).newest_valid()
    return None if newest is None else read_state(newest).step


def check_metrics(path: Path) -> None:
    """Every line but a cut last one is an object, the steps go up one by one, an evaluation follows its step."""
    if not path.exists():
        return
    whole, _, _ = path.read_bytes().rpartition(b"\n")
    lines = [json.loads(line) for line in whole.splitlines()]
    steps = [line["step"] for line in lines if "train_loss" in line]
    assert steps == list(range(1, len(steps) + 1)), steps
    order = [(line["step"], "validation" in line) for line in lines]
    assert order == sorted(set(order)), order


def check_checkpoints(run: Path) -> None:
    """A checkpoint is read whole or refused in one line; one with a manifest is whole."""
    for folder in RunFolder(run).checkpoints():
        try:
            read_checkpoint(folder)
        except InvalidInputError as error:
            refusal = str(error)
        else:
            continue
        assert "\n" not in refusal, refusal
        assert not (folder / "manifest.json").exists(), f"{folder}: a manifest, but {refusal}"


def check(folder: Path, name: str, outcome: Outcome, before: int | None) -> None:
    """What holds right after a kill."""
    scenario = SCENARIOS[name]
    if scenario.out is None:
        for path in (folder / run / record for run in ("s", "b") for record in RECORDS):
            for line in path.read_bytes().splitlines()[:-1] if path.exists() else ():
                json.loads(line)
        return
    run = folder / scenario.out
    if name.startswith(("grow", "remove")) and run.exists():
        assert newest_step(run) == 12, "the output is there and not whole"
        assert {path.name for path in run.iterdir()} >= {"recipe.yaml", "metrics.jsonl", "growth.jsonl", "README.md"}
    newest = newest_step(run)
    assert before is None or (newest is not None and newest >= before), f"step {before} was saved, now {newest}"
    first = 12 if scenario.arguments[1] == "s" else 0
    for place in (run, *((run / "trials").iterdir() if (run / "trials").is_dir() else ())):
        if place.name.startswith(".tmp-"):
            continue
        check_metrics(place / "metrics.jsonl")
        check_checkpoints(place)
    for done, step in outcome.steps.items():
        reached = [first, newest or 0, newest_step(folder / done) or 0]
        assert step - max(reached) <= SAVE_EVERY, f"{done} was at step {step}, saved is {max(reached)}"


def finish(bench: Bench, folder: Path, name: str) -> None:
    """The same command goes on, to the same end."""
    _, expected = bench.unbroken(name)
    outcome = bench.worker.run(folder, SCENARIOS[name].arguments)
    assert outcome.code == 0, outcome.stderr
    found = leaves(folder, name, outcome)
    assert not [path for path in found["names"] if ".tmp-" in path], "leftovers"
    assert found["names"] == expected["names"], sorted(found["names"] ^ expected["names"])
    if SCENARIOS[name].out is None:
        assert found == expected
    else:
        assert found["events"] == expected["events"]
        assert same(found["result"], expected["result"]), "another run: see metrics, tensors and cost"
    inputs = bench.base / "runs"
    for run in ("s", "g", "b"):
        assert tree(folder / run) == tree(inputs / run), f"the input {run} was changed"


def killed(bench: Bench, folder: Path, name: str, **how: Any) -> Outcome:
    """One attempt, and what must hold after it."""
    out = SCENARIOS[name].out
    before = None if out is None else newest_step(folder / out)
    outcome = bench.worker.run(folder, SCENARIOS[name].arguments, **how)
    assert outcome.killed or outcome.code == 0, outcome.stderr
    if outcome.killed:
        check(folder, name, outcome, before)
    return outcome


def kinds(operations: Sequence[str], pattern: str = "") -> list[int]:
    """The first of each kind of operation that the pattern is found in.

    A kind is the operation with the place to which what is written is moved next, without numbers and random letters.
    """
    first: dict[str, int] = {}
    target = ""
    for place, operation in reversed(list(enumerate(operations))):
        _, _, moved = operation.partition(" -> ")
        target = moved or target
        kind = re.sub(r"\.tmp-ppdgrow-[0-9a-f]{12}", ".tmp-RANDOM", f"{operation} for {target}")
        first[re.sub("step-[0-9]+", "step-N", kind)] = place
    found = sorted(place for kind, place in first.items() if re.search(pattern, kind))
    assert found, f"no operation matches {pattern}"
    return found


def windows(bench: Bench, name: str, places: Sequence[int], *, in_place: bool = False) -> list[str]:
    """Kill a scenario at each of the places, and where it flushes a file also with that file torn; what went wrong."""
    operations = bench.unbroken(name)[0].operations
    wrong = []
    for place in places:
        for torn in (False, True) if operations[place].startswith("fsync") else (False,):
            folder = bench.folder(name)
            try:
                outcome = killed(bench, folder, name, kill_at=place, torn=torn, in_place=in_place)
                assert outcome.killed, "it was not killed"
                finish(bench, folder, name)
            except (AssertionError, InvalidInputError, ValueError) as error:
                wrong.append(f"before {place} ({operations[place]}{', torn' if torn else ''}): {error}")
    return wrong


def random_kills(bench: Bench, name: str, number: int, seed: int) -> None:
    """So many kills by the clock, several in a row on one run, each run then finished."""
    draw = random.Random(f"{name} {seed}")
    seconds = bench.unbroken(name)[0].seconds
    kills = 0
    while kills < number:
        folder = bench.folder(name)
        moments = []
        for _ in range(draw.randint(1, CHAIN)):
            moments.append(draw.uniform(0.0, seconds))
            if not killed(bench, folder, name, kill_after=moments[-1]).killed:
                break
            kills += 1
        try:
            finish(bench, folder, name)
        except AssertionError as error:
            raise AssertionError(f"{name}, killed after {moments} s: {error}") from error
