"""A growth within a run in one line: `train --grow-to --grow-at`, and shares of the steps in a recipe."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from command_line import TINY, Command
from equality import result, same

from ppdgrow.checkpoint import RunFolder, read_config
from ppdgrow.checkpoint.events import GrowEvent, read_events
from ppdgrow.config.growth import GrowthConfig
from ppdgrow.config.load import Layer, read_yaml, resolve
from ppdgrow.errors import ConfigError


def growths(run: str) -> list[GrowEvent]:
    return [event for event in read_events(Path(run) / "growth.jsonl") if isinstance(event, GrowEvent)]


def test_it_is_one_entry_of_growth_that_is_kept_unjudged(ppdgrow: Command) -> None:
    ppdgrow("train --layers 2 --steps 12 --grow-to 6 --grow-at 50% --pair attention,ffn --out line", *TINY)
    entry = "{at: 6, pair: [attention, ffn], pairs: 2, trial: {steps: 1, rule: always}}"
    ppdgrow("train --layers 2 --steps 12 --out entry", *TINY, "-o", f"growth=[{entry}]")
    assert same(result("line"), result("entry"))
    recorded = resolve([Layer("run", read_yaml(Path("line/recipe.yaml")))]).recipe.growth
    assert recorded == resolve([Layer("run", read_yaml(Path("entry/recipe.yaml")))]).recipe.growth
    (event,) = growths("line")
    assert [event.step, event.layers_before, event.layers_after, event.bit_exact] == [6, 2, 6, True]
    ppdgrow("train --layers 2 --steps 12 --grow-to 6 --grow-at 7 --pair attention,ffn --out later", *TINY)
    assert not same(result("line"), result("later")), "control: another step is another model"


@pytest.mark.parametrize("method", ["zero", "copy", "fresh"])
def test_the_rivals_grow_as_far(ppdgrow: Command, method: str) -> None:
    ppdgrow(f"train --layers 2 --steps 8 --grow-to 4 --method {method} --out run", *TINY)
    (event,) = growths("run")
    assert [event.step, event.method] == [4, method], "without --grow-at at half of the steps"
    newest = RunFolder(Path("run")).newest_valid()
    assert newest is not None
    assert read_config(newest).num_layers == 4


@pytest.mark.parametrize(
    ("options", "unused"),
    [
        ("--grow-to 4 --pair ffn --method zero", ["--pair does nothing with method zero"]),
        ("--grow-to 4 --pair attention --method fresh", ["--pair does nothing with method fresh"]),
        ("--grow-to 4 --pair ffn --method pair", []),
        ("--grow-to 4 --method copy", []),
        (
            "-o 'growth=[{at: 4, method: zero, source: copy, scale: 0.5, moments: copy}]'",
            ["growth[0].source does nothing with method zero", "growth[0].scale does nothing with method zero"],
        ),
        (
            "-o 'growth=[{at: 4, pair: attention, candidates: [ffn, zero, {method: fresh, moments: copy}]}]'",
            ["growth[0].candidates[2].moments does nothing with method fresh"],
        ),
        ("-o 'growth=[{at: 4, source: random, moments: copy}]'", ["growth[0].moments does nothing with source random"]),
    ],
)
def test_what_does_nothing_is_said(ppdgrow: Command, options: str, unused: list[str]) -> None:
    told = ppdgrow("train --layers 2 --steps 200 --dry-run --out run", *TINY, *shlex.split(options)).stderr
    assert [line for line in told.splitlines() if "does nothing" in line] == unused


@pytest.mark.parametrize(
    ("options", "unused"),
    [
        ("--pair ffn --method zero", ["--pair does nothing with method zero"]),
        ("--method fresh --moments copy", ["--moments does nothing with method fresh"]),
        ("--pair ffn --moments copy", []),
    ],
)
def test_grow_says_what_does_nothing(ppdgrow: Command, shallow: Path, options: str, unused: list[str]) -> None:
    told = ppdgrow(f"grow {shallow} {options} --no-eval --out g").stderr
    assert [line for line in told.splitlines() if "does nothing" in line] == unused


def test_from_a_checkpoint_the_share_is_of_the_further_steps(ppdgrow: Command, shallow: Path) -> None:
    ppdgrow(f"train {shallow} --steps 8 --grow-to 4 --grow-at 25% --out run")
    (event,) = growths("run")
    assert [event.step, event.layers_before] == [12, 2]


def test_a_step_before_the_checkpoint_is_refused(ppdgrow: Command, shallow: Path) -> None:
    line = f"train {shallow} --steps 8 --grow-to 4 --out run --grow-at"
    told = ppdgrow(f"{line} 9", code=2).stderr
    assert "--grow-at is 9, but the run starts at step 10: choose a later step" in told
    ppdgrow(f"{line} 11")
    assert [event.step for event in growths("run")] == [11], "control"


def test_the_same_command_goes_on_and_another_length_is_another_run(ppdgrow: Command) -> None:
    line = "train --layers 2 --grow-to 4 --grow-at 50% --out run --steps"
    ppdgrow(f"{line} 12", *TINY)
    before = result("run")
    assert "already finished" in ppdgrow(f"{line} 12", *TINY).stderr
    told = ppdgrow(f"{line} 20", *TINY, code=2).stderr
    assert "growth[0].at: 6 -> 10" in told
    assert same(result("run"), before)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            "--layers 2 --grow-to 5",
            "--grow-to is 5, but the model has 2 layers and a growth adds two at a time: give 4",
        ),
        ("--layers 4 --grow-to 4", "--grow-to is 4, but the model has 4 layers already: give 6 or more"),
        ("--layers 2 --grow-at 50%", "found --grow-at without --grow-to LAYERS"),
        ("--layers 2 --pair ffn", "found --pair without --grow-to LAYERS"),
        ("--layers 2 --grow-to 4 --grow-at 100%", "--grow-at: found '100%', expected a step above 0, a share"),
        ("--layers 2 --grow-to 4 --grow-at 0", "--grow-at: found 0, expected a step above 0"),
        ("--layers 2 --grow-to 4 --grow-at half", "--grow-at: found 'half', expected a step above 0"),
        ("--layers 2 --grow-to 4 --pair atention", "found 'atention', expected one of ffn"),
        (
            "--layers 2 --grow-to 4 --grow-at 9",
            "--grow-at is 9, but the run ends at step 8: grow earlier, such as at 50%, or set more --steps",
        ),
        ("--layers 2 --grow-to 4 --grow-at 8", "--grow-at is 8, but the run ends at step 8: grow earlier"),
        ("--layers 2 --grow-to 4 --grow-at 9 --dry-run", "--grow-at is 9, but the run ends at step 8: grow earlier"),
        ("--layers 2 --grow-to 4 -o train.steps=1", "--grow-at is 1, but the run ends at step 1: set more --steps"),
        (
            "--layers 2 --grow-to 4 --pair ffn,ffn",
            "--pair lists 2 kinds, but --grow-to 4 adds 1 pair to 2 layers: list fewer, or give --grow-to 6",
        ),
        ("--layers 2 --grow-to 99999", "--grow-to is 99999, but a growth of 2 layers reaches 8194 at most"),
    ],
)
def test_what_does_not_fit_is_refused(ppdgrow: Command, options: str, message: str) -> None:
    steps = "" if "train.steps" in options else "--steps 8"
    told = ppdgrow(f"train --out run {steps} {options}", *TINY, code=2).stderr
    assert message in told
    assert "growth[" not in told, "in the words of the command line"
    assert not Path("run").exists()


@pytest.mark.parametrize(("at", "step"), [("50%", 150), ("33.3%", 133), ("0.1%", 101), ("99%", 199), ("99.9%", 199)])
def test_a_share_is_of_the_steps_of_the_run(at: str, step: int) -> None:
    assert GrowthConfig(at=at).in_run(first=100, steps=100).step == step
    assert GrowthConfig(at=at).step is None


def test_what_is_no_share_stays() -> None:
    for at in (7, "plateau"):
        assert GrowthConfig(at=at).in_run(first=100, steps=100).at == at


def test_growths_at_shares_must_leave_room_for_each_trial(ppdgrow: Command) -> None:
    entries = "growth=[{at: 50%, trial: {steps: 4}}, {at: 60%, trial: {steps: 2}}]"
    told = ppdgrow("train --layers 2 --steps 20 --out run", *TINY, "-o", entries, code=2).stderr
    assert "growth[1].at is 12, but the trial of growth[0] lasts until step 14" in told
    ppdgrow("train --layers 2 --steps 40 --out run", *TINY, "-o", entries)
    assert [event.step for event in growths("run")] == [20, 24], "control: in a longer run there is room"


@pytest.mark.parametrize("at", ["-5%", "5 %", "%", "1e1%", "plateu", 0, -3])
def test_a_bad_place_in_a_recipe_is_refused(at: object) -> None:
    with pytest.raises(
        ConfigError, match=r"expected a step above 0, a share of the run's steps such as 50%, or plateau"
    ):
        resolve([Layer("recipe", {"growth": [{"at": at}]})])


def test_a_growth_of_the_recipe_is_not_thrown_away(ppdgrow: Command) -> None:
    line = "train --layers 2 --steps 8 --grow-to 4 --out run"
    told = ppdgrow(line, *TINY, "-o", "growth=[{at: 2}]", code=2).stderr
    assert "--grow-to gives a growth, and growth has 1 of its own (-o): give one or the other" in told
    ppdgrow(line, *TINY, "-o", "growth=[]")
    assert [event.step for event in growths("run")] == [4]
