"""Ctrl-C and SIGTERM wherever a command stands: saved, one line, within seconds; and a second one ends it at once."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from kill_worker import Outcome, Place
from killing import SCENARIOS, Bench, check, finish, new_bench, newest_step

GENEROUS = 10.0  # seconds to the end after one signal
AT_ONCE = 1.0  # after the second
BATCH = "ppdgrow.data.batches:Batches.at"
EVALUATION = "ppdgrow.engine.evaluate:evaluate_together"
INSERTION = "ppdgrow.growth.expansion:evaluate_together"
SAVE = "ppdgrow.checkpoint.format:write_safetensors"
OPEN = "ppdgrow.training.context:open_dataset"
ENCODE = "ppdgrow.data.tokenization:ByteTokenizer.encode"


@dataclass(frozen=True)
class Moment:
    """A call of a scenario's command; `saved`: a step that is saved at the latest when it comes, None for none."""

    scenario: str
    target: str
    nth: int
    saved: int | None = None


MOMENTS = {
    "reading data": Moment("train", OPEN, 1),
    "tokenising": Moment("train", ENCODE, 1),
    "a step": Moment("train", BATCH, 9, 6),
    "an evaluation": Moment("train", EVALUATION, 2, 6),
    "the last evaluation": Moment("train", EVALUATION, 5, 18),
    "a save": Moment("train", SAVE, 2, 6),
    "the twin": Moment("progressive", BATCH, 5, 15),
    "the twin's evaluation": Moment("progressive", EVALUATION, 2, 15),
    "the insertion of a trial": Moment("progressive", INSERTION, 1, 15),
    "a trial": Moment("progressive", BATCH, 8, 15),
    "growing": Moment("grow-pair", INSERTION, 1),
    "writing what was grown": Moment("grow-pair", SAVE, 1),
    "the test split": Moment("compare", EVALUATION, 1),
}
NUMBERS = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["INT", "TERM"])


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with new_bench(tmp_path_factory.mktemp("signals")) as made:
        yield made


def arguments(name: str, *, as_json: bool = False) -> list[str]:
    """The command of a scenario, which says nothing or one JSON document when it fails."""
    given = list(SCENARIOS[name].arguments)
    return given + (["--json"] if as_json and "--json" not in given else [])


def check_message(outcome: Outcome, number: int, *, as_json: bool) -> None:
    assert outcome.code == 128 + number, outcome.stderr
    if as_json:
        document = json.loads(outcome.stderr)
        assert document["exit_code"] == 128 + number
        assert "interrupted" in document["error"]
    else:
        assert len(outcome.stderr.splitlines()) == 1, outcome.stderr
        assert outcome.stderr.startswith("error: interrupted")


@NUMBERS
@pytest.mark.parametrize("name", MOMENTS)
def test_a_signal_saves_and_ends_the_command(bench: Bench, name: str, number: int) -> None:
    moment = MOMENTS[name]
    as_json = "--json" in SCENARIOS[moment.scenario].arguments or number == signal.SIGTERM
    folder = bench.folder(moment.scenario)
    outcome = bench.worker.run(
        folder,
        arguments(moment.scenario, as_json=as_json),
        places=[Place(moment.target, moment.nth, number)],
    )
    check_message(outcome, number, as_json=as_json)
    assert outcome.leaving < GENEROUS
    check(folder, moment.scenario, outcome, moment.saved)
    run = folder / "r"
    for done, step in outcome.steps.items():
        if done == "r":
            assert newest_step(run) == step, "the step at which it stood is saved"
    assert not list(folder.rglob(".tmp-*")), "leftovers"
    finish(bench, folder, moment.scenario)


@NUMBERS
@pytest.mark.parametrize("name", ["a step", "an evaluation", "a save", "a trial", "growing"])
def test_a_second_signal_ends_it_at_once(bench: Bench, name: str, number: int) -> None:
    """The command hangs there, as if a disk did not answer."""
    moment = MOMENTS[name]
    folder = bench.folder(moment.scenario)
    outcome = bench.worker.run(
        folder,
        arguments(moment.scenario),
        places=[Place(moment.target, moment.nth)],
        signals=[(0.1, number), (0.3, number)],
    )
    assert outcome.code == 128 + number, outcome.stderr
    assert outcome.leaving < AT_ONCE
    check(folder, moment.scenario, outcome, moment.saved)
    finish(bench, folder, moment.scenario)


@NUMBERS
def test_a_signal_in_the_last_save_interrupts_nothing(bench: Bench, number: int) -> None:
    folder = bench.folder("train")
    outcome = bench.worker.run(folder, arguments("train"), places=[Place(SAVE, 4, number)])
    assert outcome.code == 0, outcome.stderr
    finish(bench, folder, "train")


@NUMBERS
@pytest.mark.parametrize("name", ["reading data", "tokenising"])
def test_one_signal_is_enough_before_the_first_step(bench: Bench, name: str, number: int) -> None:
    """Reading can take minutes, and there is nothing to save yet."""
    moment = MOMENTS[name]
    folder = bench.folder(moment.scenario)
    outcome = bench.worker.run(
        folder,
        arguments(moment.scenario),
        places=[Place(moment.target, moment.nth)],
        signals=[(0.1, number), (GENEROUS, signal.SIGKILL)],
    )
    check_message(outcome, number, as_json=False)
    assert not (folder / "r").exists(), "nothing was begun"


@NUMBERS
def test_a_signal_ends_probe(bench: Bench, number: int) -> None:
    folder = bench.folder("remove")
    outcome = bench.worker.run(folder, ["probe", "g"], places=[Place(EVALUATION, 1, number)])
    check_message(outcome, number, as_json=False)
    assert outcome.leaving < GENEROUS
