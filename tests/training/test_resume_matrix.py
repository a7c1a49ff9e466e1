"""Resume to the bit, as a matrix: where a run is stopped x stream x task x how often; and controls that fail.

Each run has 21 steps. It saves at 6, 12, 18 and 21, and evaluates two batches at 4, 8, 12, 16, 20 and 21. A growing
run also tries a growth from step 7 to 10, which is kept, and one from 12 to 15, which is not.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import Command
from equality import differences, events, metrics_faults
from local_images import write_classes

from ppdgrow.checkpoint import RunFolder, read_checkpoint, read_jsonl, read_state, write_checkpoint, write_jsonl
from ppdgrow.cli import build_app
from ppdgrow.cli.app import run
from ppdgrow.comparison.history import read_history
from ppdgrow.data import batches
from ppdgrow.data.batches import Batch, Batches
from ppdgrow.engine import evaluate
from ppdgrow.engine.device import set_rng_state
from ppdgrow.errors import StorageError
from ppdgrow.growth import expansion
from ppdgrow.optim.update_rules import AdamW, Muon
from ppdgrow.seeding import generator
from ppdgrow.training import trainer as trainer
from ppdgrow.training.trainer import Trainer

STEPS = 21
EVAL_EVERY = 4
EVAL_BATCHES = 2
SETTINGS = (
    "model.heads=2 model.dropout=0.1 train.batch_size=4 train.warmup_steps=2 train.keep=20 train.save_every=6 "
    f"train.eval_every={EVAL_EVERY} train.eval_batches={EVAL_BATCHES}"
)
TEXT = "data.name={data}/words.txt data.tokenizer=byte data.sequence_length=16"
TASKS = {
    "lm": TEXT,
    "mlm": f"{TEXT} model.task=mlm",
    "classify": "data.name={data}/pets model.patch_size=4 train.accumulate=2",
}
STREAMS = ("coupled", "residual")
GROWTH = "growth=[{at: 7, trial: {steps: 3, epsilon: 100.0}}, {at: 12, trial: {steps: 3, epsilon: -100.0}}]"


@dataclasses.dataclass(frozen=True)
class Stop:
    """Where a run is stopped, by a signal, or by a death after which nothing more is written.

    Attributes:
        where: `draw`: while the batch of step `at` is drawn. `evaluation`: in the `at`-th evaluation of the process.
            `built`: after a model was built and before it makes a step. `save`: instead of the `at`-th save.
        at: a step, or a number from 1.
        occurrence: which time the step is drawn, or before which batch of the evaluation; the one after the last is
            its end.
        dies: whether the process dies of it.
    """

    where: str
    at: int = 1
    occurrence: int = 1
    dies: bool = False

    def fire(self) -> None:
        """Send the signal, or die."""
        if self.dies:
            raise StorageError("died here")  # nothing catches it on its way out
        os.kill(os.getpid(), signal.SIGTERM)


@contextmanager
def stopping(stop: Stop | None) -> Iterator[None]:
    """Stop what runs meanwhile, once."""
    with pytest.MonkeyPatch.context() as patch:
        if stop is not None:
            _arm(stop, patch)
        yield


def _arm(stop: Stop, patch: pytest.MonkeyPatch) -> None:
    seen = 0

    def is_now() -> bool:
        nonlocal seen
        seen += 1
        return seen == (stop.occurrence if stop.where == "draw" else stop.at)

    draw, evaluate_together, built, save = Batches.at, evaluate.evaluate_together, set_rng_state, Trainer.on_save

    def at(self: Batches, step: int) -> Batch:
        if step == stop.at and is_now():
            stop.fire()
        return draw(self, step)

    def stopped(examples: Iterable[Batch]) -> Iterator[Batch]:
        for number, batch in enumerate(examples, start=1):
            if number == stop.occurrence:
                stop.fire()
            yield batch
        if stop.occurrence > EVAL_BATCHES:
            stop.fire()

    def evaluating(models: Any, examples: Iterable[Batch], **options: Any) -> Any:
        return evaluate_together(models, stopped(examples) if is_now() else examples, **options)

    def first(original: Callable[..., None]) -> Callable[..., None]:
        def call(*arguments: Any) -> None:
            if is_now():
                stop.fire()
            original(*arguments)

        return call

    if stop.where == "draw":
        patch.setattr(Batches, "at", at)
    elif stop.where == "evaluation":
        patch.setattr(evaluate, "evaluate_together", evaluating)
        patch.setattr(expansion, "evaluate_together", evaluating)
    elif stop.where == "built":
        patch.setattr(trainer, "set_rng_state", first(built))
    else:
        patch.setattr(Trainer, "on_save", first(save))


def draw(step: int, occurrence: int = 1, *, dies: bool = False) -> Stop:
    return Stop("draw", step, occurrence, dies)


def evaluation(number: int, batch: int, *, dies: bool = False) -> Stop:
    return Stop("evaluation", number, batch, dies)


BUILT = Stop("built")
DEAD_SAVE = Stop("save", dies=True)

# For each place the first stop, and the second one, in the process that went on.
PLAIN = {
    "before the first step": (BUILT, BUILT),
    "at the first step": (draw(1, 2), draw(2)),  # the first batch is also looked at before training
    "at a save": (draw(6), draw(12)),
    "between saves": (draw(9), BUILT),
    "where an evaluation is due": (draw(8), evaluation(1, 2)),
    "inside an evaluation": (evaluation(2, 2), evaluation(1, 1)),
    "inside an evaluation at a save": (evaluation(3, 2), BUILT),
    "at the end of an evaluation": (evaluation(4, 3), draw(18)),
    "at the last step": (draw(21), evaluation(1, 2)),
    "inside the last evaluation": (evaluation(6, 2), BUILT),
    "killed between saves": (draw(9, dies=True), draw(9, dies=True)),
    "killed before any save": (draw(5, dies=True), draw(5, dies=True)),
    "killed at a save": (Stop("save", 2, dies=True), DEAD_SAVE),
}
INTERRUPTED = {  # an evaluation was interrupted, and the process that makes up for it is killed
    "killed inside it": (evaluation(2, 2), evaluation(1, 2, dies=True)),
    "killed right after it": (evaluation(3, 2), DEAD_SAVE),
    "killed inside the last": (evaluation(6, 2), evaluation(1, 2, dies=True)),
    "killed right after the last": (evaluation(6, 2), DEAD_SAVE),
}
# Evaluations of the process: 1 at step 4; the twin's 2 at 8 and 3 at its end; 4 of the grown model; the trial's 5 at 8
# and 6 at its end; 7 at 12; then 8, 9 and 10 of the second round; 11 at 16, 12 at 20, 13 at 21.
GROWING = {
    "right before growth": (draw(7), BUILT),
    "in the evaluation right before growth": (evaluation(7, 2), evaluation(1, 2)),
    "at the first step of the twin": (draw(8), draw(9)),
    "inside an evaluation of the twin": (evaluation(2, 2), evaluation(1, 2)),
    "inside the last evaluation of the twin": (evaluation(3, 2), evaluation(1, 1)),
    "while the growth is checked": (evaluation(4, 2), evaluation(2, 2)),
    "right after growth": (draw(8, 2), draw(9)),
    "inside an evaluation of the trial": (evaluation(5, 2), evaluation(2, 1)),
    "at the last step of the trial": (draw(10, 2), evaluation(2, 2)),
    "inside the last evaluation of the trial": (evaluation(6, 2), BUILT),
    "right after the decision": (draw(11), draw(12)),
    "inside a trial that is rejected": (draw(14, 2), draw(15)),
    "right after the rejection": (draw(16), draw(17)),
    "inside the last evaluation": (evaluation(13, 2), evaluation(1, 2)),
    "killed in the twin": (draw(9, dies=True), draw(9, dies=True)),
    "killed in a trial": (draw(9, 2, dies=True), draw(9, dies=True)),
    "killed in an interrupted evaluation of the trial": (evaluation(5, 2), evaluation(2, 2, dies=True)),
}


def cells(places: dict[str, tuple[Stop, Stop]], *, times: tuple[int, ...] = (1, 2), thin: bool = False) -> list[Any]:
    """The cross product of places, streams, tasks and how often a run is stopped.

    Quick is what covers the most: two stops on the diagonal of stream and task (the first of them is the single one),
    and one stop off it, where the places alternate. The rest is slow.

    Args:
        places: where to stop.
        times: how often.
        thin: whether the quick ones are only those on the diagonal, and the places alternate there.
    """
    listed = []
    for row, stream in enumerate(STREAMS):
        for column, task in enumerate(("lm", "classify")):
            for number, (place, stops) in enumerate(places.items()):
                for count in times:
                    diagonal, turn = row == column, row == number % 2
                    quick = (count == 2 and diagonal and (turn or not thin)) or (
                        count == 1 and not diagonal and turn and not thin
                    )
                    name = f"{place}, {stream}, {task}, {('once', 'twice')[count - 1]}"
                    marks = () if quick else pytest.mark.slow
                    listed.append(pytest.param(stops[:count], stream, task, id=name, marks=marks))
    return listed


Words = Callable[..., list[str]]


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Words:
    """The command line of a run."""
    data = tmp_path_factory.mktemp("data")
    (data / "words.txt").write_text("".join(f"line {number} of a small text\n" for number in range(200)))
    write_classes(data / "pets", count=40)

    def line(out: str, stream: str, task: str, *more: str) -> list[str]:
        settings = [*f"{SETTINGS} {TASKS[task]} model.stream={stream}".format(data=data).split(), *more]
        options = [word for setting in settings for word in ("-o", setting)]
        return ["train", "--layers", "2", "--width", "16", "--steps", str(STEPS), "--quiet", "--out", out, *options]

    return line


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory, words: Words) -> Callable[..., str]:
    """The unbroken run of a stream, a task and further settings; each is made once."""
    made: dict[tuple[str, ...], str] = {}

    def get(stream: str, task: str, *more: str) -> str:
        key = (stream, task, *more)
        if key not in made:
            folder = str(tmp_path_factory.mktemp("unbroken") / "run")
            assert run(build_app(), words(folder, *key)) == 0
            made[key] = folder
        return made[key]

    return get


@pytest.fixture
def train(ppdgrow: Command, words: Words) -> Callable[..., str]:
    """Train `broken`, stopped or to its end; its metrics are looked at each time."""

    def once(stop: Stop | None, stream: str, task: str, *more: str, out: str = "broken") -> str:
        code = 0 if stop is None else 6 if stop.dies else 143
        with stopping(stop):
            told = ppdgrow("", *words(out, stream, task, *more), code=code).stderr
        newest = RunFolder(Path(out)).newest_valid()
        lines = read_jsonl(Path(out) / "metrics.jsonl")
        reached = 0 if newest is None else read_state(newest).step
        logged = lines[-1]["step"] if lines else 0
        assert logged >= reached if stop is not None and stop.dies else logged == reached
        assert not metrics_faults(out, logged, eval_every=EVAL_EVERY, evaluated=logged == STEPS and stop is None)
        return told

    return once


@pytest.mark.parametrize(
    ("stops", "stream", "task"), [*cells(PLAIN, thin=True), *cells(INTERRUPTED, times=(2,), thin=True)]
)
def test_a_run_that_goes_on_is_the_unbroken_run(
    train: Any, unbroken: Any, stops: tuple[Stop, ...], stream: str, task: str
) -> None:
    for stop in stops:
        train(stop, stream, task)
    told = train(None, stream, task)
    assert "warning" not in told
    assert not differences("broken", unbroken(stream, task))


@pytest.mark.parametrize(("stops", "stream", "task"), cells(GROWING, thin=True))
def test_a_growing_run_that_goes_on_is_the_unbroken_run(
    train: Any, unbroken: Any, stops: tuple[Stop, ...], stream: str, task: str
) -> None:
    for stop in stops:
        train(stop, stream, task, GROWTH)
    train(None, stream, task, GROWTH)
    assert [event["decision"] for event in events("broken") if event["event"] == "decision"] == ["accept", "reject"]
    assert not differences("broken", unbroken(stream, task, GROWTH))


def test_masked_tokens_and_pieces_of_a_batch(train: Any, unbroken: Any) -> None:
    more = ("train.accumulate=2", GROWTH)
    for stop in (draw(5), draw(9, 2), draw(17)):
        train(stop, "coupled", "mlm", *more)
    train(None, "coupled", "mlm", *more)
    assert not differences("broken", unbroken("coupled", "mlm", *more))


def test_another_optimizer_through_growth(train: Any, unbroken: Any) -> None:
    """Stopped before any growth, in a trial that is kept, killed in the twin of it, and after a rejected one."""
    more = ("train.optimizer=muon", GROWTH)
    for stop in (draw(5), draw(9, dies=True), draw(9, 2), draw(17)):
        train(stop, "residual", "lm", *more)
    train(None, "residual", "lm", *more)
    assert [event["decision"] for event in events("broken") if event["event"] == "decision"] == ["accept", "reject"]
    assert not differences("broken", unbroken("residual", "lm", *more))


@pytest.mark.slow
def test_stopped_at_every_step(train: Any, unbroken: Any) -> None:
    """As often as there are steps: each process makes one."""
    for _ in range(STEPS):
        train(BUILT, "coupled", "lm")
    train(None, "coupled", "lm")
    assert not differences("broken", unbroken("coupled", "lm"))


@pytest.mark.parametrize("stream", STREAMS)
def test_a_model_grown_by_a_command_between_two_stopped_runs(ppdgrow: Command, words: Words, stream: str) -> None:
    """Stopped at the last step before the growth, at the first after it, and in the evaluation at the end."""

    def story(name: str, before: tuple[Stop, ...], after: tuple[Stop, ...]) -> None:
        lines = (words(f"{name}-s", stream, "lm"), f"train {name}-g --steps 8 --quiet --out {name}-t".split())
        for line, stops in zip(lines, (before, after), strict=True):
            for stop in (*stops, None):
                with stopping(stop):
                    ppdgrow("", *line, code=0 if stop is None else 143)
            if line is lines[0]:
                ppdgrow(f"grow {name}-s --pair attention --quiet --out {name}-g")

    story("whole", (), ())
    story("broken", (draw(21), BUILT), (draw(22), draw(23), evaluation(2, 2)))
    for part in ("s", "t"):
        assert not differences(f"broken-{part}", f"whole-{part}")


CONTROLS = [
    ("coupled", "lm", "momentum_buffer"),
    *(("coupled", "lm", part) for part in ("rng", "moments", "exp_avg", "exp_avg_sq", "step", "position", "epoch")),
    *(("residual", "classify", part) for part in ("rng", "moments", "position", "epoch", "augment")),
    ("coupled", "mlm", "mask"),
]


@pytest.mark.parametrize(("stream", "task", "part"), CONTROLS, ids=["-".join(control) for control in CONTROLS])
def test_control_what_is_left_out_is_seen(train: Any, unbroken: Any, stream: str, task: str, part: str) -> None:
    """Without one part of the state the weights come out otherwise."""
    more = ["train.optimizer=muon"] if part in Muon.entries else []
    train(draw(9), stream, task, *more)
    folder = RunFolder(Path("broken")).checkpoint_path(9)
    checkpoint = read_checkpoint(folder)
    assert list(checkpoint.rng) == ["cpu"], "the only stream with a state of its own on a CPU"
    if part in (*AdamW.entries, *Muon.entries):
        moments = {
            name: {entry: torch.zeros_like(tensor) if entry == part else tensor for entry, tensor in state.items()}
            for name, state in checkpoint.moments.items()
        }
        write_checkpoint(folder, dataclasses.replace(checkpoint, moments=moments))
    elif part in ("rng", "moments"):
        write_checkpoint(folder, dataclasses.replace(checkpoint, **dict[str, Any]({part: {}})))
    with left_out(part):
        train(None, stream, task, *more)
    found = differences("broken", unbroken(stream, task, *more))
    assert any(name.startswith("step 21: weight") for name in found), found


@contextmanager
def left_out(part: str) -> Iterator[None]:
    """The position starts anew at step 9, or one of the streams that are functions of the step or epoch does."""
    at, make = Batches.at, generator

    def anew(*labels: int | str) -> torch.Generator:
        return make(*labels, "anew") if part in labels else make(*labels)

    with pytest.MonkeyPatch.context() as patch:
        if part == "position":
            patch.setattr(Batches, "at", lambda self, step: at(self, step - 9))
        patch.setattr(batches, "generator", anew)
        yield


def test_control_a_checkpoint_that_is_only_written_again_changes_nothing(train: Any, unbroken: Any) -> None:
    train(draw(9), "coupled", "lm")
    folder = RunFolder(Path("broken")).checkpoint_path(9)
    write_checkpoint(folder, read_checkpoint(folder))
    with left_out("nothing"):
        train(None, "coupled", "lm")
    assert not differences("broken", unbroken("coupled", "lm"))


def _edit_metrics(folder: str, change: Callable[[list[bytes]], list[bytes]]) -> None:
    """Change the metrics; `change` gets one item per step, its line with that of its evaluation."""
    path = Path(folder) / "metrics.jsonl"
    steps: list[bytes] = []
    for line in path.read_bytes().splitlines(keepends=True):
        if b"train_loss" in line:
            steps.append(line)
        else:
            steps[-1] += line
    path.write_bytes(b"".join(change(steps)))


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda lines: lines[:7] + lines[8:], "steps [1, 2, 3, 4, 5, 6, 7, 9, "),
        (lambda lines: lines[:-1], "steps [1, "),
        (lambda lines: [*lines[:8], lines[7], *lines[8:]], "steps [1, 2, 3, 4, 5, 6, 7, 8, 8, "),
        (lambda lines: [*lines[:7], lines[8], lines[7], *lines[9:]], "steps [1, 2, 3, 4, 5, 6, 7, 9, 8, "),
        (lambda lines: [*lines[:-1], lines[-1][:-1]], "the last line is cut"),
        (lambda lines: [*lines[:7], lines[7][:-9] + b"\n", *lines[8:]], "line 10: "),
        (
            lambda lines: [*lines[:7], lines[7].replace(b"validation", b"figures"), *lines[8:]],
            "line 10: not the validation",
        ),
        (lambda lines: [*lines[:6], b'{"step": 7, "train_loss": NaN}\n', *lines[7:]], "line 8: NaN is not JSON"),
    ],
    ids=["lost", "last lost", "doubled", "swapped", "cut", "cut inside", "without figures", "NaN"],
)
def test_control_what_is_wrong_with_metrics_is_seen(unbroken: Any, ppdgrow: Command, change: Any, fault: str) -> None:
    whole = unbroken("coupled", "lm")
    shutil.copytree(whole, "damaged")
    assert not metrics_faults("damaged", STEPS, eval_every=EVAL_EVERY)
    assert not differences("damaged", whole)
    _edit_metrics("damaged", change)
    assert any(found.startswith(fault) for found in metrics_faults("damaged", STEPS, eval_every=EVAL_EVERY))


def test_compare_tolerates_a_cut_last_line(unbroken: Any, ppdgrow: Command) -> None:
    whole = unbroken("coupled", "lm")
    told = ppdgrow("compare --json", whole, whole).document
    for name, cut in (("newline", 1), ("half", 60), ("start", 10**9)):
        shutil.copytree(whole, name)
        _edit_metrics(name, partial(lambda cut, lines: [*lines[:-1], lines[-1][: max(1, len(lines[-1]) - cut)]], cut))
        assert metrics_faults(name, STEPS, eval_every=EVAL_EVERY)
        document = ppdgrow("compare --json", whole, name).document
        for key in ("steps", "validation", "flops", "parameters"):
            assert document["runs"][1][key] == told["runs"][1][key], (name, key)


@pytest.mark.parametrize(
    ("change", "lost"),
    [
        (lambda lines: lines[:2] + lines[5:], "lines of steps 3 to 5,"),
        (lambda lines: lines[:6] + lines[7:], "line of step 7,"),
        (lambda lines: lines[:7], "lines of steps 8 to 9,"),
        (lambda lines: [*lines[:-1], lines[-1][:-20]], "line of step 9,"),
        (lambda lines: lines[1:3] + lines[4:8], "lines of steps 1, 4, 9,"),
        (lambda lines: [], "lines of steps 1 to 9,"),
        (None, "lines of steps 1 to 9,"),
    ],
    ids=["stretch", "one", "end", "cut", "several", "emptied", "gone"],
)
def test_metrics_that_lost_lines_are_named_and_the_run_goes_on(
    train: Any, ppdgrow: Command, words: Words, unbroken: Any, change: Any, lost: str
) -> None:
    """What a damaged disk leaves: a whole checkpoint, and a log that does not reach it."""
    whole = unbroken("coupled", "lm")
    train(draw(9), "coupled", "lm")
    if change is None:
        Path("broken/metrics.jsonl").unlink()
    else:
        _edit_metrics("broken", change)
    told = ppdgrow("", *words("broken", "coupled", "lm")).stderr
    (warning,) = told.splitlines()
    assert warning.startswith(f"warning: 'broken/metrics.jsonl' has lost the {lost} though the checkpoint of step 9")
    found = differences("broken", whole)
    assert all("metrics" in name or "state train_loss" in name for name in found), "nothing but the log has a gap"
    steps = [line["step"] for line in read_jsonl(Path("broken/metrics.jsonl")) if "train_loss" in line]
    assert steps == sorted(set(steps))
    assert set(range(10, STEPS + 1)) <= set(steps)
    assert (
        "already finished"
        in ppdgrow("", *(word for word in words("broken", "coupled", "lm") if word != "--quiet")).stderr
    )


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda lines: [*lines[:-1], lines[-1][:-20]], "lost the line of step 21, though the checkpoint of step 21"),
        (lambda lines: [*lines[:-1], lines[-1][:-1]], "has lost the line of step 21, though"),
        (lambda lines: lines[:2] + lines[5:], "has lost the lines of steps 3 to 5, though"),
        (lambda lines: [*lines[:3], b"{}\n", *lines[4:]], "line 4: step is None, expected a whole number"),
        (lambda lines: lines, ""),
    ],
    ids=["cut", "newline", "stretch", "bad", "control"],
)
def test_the_rerun_of_a_finished_run_says_what_its_metrics_lost(
    unbroken: Any, ppdgrow: Command, words: Words, change: Any, told: str
) -> None:
    shutil.copytree(unbroken("coupled", "lm"), "broken")
    _edit_metrics("broken", change)
    before = Path("broken/metrics.jsonl").read_bytes()
    lines = ppdgrow("", *(word for word in words("broken", "coupled", "lm") if word != "--quiet")).stderr.splitlines()
    warnings = lines[: lines.index("already finished: step 21 is in broken")]  # what comes next is proposed after it
    assert [told in warning for warning in warnings] == ([True] if told else [])
    assert Path("broken/metrics.jsonl").read_bytes() == before


def _by_step(folder: str) -> list[dict[str, Any]]:
    """Metrics as older versions wrote them: the figures of an evaluation in its step's own line."""
    steps: dict[int, dict[str, Any]] = {}
    for line in read_jsonl(Path(folder) / "metrics.jsonl"):
        steps.setdefault(line["step"], {}).update(line)
    return list(steps.values())


@pytest.mark.parametrize("stop", [draw(9), evaluation(2, 2)], ids=["between evaluations", "in an evaluation"])
def test_metrics_of_older_versions_are_read_and_the_run_goes_on(
    train: Any, unbroken: Any, ppdgrow: Command, words: Words, stop: Stop
) -> None:
    whole = unbroken("coupled", "lm")
    train(stop, "coupled", "lm")
    write_jsonl(Path("broken/metrics.jsonl"), _by_step("broken"))
    assert "warning" not in ppdgrow("", *words("broken", "coupled", "lm")).stderr
    untimed = [
        [{key: value for key, value in line.items() if key != "timing"} for line in _by_step(name)]
        for name in ("broken", whole)
    ]
    assert untimed[0] == untimed[1]
    shutil.copytree(whole, "old")
    write_jsonl(Path("old/metrics.jsonl"), _by_step("old"))
    new, old = (read_history(Path(name)).metrics for name in (whole, "old"))
    assert new.evaluations == old.evaluations
    assert [point.step for point in new.evaluations] == [4, 8, 12, 16, 20, 21]
    assert new.steps.tolist() == old.steps.tolist()


def test_many_gaps_stay_one_short_line(train: Any, ppdgrow: Command, words: Words) -> None:
    train(draw(18), "coupled", "lm")
    _edit_metrics("broken", lambda lines: lines[1::2])
    told = ppdgrow("", *words("broken", "coupled", "lm")).stderr
    assert "has lost the lines of steps 1, 3, 5, 7, 9 and 4 more," in told


def test_a_metrics_line_without_a_step_is_refused_in_one_line(train: Any, ppdgrow: Command, words: Words) -> None:
    train(draw(9), "coupled", "lm")
    _edit_metrics("broken", lambda lines: [*lines[:3], b"{}\n", *lines[4:]])
    refused = ppdgrow("", *words("broken", "coupled", "lm"), code=4).stderr
    assert refused.count("\n") == 1
    assert "line 4: step is None, expected a whole number" in refused


def _recorded(**changes: Any) -> None:
    """Another environment in the newest checkpoint of `broken`, under a manifest that is right."""
    folder = RunFolder(Path("broken")).newest_valid()
    assert folder is not None
    checkpoint = read_checkpoint(folder)
    environment = checkpoint.state.environment.model_copy(update=changes)
    state = checkpoint.state.model_copy(update={"environment": environment})
    write_checkpoint(folder, dataclasses.replace(checkpoint, state=state))


@pytest.mark.parametrize(
    "changes",
    [
        {"torch": "1.13.1+cu117"},
        {"threads": 16},
        {"cpu_capability": "AVX-1"},
        {"precision": "bf16"},
        {"device": "NVIDIA H1"},
        {"deterministic": True},
        {"torch": "1.13.1", "threads": 16, "cpu_capability": "AVX-1", "precision": "bf16"},
    ],
    ids=lambda changes: "+".join(changes),
)
def test_what_differs_from_the_recorded_environment_is_named(
    train: Any, ppdgrow: Command, words: Words, changes: dict[str, Any]
) -> None:
    train(draw(9), "coupled", "lm")
    now = read_state(RunFolder(Path("broken")).checkpoint_path(9)).environment.model_dump()
    _recorded(**changes)
    told = ppdgrow("", *words("broken", "coupled", "lm")).stderr
    differing = ", ".join(f"{key} {changes[key]} -> {now[key]}" for key in now if key in changes)
    assert told == f"warning: the last bits may differ from an unbroken run: {differing}\n"
    assert read_state(RunFolder(Path("broken")).checkpoint_path(STEPS)).environment.model_dump() == now


def test_other_threads_are_named_and_recorded(train: Any, ppdgrow: Command, words: Words) -> None:
    train(draw(9, 2), "coupled", "lm", GROWTH)
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        told = ppdgrow("", *words("broken", "coupled", "lm", GROWTH)).stderr
    finally:
        torch.set_num_threads(threads)
    differing = f"threads {threads} -> {threads + 1}"
    assert told == f"warning: the last bits may differ from an unbroken run: {differing}\n", "once, not for each arm"
    assert read_state(RunFolder(Path("broken")).checkpoint_path(STEPS)).environment.threads == threads + 1


def test_where_nothing_differs_nothing_is_said(train: Any) -> None:
    train(draw(9), "coupled", "lm")
    _recorded()
    assert train(None, "coupled", "lm") == ""
