"""A run that was stopped and goes on equals the unbroken run to the bit, and the check can fail."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import TINY, Command
from equality import differences, result, same

from ppdgrow.checkpoint import RunFolder, read_checkpoint, write_checkpoint

LINE = "train --layers 2 --steps 21 -o model.dropout=0.1 --quiet --out"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("step", [1, 6, 9, 15, 21], ids=lambda step: f"at {step}")
def test_a_stopped_run_goes_on_to_the_same_bits(ppdgrow: Command, stop_at: Any, step: int, number: int) -> None:
    """Steps: the first, at a save, between saves, before an evaluation, the last."""
    ppdgrow(f"{LINE} whole", *TINY)
    stop_at(step, number, 2 if step == 1 else 1)  # the first batch is drawn before training too, to look at precision
    stopped = ppdgrow(f"{LINE} broken", *TINY, code=128 + number)
    assert f"interrupted at step {step}" in stopped.stderr
    stop_at(step + 2, number)
    if step < 18:
        ppdgrow(f"{LINE} broken", *TINY, code=128 + number)
    ppdgrow(f"{LINE} broken", *TINY)
    assert same(result("broken"), result("whole"))


def test_a_killed_run_goes_on_from_its_last_save(ppdgrow: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """What kill -9 leaves: metrics beyond the last checkpoint, a cut line, a half-written folder."""
    ppdgrow(f"{LINE} whole", *TINY)
    ppdgrow(f"{LINE} broken", *TINY)
    run = RunFolder(Path("broken"))
    checkpoints = run.checkpoints()
    (checkpoints[-1] / "manifest.json").unlink()
    (run.path / "checkpoints" / ".tmp-left").mkdir()
    with run.metrics_path.open("a") as file:
        file.write('{"step": 22, "tr')
    going_on = ppdgrow(f"{LINE} broken", *TINY)
    assert "skipped a damaged checkpoint" in going_on.stderr
    assert same(result("broken"), result("whole"))
    assert not list(run.path.rglob(".tmp*"))


@pytest.mark.parametrize("left_out", ["moments", "rng", "position"])
def test_control_leaving_out_a_part_of_the_state_breaks_equality(ppdgrow: Command, stop_at: Any, left_out: str) -> None:
    ppdgrow(f"{LINE} whole", *TINY)
    stop_at(9, signal.SIGTERM)
    ppdgrow(f"{LINE} broken", *TINY, code=143)
    folder = RunFolder(Path("broken")).newest_valid()
    assert folder is not None
    checkpoint = read_checkpoint(folder)
    if left_out == "position":
        state = checkpoint.state.model_copy(update={"step": 8})
        target = folder.with_name("step-00000008")
        folder.rename(target)
        write_checkpoint(target, dataclasses.replace(checkpoint, state=state))
    else:
        write_checkpoint(folder, dataclasses.replace(checkpoint, **dict[str, Any]({left_out: {}})))
    ppdgrow(f"{LINE} broken", *TINY)
    assert not same(result("broken"), result("whole"))


def test_a_grown_run_that_is_stopped_right_after_growth_goes_on_to_the_same_bits(
    ppdgrow: Command, shallow: Path, stop_at: Any
) -> None:
    ppdgrow("grow shallow --pair attention --out g --quiet")
    ppdgrow("train g --steps 8 --out whole --quiet")
    stop_at(11, signal.SIGTERM)
    ppdgrow("train g --steps 8 --out broken --quiet", code=143)
    ppdgrow("train g --steps 8 --out broken --quiet")
    assert same(result("broken"), result("whole"))


def test_two_halves_with_a_horizon_are_one_run(ppdgrow: Command) -> None:
    """The same schedule in two commands: the same weights, to the bit."""
    ppdgrow("train --layers 2 --steps 20 --out whole --quiet", *TINY)
    ppdgrow("train --layers 2 --steps 12 --horizon 20 --out half --quiet", *TINY)
    ppdgrow("train half --steps 8 --horizon 20 --out rest --quiet")
    whole, rest = result("whole"), result("rest")
    assert all(torch.equal(whole["tensors"][name], rest["tensors"][name]) for name in whole["tensors"])


LENGTHS = {  # what the run was begun with, where it is stopped, what it ends with
    "longer, before the decay": ("--steps 20", 9, "--steps 27"),
    "shorter, before the decay": ("--steps 27", 9, "--steps 20"),
    "longer, no decay": ("--steps 20 --no-decay", 17, "--steps 27 --no-decay"),
    "longer, under a horizon": ("--steps 20 --horizon 30", 18, "--steps 27 --horizon 30"),
    "to where it stands": ("--steps 27 --no-decay", 23, "--steps 23 --no-decay"),
    "to where it stands, evaluated": ("--steps 27 --no-decay", 25, "--steps 25 --no-decay"),
    "with a decay": ("--steps 20 --no-decay", 9, "--steps 20 --decay"),
    "from a checkpoint": ("whole2 --steps 20", 20, "whole2 --steps 27"),
}


@pytest.mark.parametrize("case", LENGTHS)
def test_a_stopped_run_may_get_another_length_where_it_is_the_same_run(
    ppdgrow: Command, stop_at: Any, case: str
) -> None:
    begun, step, ends = LENGTHS[case]
    model = [] if "whole2" in ends else ["--layers", "2", "-o", "model.dropout=0.1"]
    if "whole2" in ends:
        ppdgrow("train --layers 2 --steps 6 --no-decay --out whole2 --quiet", *TINY)
    ppdgrow(f"train {ends} --out whole --quiet", *model, *TINY)
    stop_at(step, signal.SIGTERM)
    ppdgrow(f"train {begun} --out broken --quiet", *model, *TINY, code=143)
    stop_at(step + 2, signal.SIGTERM)
    told = ppdgrow(f"train {ends} --out broken", *model, *TINY, code=0 if "where it stands" in case else 143)
    assert "the run goes on with another length (train." in told.stderr
    assert "another length" not in ppdgrow(f"train {ends} --out broken", *model, *TINY).stderr
    assert differences("broken", "whole") == []
    assert "already finished" in ppdgrow(f"train {ends} --out broken", *model, *TINY).stderr


def test_another_length_that_would_be_another_run_is_refused_with_a_way_out(ppdgrow: Command, stop_at: Any) -> None:
    stop_at(18, signal.SIGTERM)
    ppdgrow(f"{LINE} a", *TINY, code=143)
    before = {path: path.read_bytes() for path in Path("a").rglob("*") if path.is_file()}
    line = "train --layers 2 -o model.dropout=0.1 --quiet --out a"
    for more, says in {
        "--steps 30": "(train.steps: 21 -> 30), which stands at step 18, and had another learning rate from step 16 on"
        ": finish it as it was begun and go on with ppdgrow train a --steps N, or choose another --out",
        "--steps 17": "(train.steps: 21 -> 17), which stands at step 18 already: ask for at least --steps 18",
        "--steps 30 --seed 1": "holds another run (train.steps: 21 -> 30; train.seed: 0 -> 1)",
    }.items():
        assert says in ppdgrow(f"{line} {more}", *TINY, code=2).stderr
        assert says in ppdgrow(f"{line} {more} --dry-run", *TINY, code=2).stderr
    assert before == {path: path.read_bytes() for path in Path("a").rglob("*") if path.is_file()}
    ppdgrow(f"{LINE} a", *TINY)
    for steps, way in {
        30: "go on from it with ppdgrow train a --steps 9, or choose",
        10: ": choose another --out",
    }.items():
        refused = ppdgrow(f"{line} --steps {steps}", *TINY, code=2)
        assert f"(train.steps: 21 -> {steps}), which is finished at step 21: " in refused.stderr
        assert way in refused.stderr


def test_control_another_length_in_spite_of_the_schedule_is_another_run(
    ppdgrow: Command, stop_at: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = "train --layers 2 --quiet --steps"
    ppdgrow(f"{line} 30 --out whole", *TINY)
    stop_at(18, signal.SIGTERM)
    ppdgrow(f"{line} 21 --out broken", *TINY, code=143)
    monkeypatch.setattr("ppdgrow.training.preparation.check_length", lambda job: ["all"])
    monkeypatch.setattr("ppdgrow.growth.train.check_length", lambda job: ["all"])
    ppdgrow(f"{line} 30 --out broken", *TINY)
    assert differences("broken", "whole")


def test_a_repeated_command_says_no_more_than_the_first(ppdgrow: Command, stop_at: Any) -> None:
    """What nobody set is not noted as useless; what somebody set is noted each time."""
    line = "train --layers 2 --steps 21 -o model.mixer=convolution --out a"
    stop_at(9, signal.SIGTERM)
    told = [ppdgrow(line, *TINY, code=code).stderr.splitlines() for code in (143, 0)]
    notes = [[note for note in lines if "does nothing" in note] for lines in told]
    assert notes == [["model.mixer does nothing in the family transformer"]] * 2
    dry = ppdgrow(f"{line} --dry-run", *TINY)
    assert "model.layers 2 (--layers)" in dry.stdout
    assert "(run)" not in dry.stdout.replace("train.precision fp32 (run)", "")


def test_another_seed_gives_another_run(ppdgrow: Command) -> None:
    ppdgrow("train --layers 2 --steps 4 --out a --quiet", *TINY)
    ppdgrow("train --layers 2 --steps 4 --seed 1 --out b --quiet", *TINY)
    assert not same(result("a"), result("b"))


def test_data_that_changed_is_refused_on_resume_and_warned_of_elsewhere(
    ppdgrow: Command, stop_at: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    (data / "wikitext-2").mkdir(parents=True)
    for name in ("train", "valid", "test"):
        (data / "wikitext-2" / f"{name}.txt").write_text(f"some {name} text of a few words\n" * 50)
    line = f"train --layers 1 --steps 10 --data wikitext2 --data-dir {data} -o data.tokenizer=byte --out a"
    stop_at(7, signal.SIGTERM)
    ppdgrow(line, *TINY, code=143)
    with (data / "wikitext-2" / "valid.txt").open("a") as file:
        file.write("one line more\n")
    refused = ppdgrow(line, *TINY, code=4)
    assert "the validation split of wikitext2 changed since step 7" in refused.stderr
    for command in ("grow a --out g", "probe a", "train a --steps 1 --out b"):
        assert "validation split of wikitext2 had other content when" in ppdgrow(command).stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_a_command_starts_ends_it_in_one_line(tmp_path: Path, number: int) -> None:
    """Ctrl-C in the midst of importing torch: libraries turn the exception into one of their own."""
    process = subprocess.Popen(
        [sys.executable, "-m", "ppdgrow", "train", "--layers", "1", "--out", str(tmp_path / "a")],
        stderr=subprocess.PIPE,
        text=True,
    )
    time.sleep(1.0)
    process.send_signal(number)
    try:
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 128 + number, err
    assert "Traceback" not in err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_an_import_swallows_is_not_lost(
    ppdgrow: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, number: int
) -> None:
    def swallowing(requested: str) -> torch.device:
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(number)
        return torch.device("cpu")

    monkeypatch.setattr("ppdgrow.growth.train.resolve_device", swallowing)
    done = ppdgrow("train --steps 5 --layers 1 --out a", *TINY, code=128 + number)
    assert done.stderr.splitlines()[-1] == "error: interrupted"
    assert not (tmp_path / "a").exists(), "nothing was begun"
