"""Growth with a decision: what is kept helps, what is rejected leaves no trace, and a kill changes nothing."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import TINY, Command
from equality import events, result, same
from tampering import damage

from ppdgrow.checkpoint import RunFolder, read_checkpoint, read_config, read_jsonl, read_state
from ppdgrow.checkpoint.events import read_events
from ppdgrow.checkpoint.lineage import own_events
from ppdgrow.cli import build_app
from ppdgrow.cli.app import run
from ppdgrow.data import Split
from ppdgrow.data.batches import Batch, Batches
from ppdgrow.errors import StorageError
from ppdgrow.growth import trial_round, trials
from ppdgrow.optim.optimizer import NamedOptimizer
from ppdgrow.optim.update_rules import OPTIMIZERS
from ppdgrow.training.acceptance import RULES, Decision
from ppdgrow.training.resume import Start, start_from

ROOT = Path(__file__).parents[2]
HARMFUL = "{at: 307, method: fresh, scale: 30.0, trial: {steps: 3}}"
KEPT = "{at: 307, trial: {steps: 3, epsilon: 1.0}}"
# A growth that each rule keeps, and the tokens of the twin that this takes.
KEPT_BY = {
    "parent": (KEPT, 3 * 4 * 16),
    "twin": ("{at: 307, trial: {steps: 3, rule: twin, margin: 10.0}}", 3 * 4 * 16),
    "always": ("{at: 307, trial: {steps: 3, rule: always}, on_reject: {lower_lr: 0.5, retries: 2}}", 0),
}
NO_OP = "{at: 7, method: zero, trial: {steps: 3, rule: twin, margin: %s}}"
AGAIN = "}, on_reject: {lower_lr: 0.5, retries: %d}}"
ROUNDS = (HARMFUL.replace("}}", AGAIN % 1), "{at: 312, trial: {steps: 4, epsilon: 1.0}}")
UNJUDGED = tuple(entry.replace("steps:", "rule: always, steps:") for entry in ROUNDS)
DECIDED = {ROUNDS: ["reject", "reject", "accept"], UNJUDGED: ["accept", "accept"]}
STEP_TOKENS = 4 * 16


def growing(*entries: str) -> list[str]:
    return ["-o", f"growth=[{', '.join(entries)}]"]


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that has learned enough for harm to show: 300 steps, undecayed, with dropout."""
    folder = tmp_path_factory.mktemp("learned") / "learned"
    options = ["-o", "train.lr=1e-2", "-o", "model.dropout=0.1", "-o", "train.eval_every=300"]
    tiny = [word for word in " ".join(TINY).replace("-o train.eval_every=5", "").split() if word]
    line = f"train --layers 2 --steps 300 --no-decay --out {folder} --quiet"
    assert run(build_app(), [*line.split(), *tiny, *options]) == 0
    return folder


@pytest.fixture
def line(learned: Path) -> str:
    """21 steps more, with dropout; every checkpoint is kept."""
    return f"train {learned} --steps 21 -o train.keep=20 -o train.eval_every=5 -o train.save_every=6 --quiet"


def own(run: str) -> list[dict[str, Any]]:
    """The events of the run itself, not of its ancestors."""
    return [event.document() for event in own_events(read_events(Path(run, "growth.jsonl")))]


def decisions(run: str) -> list[dict[str, Any]]:
    return [event for event in events(run) if event["event"] == "decision"]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_harmful_growth_is_rejected_and_leaves_no_trace(ppdgrow: Command, line: str, optimizer: str) -> None:
    line += f" -o train.optimizer={optimizer}"
    ppdgrow(f"{line} --out never")
    ppdgrow(f"{line} --out tried", *growing(HARMFUL))
    (decision,) = decisions("tried")
    assert decision["decision"] == "reject"
    assert decision["loss_after"] > decision["loss_before"]
    assert same(result("tried"), result("never"))
    for step in (312, 318):
        assert same(result("tried", step), result("never", step))
    spent = read_state(RunFolder(Path("tried")).checkpoint_path(321)).ledger
    assert spent.trials.tokens == 3 * STEP_TOKENS, "the rejected trial: 3 steps of 4 x 16 tokens"
    assert spent.trials.flops > 0
    assert spent.trials.seconds > 0
    assert read_state(RunFolder(Path("never")).checkpoint_path(321)).ledger.trials.tokens == 0
    assert not (Path("tried") / "trials").exists()


@pytest.mark.parametrize("left_out", ["moments", "rng", "weights", "position"])
def test_control_a_trace_would_be_seen(
    ppdgrow: Command, line: str, monkeypatch: pytest.MonkeyPatch, left_out: str
) -> None:
    """Going on from the state before the expansion, but for one part of it."""
    ppdgrow(f"{line} --out never")
    draw = Batches.at

    def incomplete(checkpoint: Any) -> Start:
        start = start_from(checkpoint)
        if left_out == "weights":
            name = "blocks.l1.g.out.bias"
            return dataclasses.replace(start, tensors=start.tensors | {name: start.tensors[name] + 1e-7})
        return dataclasses.replace(start, **dict[str, Any]({left_out: {}})) if left_out != "position" else start

    def shifted(self: Batches, step: int) -> Batch:
        return draw(self, step + (308 <= step <= 310))

    monkeypatch.setattr(trials, "start_from", incomplete)
    if left_out == "position":
        monkeypatch.setattr(Batches, "at", shifted)
    ppdgrow(f"{line} --out tried", *growing(HARMFUL))
    assert decisions("tried")[0]["decision"] == "reject"
    assert not same(result("tried"), result("never"))


@pytest.mark.parametrize("rule", RULES)
def test_an_accepted_growth_is_the_run_from_then_on(ppdgrow: Command, line: str, rule: str) -> None:
    entry, twin_tokens = KEPT_BY[rule]
    document = ppdgrow(f"{line} --out run --json", *growing(entry)).document
    assert [block.id for block in read_config(RunFolder(Path("run")).checkpoint_path(321)).blocks] == ["l1", "p1", "l2"]
    assert [(entry["step"], entry["decision"], entry["retry"]) for entry in document["growth"]] == [
        (307, "accept", False)
    ]
    assert document["growth"][0]["ids"] == ["p1"]
    assert document["trials"]["tokens"] == twin_tokens
    assert (document["trials"]["flops"] > 0) == (twin_tokens > 0)
    assert document["tokens"] == 321 * STEP_TOKENS
    assert [event["event"] for event in own("run")] == ["grow", "check", "decision", *(["twin"] if twin_tokens else [])]
    assert own("run")[2]["rule"] == document["growth"][0]["verdict"]["rule"] == rule
    assert own("run")[1]["bit_exact"] is True
    assert own("run")[1]["loss_before"] == own("run")[1]["loss_after"]
    metrics = [line for line in read_jsonl(Path("run/metrics.jsonl")) if "train_loss" in line]
    assert [line["step"] for line in metrics] == list(range(1, 322))
    assert "grad_norm_new" in metrics[-1]
    assert f"trial 1.1 kept by the {rule} rule" in Path("run/README.md").read_text()
    assert ppdgrow(f"{line} --out run --json", *growing(entry)).document == document


@pytest.mark.parametrize("rule", RULES)
def test_a_kept_growth_is_grow_and_train_by_hand(ppdgrow: Command, line: str, rule: str) -> None:
    ppdgrow(f"{line} --no-decay --out run", *growing(KEPT_BY[rule][0]))
    ppdgrow(f"{line.replace('--steps 21', '--steps 7')} --no-decay --out shallow")
    ppdgrow("grow shallow --out grown --quiet")
    ppdgrow("train grown --steps 14 --no-decay --out by-hand --quiet")
    ours, theirs = result("run"), result("by-hand")
    assert ours["tensors"].keys() == theirs["tensors"].keys()
    assert all(torch.equal(tensor, theirs["tensors"][name]) for name, tensor in ours["tensors"].items())
    assert ours["cost"] == theirs["cost"]


def test_without_a_twin_the_best_of_several_candidates_goes_on(ppdgrow: Command, line: str) -> None:
    entry = "{at: 307, trial: {steps: 3, rule: always}, candidates: [ffn, {method: fresh, scale: 30.0}]}"
    document = ppdgrow(f"{line} --out run --json", *growing(entry)).document
    assert [growth["decision"] for growth in document["growth"]] == ["accept", "reject"]
    assert document["trials"]["tokens"] == 3 * STEP_TOKENS, "the other candidate"


@pytest.mark.parametrize(("margin", "decision"), [(-0.001, "reject"), (0.01, "accept")])
def test_a_growth_that_does_nothing_is_rejected_where_a_gain_is_demanded(
    ppdgrow: Command, line: str, margin: float, decision: str
) -> None:
    """Blocks whose output is zero, at rate 0: the twin itself."""
    ppdgrow("train --layers 2 --steps 20 -o train.pair_lr=0.0 --out run --quiet", *TINY, *growing(NO_OP % margin))
    (made,) = decisions("run")
    assert made["twin"]["difference"] == made["twin"]["low"] == made["twin"]["high"] == 0.0
    assert made["decision"] == decision
    assert made["loss_after"] < made["loss_before"], "the parent rule would have accepted it"


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    """Random words of 2 to 4 letters, each written eight times in a row.

    To go on, a model must find where the last letters stood before and what followed them: two steps of attention
    (induction heads, Olsson et al. 2022), so that one layer is at a loss.
    """
    folder = tmp_path / "data" / "wikitext-2"
    folder.mkdir(parents=True)
    draw = random.Random(0)
    for name, words in (("train", 40_000), ("valid", 2_000), ("test", 100)):
        lines = ("".join(draw.choices("abcdefgh", k=draw.randint(2, 4))) for _ in range(words))
        (folder / f"{name}.txt").write_text("".join(f"{word * 8}\n" for word in lines))
    return folder.parent


def test_a_growth_that_helps_is_accepted_where_a_gain_is_demanded(ppdgrow: Command, planted: Path) -> None:
    entry = "{at: 100, pair: attention, pairs: 2, trial: {steps: 300, rule: twin, margin: -0.05}}"
    settings = "model.heads=2 data.sequence_length=32 data.tokenizer=byte train.batch_size=32 train.eval_batches=8"
    options = [
        word for setting in [*settings.split(), "train.lr=5e-3", f"growth=[{entry}]"] for word in ("-o", setting)
    ]
    line = f"train --layers 1 --width 32 --data wikitext2 --data-dir {planted} --steps 400 --out run --json"
    document = ppdgrow(line, *options).document
    (growth,) = document["growth"]
    assert growth["decision"] == "accept"
    assert growth["verdict"]["twin"]["high"] < -0.05


def test_lower_lr_tries_again_at_a_lower_rate_and_then_removes(ppdgrow: Command, line: str) -> None:
    ppdgrow(f"{line} --out never")
    entry = HARMFUL.replace("}}", AGAIN % 2)
    document = ppdgrow(f"{line} --out run --json", *growing(entry)).document
    assert [entry["verdict"]["pair_lr"] for entry in document["growth"]] == [1.0, 0.5, 0.25]
    assert [entry["decision"] for entry in document["growth"]] == ["reject"] * 3
    assert [entry["retry"] for entry in document["growth"]] == [True, True, False]
    assert len({entry["verdict"]["loss_after"] for entry in document["growth"]}) == 3, "the rate made a difference"
    assert len({entry["loss_after"] for entry in document["growth"]}) == 1, "right after insertion it makes none"
    assert document["trials"]["tokens"] == 3 * 3 * STEP_TOKENS
    assert same(result("run"), result("never"))


@pytest.fixture
def rates(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bool, dict[str, float]]]:
    """For each update: whether the model is grown, and the rate of each parameter."""
    seen: list[tuple[bool, dict[str, float]]] = []
    update = NamedOptimizer.step

    def step(self: NamedOptimizer, suppressed: torch.Tensor) -> None:
        seen.append((any(".p1." in name for name in self.rates()), self.rates()))
        update(self, suppressed)

    monkeypatch.setattr(NamedOptimizer, "step", step)
    return seen


def test_lower_lr_applies_to_exactly_the_new_parameters_and_stays(
    ppdgrow: Command,
    line: str,
    monkeypatch: pytest.MonkeyPatch,
    rates: list[tuple[bool, dict[str, float]]],
    stop_at: Any,
) -> None:
    verdicts = iter([False, True])
    make = Decision

    def decided(**figures: Any) -> Decision:
        decision = make(**figures)
        verdict = next(verdicts)
        frozen = type("Frozen", (Decision,), {"accepted": verdict})
        return frozen(**{field.name: getattr(decision, field.name) for field in dataclasses.fields(decision)})

    monkeypatch.setattr(trial_round, "Decision", decided)
    options = growing("{at: 307, trial: {steps: 3}, on_reject: {lower_lr: 0.5, retries: 2}}")
    stop_at(315, signal.SIGTERM)
    ppdgrow(f"{line} --out run", *options, code=143)
    ppdgrow(f"{line} --out run", *options)
    factors = []
    for grown, by_name in rates:
        if grown:
            old = {rate for name, rate in by_name.items() if ".p1." not in name}
            new = {rate for name, rate in by_name.items() if ".p1." in name}
            assert len(old) == len(new) == 1
            factors.append(new.pop() / old.pop())
        else:
            assert len(set(by_name.values())) == 1
    assert factors == [1.0] * 3 + [0.5] * (3 + 11), "3 steps of each trial, then 11 to the end, across the stop"
    assert [decision["decision"] for decision in decisions("run")] == ["reject", "accept"]


def test_candidates_start_from_one_state_and_the_best_is_kept(ppdgrow: Command, line: str) -> None:
    candidates = "[ffn, attention, zero, {position: end}]"
    entry = f"{{at: 307, pairs: 2, trial: {{steps: 3, rule: twin, margin: 10.0}}, candidates: {candidates}}}"
    document = ppdgrow(f"{line} --out run --json", *growing(entry)).document
    made = document["growth"]
    assert [(growth["method"], growth["kinds"][0], growth["position"]) for growth in made] == [
        ("pair", "ffn", "interleave"),
        ("pair", "attention", "interleave"),
        ("zero", "attention", "interleave"),
        ("pair", "ffn", "end"),
    ]
    assert len({growth["parent_sha256"] for growth in made}) == 1
    assert len({growth["loss_before"] for growth in made}) == 1
    kept = [growth for growth in made if growth["decision"] == "accept"]
    assert len(kept) == 1
    assert kept[0]["verdict"]["loss_after"] == min(growth["verdict"]["loss_after"] for growth in made)
    assert all(growth["verdict"]["passed"] for growth in made)
    assert document["trials"]["tokens"] == 4 * 3 * STEP_TOKENS, "three losers and the twin"
    blocks = {block.id for block in read_config(RunFolder(Path("run")).checkpoint_path(321)).blocks}
    assert set(kept[0]["ids"]) <= blocks


def test_the_test_split_stays_untouched(ppdgrow: Command, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from ppdgrow.data.text import TextDataset

    read = TextDataset.evaluation

    def evaluation(self: Any, split: Split, **options: Any) -> Any:
        assert split != "test"
        return read(self, split, **options)

    monkeypatch.setattr(TextDataset, "evaluation", evaluation)
    ppdgrow(f"{line} --out run", *growing(KEPT))


@pytest.mark.parametrize(
    ("rounds", "step", "occurrence"),
    [
        *[(ROUNDS, *more) for more in [(307, 1), (309, 2), (309, 3), (314, 1), (316, 2)]],
        (UNJUDGED, 314, 1),
        pytest.param(UNJUDGED, 309, 1, marks=pytest.mark.slow),
        *(
            pytest.param(ROUNDS, *more, marks=pytest.mark.slow)
            for more in [(308, 1), (310, 1), (311, 1), (314, 2), (317, 1)]
        ),
    ],
    ids=lambda value: {ROUNDS: "judged", UNJUDGED: "unjudged"}.get(value, str(value)),
)
def test_a_run_stopped_anywhere_in_its_rounds_decides_the_same(
    ppdgrow: Command, line: str, stop_at: Callable[..., None], step: int, occurrence: int, rounds: tuple[str, ...]
) -> None:
    """Judged, steps 308 to 310 are drawn by the twin, then by two trials; 313 to 316 by the twin and one trial."""
    ppdgrow(f"{line} --out whole", *growing(*rounds))
    stop_at(step, signal.SIGTERM, occurrence)
    stopped = ppdgrow(f"{line} --out broken", *growing(*rounds), code=143)
    assert "the same command goes on" in stopped.stderr
    assert RunFolder(Path("broken")).newest_valid() is not None
    ppdgrow(f"{line} --out broken", *growing(*rounds))
    assert [decision["decision"] for decision in decisions("broken")] == DECIDED[rounds]
    assert same(result("broken"), result("whole"))
    assert events("broken") == events("whole")
    assert not (Path("broken") / "trials").exists()


@pytest.mark.parametrize("rounds", [ROUNDS, pytest.param(UNJUDGED, marks=pytest.mark.slow)], ids=["judged", "unjudged"])
def test_a_run_killed_in_a_trial_decides_the_same(ppdgrow: Command, line: str, rounds: tuple[str, ...]) -> None:
    """Kill -9 of a real process, as soon as each run of the first trials is there."""
    ppdgrow(f"{line} --out whole", *growing(*rounds))
    command = [sys.executable, "-m", "ppdgrow", *f"{line} --out broken".split(), *growing(*rounds)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    for arm in ("twin", "trial-1.1", "trial-1.2") if rounds is ROUNDS else ("trial-1.1", "trial-2.1"):
        with subprocess.Popen(
            command, env=environment, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        ) as process:
            while process.poll() is None and not (Path("broken/trials") / arm).exists():
                time.sleep(0.001)
            process.kill()
    ppdgrow(f"{line} --out broken", *growing(*rounds))
    assert same(result("broken"), result("whole"))
    assert events("broken") == events("whole")
    assert not list(Path("broken").rglob(".tmp*"))


@pytest.mark.parametrize("rounds", [ROUNDS, pytest.param(UNJUDGED, marks=pytest.mark.slow)], ids=["judged", "unjudged"])
@pytest.mark.parametrize("where", ["append_events", "write_checkpoint", "write_expansion"])
def test_a_run_that_dies_while_it_writes_a_decision_decides_the_same(
    ppdgrow: Command, line: str, monkeypatch: pytest.MonkeyPatch, where: str, rounds: tuple[str, ...]
) -> None:
    ppdgrow(f"{line} --out whole", *growing(*rounds))

    def fail(*_: Any, **__: Any) -> None:
        raise StorageError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(trials if where == "write_expansion" else trial_round, where, fail)
        ppdgrow(f"{line} --out broken", *growing(*rounds), code=6)
    ppdgrow(f"{line} --out broken", *growing(*rounds))
    assert same(result("broken"), result("whole"))
    assert events("broken") == events("whole")


@pytest.mark.parametrize("log", ["growth.jsonl", "metrics.jsonl"])
@pytest.mark.parametrize("arm", ["twin", "trial-1.1"])
def test_an_arm_whose_logs_are_torn_is_trained_again(
    ppdgrow: Command, line: str, stop_at: Callable[..., None], arm: str, log: str
) -> None:
    """What a lost page of a disk leaves: checkpoints, and a log without its last line."""
    ppdgrow(f"{line} --out whole", *growing(*ROUNDS))
    stop_at(309, signal.SIGTERM, 3)
    ppdgrow(f"{line} --out broken", *growing(*ROUNDS), code=143)
    torn = Path("broken/trials") / arm / log
    torn.write_bytes(torn.read_bytes()[:-20])
    ppdgrow(f"{line} --out broken", *growing(*ROUNDS))
    assert same(result("broken"), result("whole"))
    assert events("broken") == events("whole")


def test_what_a_run_that_died_after_its_decision_left_is_swept(
    ppdgrow: Command, line: str, stop_at: Callable[..., None]
) -> None:
    stop_at(315, signal.SIGTERM)
    ppdgrow(f"{line} --out run", *growing(KEPT), code=143)
    (Path("run/trials/twin/checkpoints")).mkdir(parents=True)
    ppdgrow(f"{line} --out run", *growing(KEPT))
    assert not Path("run/trials").exists()


def test_another_growth_in_the_same_folder_is_refused_in_one_short_line(ppdgrow: Command, line: str) -> None:
    ppdgrow(f"{line} --out run", *growing(KEPT))
    refused = ppdgrow(f"{line} --out run", *growing(KEPT.replace("307", "308")), code=2)
    assert "holds another run (growth[0].at: 307 -> 308)" in refused.stderr
    refused = ppdgrow(f"{line} --out run", code=2)
    assert "holds another run (growth: 1 -> 0 entries)" in refused.stderr


def test_arms_of_another_parent_are_not_taken_over(ppdgrow: Command, line: str, stop_at: Callable[..., None]) -> None:
    """The checkpoint of the round is lost, so the run goes back further; its weights come out as before."""
    ppdgrow(f"{line} --out whole", *growing(*ROUNDS))
    stop_at(309, signal.SIGTERM, 2)
    ppdgrow(f"{line} --out broken", *growing(*ROUNDS), code=143)
    (Path("broken/checkpoints/step-00000307") / "manifest.json").unlink()
    ppdgrow(f"{line} --out broken", *growing(*ROUNDS))
    assert same(result("broken"), result("whole"))
    assert events("broken") == events("whole")


DIVERGING = "{at: 307, method: fresh, scale: 1e30, trial: {steps: 3, rule: %s}}"


def test_a_diverging_trial_is_a_rejected_one(ppdgrow: Command, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ppdgrow.config.growth.MAX_SCALE", 1e31)
    ppdgrow(f"{line} --out never")
    told = ppdgrow(f"{line.replace('--quiet', '')} --out run", *growing(DIVERGING % "parent"))
    assert "diverged" in told.stderr
    (decision,) = decisions("run")
    assert (decision["decision"], decision["loss_after"]) == ("reject", None)
    assert same(result("run"), result("never"))


def test_a_diverging_growth_is_the_end_of_the_run_where_there_is_no_twin(
    ppdgrow: Command, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ppdgrow.config.growth.MAX_SCALE", 1e31)
    assert "diverged" in ppdgrow(f"{line} --out run", *growing(DIVERGING % "always"), code=5).stderr
    assert decisions("run") == []
    assert RunFolder(Path("run")).newest_valid() == RunFolder(Path("run")).checkpoint_path(307)


def test_growth_at_a_plateau(ppdgrow: Command) -> None:
    """At a rate that changes nothing the loss is level at once: two evaluations of patience after the first."""
    entry = "{at: plateau, patience: 2, trial: {steps: 3, epsilon: 1.0}}"
    options = [*TINY, *growing(entry), "-o", "train.lr=1e-30"]
    document = ppdgrow("train --layers 2 --steps 30 --out run --json", *options).document
    assert [(growth["step"], growth["decision"]) for growth in document["growth"]] == [(15, "accept")]


def test_a_plateau_that_never_comes_is_said(ppdgrow: Command) -> None:
    entries = ("{at: plateau, patience: 100, trial: {steps: 3}}", "{at: 16, trial: {steps: 3}}")
    told = ppdgrow("train --layers 2 --steps 21 --out run", *TINY, *growing(*entries))
    assert "growth 1 is not tried: the validation loss had not levelled off by step 10, the last" in told.stderr
    assert [event["event"] for event in own("run")] == ["skip", "grow", "check", "decision", "twin"]


@pytest.mark.parametrize("rule", RULES)
def test_a_growth_that_does_not_fit_after_a_rejection_is_passed_over(ppdgrow: Command, line: str, rule: str) -> None:
    """Place 4 exists only where the first growth was kept."""
    ppdgrow(f"{line} --out never")
    entries = (HARMFUL, f"{{at: 312, position: 4, trial: {{steps: 3, rule: {rule}}}}}")
    told = ppdgrow(f"{line} --out run", *growing(*entries))
    assert "growth 2 does not fit the model as it stands: position 4 does not exist" in told.stderr
    assert "position 4 does not exist" in events("run")[-1]["reason"]
    assert same(result("run"), result("never"))


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (["{at: 20, trial: {steps: 3}}"], "growth[0] needs 3 steps for its trial, from step 20"),
        (
            ["{at: 5, trial: {steps: 5}}", "{at: 9}"],
            "growth[1].at is 9, but the trial of growth[0] lasts until step 10",
        ),
        (["{at: 5, position: 7, trial: {steps: 5}}"], "growth[0]: position 7 does not exist"),
        (["{at: 5, pair: fnn}"], "growth[0].pair[0]: found 'fnn', expected one of ffn, attention"),
        (["{at: 5, trail: {steps: 5}}"], "unknown recipe key 'growth[0].trail' in -o (did you mean 'trial'?)"),
        (["{at: 5, candidates: [fnn]}"], "growth[0].candidates[0]: found 'fnn', expected one of ffn, attention,"),
        (["{at: 5, source: slice, trial: {steps: 5}}"], "growth[0]: source slice cuts full-width branches"),
        (["{at: 5, candidates: [{at: 9}]}"], "at belongs to the growth entry"),
        (["{at: 5, candidates: [ffn, {pair: ffn}]}"], "growth[0].candidates: number 2 is the same as one before it"),
        (
            ["{at: 5, pair: [ffn, attention], pairs: 1, trial: {steps: 5}}"],
            "growth[0]: 2 kinds are listed for 1 pair: set pairs 2",
        ),
    ],
)
def test_growths_that_cannot_be_are_refused_before_anything_is_written(
    ppdgrow: Command, entries: list[str], message: str
) -> None:
    refused = ppdgrow("train --layers 2 --steps 21 --out run", *TINY, *growing(*entries), code=2)
    assert message in refused.stderr
    assert not Path("run").exists()


def test_a_growth_before_the_checkpoint_is_refused(ppdgrow: Command, shallow: Path) -> None:
    refused = ppdgrow("train shallow --steps 20 --out run", "-o", "growth=[{at: 5, trial: {steps: 3}}]", code=2)
    assert "growth[0].at is 5, but the run starts at step 10" in refused.stderr


def test_a_run_may_grow_at_once_and_its_growths_are_not_inherited(ppdgrow: Command, shallow: Path) -> None:
    ppdgrow("train shallow --steps 10 --out run --quiet", "-o", "growth=[{at: 10, trial: {steps: 3}}]")
    assert decisions("run")[0]["step"] == 10
    document = ppdgrow("train run --steps 3 --out on --json").document
    assert [growth["decision"] for growth in document["growth"]] == ["accept"]
    assert "growth: []" in Path("on/recipe.yaml").read_text()


def test_a_checkpoint_from_before_a_decision_knows_nothing_of_it(ppdgrow: Command, line: str) -> None:
    ppdgrow(f"{line} --out run", *growing(KEPT))
    ppdgrow("train run/checkpoints/step-00000307 --steps 3 --out fork --quiet")
    assert {event["event"] for event in events("fork")} == {"train"}
    grown = ppdgrow("grow run/checkpoints/step-00000307 --out g --json").document
    assert grown["pairs"] == ["p1"], "the id was not given in this lineage"


@pytest.mark.parametrize("rule", [name for name, rule in RULES.items() if rule.trains_twin])
def test_where_the_ungrown_model_diverges_the_run_ends_as_it_would_have(
    ppdgrow: Command, shallow: Path, rule: str
) -> None:
    damage(shallow, lambda t: t | {"blocks.l2.g.out.bias": torch.full_like(t["blocks.l2.g.out.bias"], 3e38)})
    failed = ppdgrow(
        "train shallow --steps 10 --out run", *growing(f"{{at: 10, trial: {{steps: 3, rule: {rule}}}}}"), code=5
    )
    assert "diverged" in failed.stderr


def test_the_ladder_and_each_event_are_told(ppdgrow: Command, line: str) -> None:
    told = ppdgrow(f"{line.replace('--quiet', '')} --out run", *growing(HARMFUL, ROUNDS[1])).stderr
    for shown in (
        "step 307  growth 1 of 2, tried until step 310",
        "  trial 1.1: 2 -> 4 layers",
        "  trial 1.1: validation loss",
        "the outputs differ",
        "  trial 1.1: reject",
        "step 310  going on with the model without growth",
        "  trial 2.1: 2 -> 4 layers",
        "identical to the last bit",
        "  trial 2.1: accept",
        "step 316  going on with trial 2.1",
        "parent rule decides: ",
        "twin rule: grown - twin",
        "the 95 % interval covers the sampling of 8 validation examples, not the noise of training (one seed)",
        "     4 |                  x             ===",
        "     2 |================",
        "ledger: run ",
        "step    307   2 -> 4   reject   vs parent +",
        "step    312   2 -> 4   accept   vs parent ",
    ):
        assert shown in told, shown
    quiet = ppdgrow(f"{line} --out other", *growing(KEPT))
    assert quiet.stderr == ""
    json.dumps(events("run"), allow_nan=False)


def test_removing_a_trained_pair_is_another_operation(ppdgrow: Command, line: str) -> None:
    """It keeps the other weights as trained; a rejection restores the state before the expansion."""
    ppdgrow(f"{line} --out run", *growing(KEPT))
    removed = ppdgrow("grow run --remove p1 --out less")
    assert "validation loss" in removed.stdout
    old, new = (read_checkpoint(RunFolder(Path(name)).checkpoint_path(321)).tensors for name in ("run", "less"))
    assert all(torch.equal(new[name], old[name]) for name in new)
    assert read_jsonl(Path("less/growth.jsonl"))[-1]["event"] == "check"
