"""Bad input of the main path: one clear line with a way out, the right exit code, existing files untouched."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
from bad_recipes import BAD_TRAINING
from command_line import TINY, Command, snapshot

from ppdgrow.checkpoint import RunFolder, read_jsonl
from ppdgrow.cli import COMMANDS
from ppdgrow.cli.command import parse_number
from ppdgrow.engine.evaluate import Evaluation


@pytest.mark.parametrize(("line", "code", "says"), BAD_TRAINING, ids=[line for line, _, _ in BAD_TRAINING])
def test_bad_training_commands(ppdgrow: Command, line: str, code: int, says: str) -> None:
    failed = ppdgrow(f"train {line}", code=code)
    assert says in failed.stderr
    assert failed.stderr.startswith("error: ")
    assert failed.stderr.count("\n") == 1, failed.stderr
    assert failed.stdout == ""
    assert snapshot() == {}
    as_json = ppdgrow(f"train {line} --json", code=code)
    document = json.loads(as_json.stderr)
    assert document["exit_code"] == code
    assert as_json.stdout == ""


def test_a_rate_in_exponent_form_is_a_number(ppdgrow: Command) -> None:
    Path("r.yaml").write_text("train: {lr: 3e-4}\n")
    ppdgrow("train --layers 1 --steps 1 --recipe r.yaml --out a --quiet", *TINY)
    assert "lr: 0.0003" in Path("a/recipe.yaml").read_text()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("train: {lr: 1e-3, lr: 2e-3}\n", "lr"),
        ("train:\n  lr: 1\ntrain:\n  lr: 2\n", "train"),
        ("train: [1]\n", "train"),
        ("trian: {lr: 1e-3}\n", "trian"),
        ("model: {layers: '6'}\n", "model.layers"),
        ("model: {layers: 6\n", "r [x].yaml"),
    ],
)
def test_bad_recipes(ppdgrow: Command, text: str, says: str) -> None:
    Path("r [x].yaml").write_text(text)
    failed = ppdgrow("train --recipe", "r [x].yaml", code=2)
    assert says in failed.stderr
    assert failed.stderr.count("\n") == 1


BAD_GROWTH = [
    ("--position 9", 2, "does not exist"),
    ("--position 0,1 --pairs 3", 2, "--pairs 2"),
    ("--position upstairs", 2, "expected one of end, start"),
    ("--pair fnn", 2, "expected one of ffn, attention"),
    ("--pairs 0", 2, "at least 1"),
    ("--source slice", 2, "use --source copy"),
    ("--method magic", 2, "magic"),
    ("--remove p9", 2, "no pair"),
    ("--remove last --pair ffn", 2, "one or the other"),
    ("--scale nan", 2, "scale"),
    ("--scale 1e30", 2, "scale: found 1e+30, expected a number from -1000 to 1000: larger weights round the updates"),
    ("--pairs 1.5", 2, "pairs: found 1.5, expected a whole number of at least 1 and at most 4096"),
    ("--out shallow", 2, "is the input"),
    ("--out shallow/child", 2, "is the input or in it"),
    ("--out .", 2, "is the current folder"),
    ("--out shallow/recipe.yaml/x", 2, "is a file"),
    ("--remove last --scale 2", 2, "one or the other"),
    ("--device cuda:9", 2, "cuda:9"),
]


@pytest.mark.parametrize(("line", "code", "says"), BAD_GROWTH, ids=[line for line, _, _ in BAD_GROWTH])
def test_bad_growth_commands(ppdgrow: Command, shallow: Path, line: str, code: int, says: str) -> None:
    before = snapshot()
    failed = ppdgrow(f"grow shallow {line}", code=code)
    assert says in failed.stderr
    assert failed.stderr.count("\n") == 1
    assert snapshot() == before


@pytest.mark.parametrize("command", ["train {} --steps 1", "grow {}", "probe {}", "compare {} {}"])
@pytest.mark.parametrize("damage", ["cut", "bit", "config", "gone"])
def test_a_damaged_checkpoint_is_refused_by_every_command(
    ppdgrow: Command, shallow: Path, command: str, damage: str
) -> None:
    folder = RunFolder(shallow).checkpoints()[-1]
    for old in RunFolder(shallow).checkpoints()[:-1]:
        (old / "manifest.json").unlink()
    weights = folder / "model.safetensors"
    if damage == "cut":
        weights.write_bytes(weights.read_bytes()[:100])
    elif damage == "bit":
        data = bytearray(weights.read_bytes())
        data[-1] ^= 1
        weights.write_bytes(data)
    elif damage == "config":
        (folder / "config.json").write_text("{}")
    else:
        weights.unlink()
    before = snapshot()
    failed = ppdgrow(command.format("shallow", "shallow"), code=4)
    assert folder.name in failed.stderr
    assert failed.stderr.count("\n") == 1
    assert snapshot() == before


def test_a_contradiction_to_the_checkpoint_is_refused(ppdgrow: Command, shallow: Path) -> None:
    for change in ("--width 32", "--layers 5", "-o model.norm=rms", "-o data.sequence_length=8"):
        failed = ppdgrow(f"train shallow --steps 1 {change}", code=2)
        assert "but the checkpoint" in failed.stderr


def test_the_layers_of_a_checkpoint_are_those_that_it_has(ppdgrow: Command, shallow: Path) -> None:
    """Not those from which it grew: one meaning on the command line and in every recipe.yaml."""
    ppdgrow("grow shallow --pairs 2 --out g --quiet")
    for layers in (2, 4):
        refused = ppdgrow(f"train g --steps 1 --layers {layers}", code=2)
        assert f"model.layers is {layers} (--layers), but the checkpoint" in refused.stderr
        assert "has 6: leave it out" in refused.stderr
    ppdgrow("train g --steps 1 --layers 6 --out given --quiet")
    ppdgrow("train g --steps 1 --out left-out --quiet")
    ppdgrow("train left-out --steps 1 --out further --quiet")
    assert re.search(r"^  layers: 6  # ppdgrow grow$", Path("g/recipe.yaml").read_text(), re.MULTILINE)
    assert re.search(r"^  layers: 6 +# --layers$", Path("given/recipe.yaml").read_text(), re.MULTILINE)
    for run in ("left-out", "further"):
        assert re.search(r"^  layers: 6 +# checkpoint$", Path(run, "recipe.yaml").read_text(), re.MULTILINE)
    ppdgrow("grow g --remove last --out back --quiet")
    assert re.search(r"^  layers: 4  # ppdgrow grow$", Path("back/recipe.yaml").read_text(), re.MULTILINE)
    ppdgrow("train shallow --steps 1 --out twin --quiet")
    decided = ppdgrow("compare shallow given --accept --twin twin --epsilon 9 --margin 9 --rule parent")
    assert "were not trained alike" not in decided.stdout + decided.stderr


def test_a_run_of_a_grown_model_that_recorded_its_first_layers_goes_on(ppdgrow: Command, shallow: Path) -> None:
    """Recorded by an earlier version."""
    ppdgrow("grow shallow --pairs 2 --out g --quiet")
    ppdgrow("train g --steps 1 --out a --quiet")
    recipe = Path("a/recipe.yaml")
    recipe.write_text(recipe.read_text().replace("  layers: 6", "  layers: 2"))
    assert "already finished" in ppdgrow("train g --steps 1 --out a").stderr
    ppdgrow("train a --layers 6 --steps 1 --out b --quiet")


def test_another_run_in_the_output_folder_is_refused(ppdgrow: Command, shallow: Path) -> None:
    Path("notes").mkdir()
    Path("notes/todo.txt").write_text("x")
    before = snapshot()
    line = "train --layers 2 --steps 10 --no-decay"
    assert "train.seed: 0 -> 1" in ppdgrow(f"{line} --seed 1 --out shallow", *TINY, code=2).stderr
    assert "--resume never" in ppdgrow(f"{line} --resume never --out shallow", *TINY, code=2).stderr
    assert "holds no run" in ppdgrow(f"{line} --out notes", *TINY, code=2).stderr
    assert "is a file" in ppdgrow(f"{line} --out notes/todo.txt", *TINY, code=2).stderr
    assert "holds something else" in ppdgrow("grow shallow --out notes", code=2).stderr
    assert snapshot() == before


def test_runs_on_different_data_are_not_compared(ppdgrow: Command, shallow: Path) -> None:
    ppdgrow("train --layers 2 --steps 4 -o data.tokenizer=bpe:300 --out bpe --quiet", *TINY)
    failed = ppdgrow("compare shallow bpe", code=2)
    assert "tokenizer" in failed.stderr
    assert "byte" in failed.stderr
    assert "bpe:300" in failed.stderr


@pytest.mark.parametrize("name", ["with space", "[red]markup[/red]", "sch\u00f6n"])
def test_names_that_are_not_plain(ppdgrow: Command, name: str) -> None:
    ppdgrow("train --layers 1 --steps 2 --quiet --out", name, *TINY)
    assert (Path(name) / "recipe.yaml").is_file()
    shown = ppdgrow("grow", name, "--out", f"{name}-grown").stdout.splitlines()[-1]
    assert shown.endswith("-grown")
    assert ppdgrow("probe", f"{name}-grown", "--json").document["passed"] is True


@pytest.mark.parametrize("name", ["new\nline", "a\rb", "a\x1b[31mb", "a\u2028b"], ids=repr)
def test_a_control_character_in_an_output_folder_is_refused(ppdgrow: Command, shallow: Path, name: str) -> None:
    """The last line of stdout would be a part of the path; also where the folder is named after its parent."""
    before = snapshot()
    for line in (["train --layers 1 --steps 2 --out", name], ["grow shallow --out", name]):
        assert "control character in its name: choose another --out" in ppdgrow(*line, code=2).stderr
    assert snapshot() == before
    shallow.rename(name)
    assert "control character in its name" in ppdgrow("grow", name, code=2).stderr
    assert ppdgrow("grow", name, "--out", "plain").stdout.splitlines()[-1] == "plain"


def test_no_number_is_read_but_by_the_schema() -> None:
    """What Typer reads itself it refuses without the value and its bounds."""
    numbers = {}
    for module in COMMANDS:
        for name, hint in get_type_hints(module.run, localns={"Path": Path}, include_extras=True).items():
            kind, *extra = get_args(hint) if hasattr(hint, "__metadata__") else [hint]
            if {int, float} & {kind, *get_args(kind)}:
                numbers[name] = extra[0].parser
    assert numbers.keys() >= {"num_layers", "steps", "seed", "lr", "batch_size", "pair_lr", "pairs", "scale", "margin"}
    assert set(numbers.values()) == {parse_number}


@pytest.mark.parametrize("flag", ["--epsilon", "--margin --twin shallow"])
def test_a_bound_of_a_decision_that_is_no_number_is_refused(ppdgrow: Command, shallow: Path, flag: str) -> None:
    name, *more = flag.split()
    refused = ppdgrow("compare shallow shallow --accept", name, "0,5", *more, code=2)
    assert f"{name} is '0,5', expected a finite number of nats" in refused.stderr


@pytest.mark.parametrize("entry", ["{at: 5, scale: 1e30}", "{at: 5, candidates: [{scale: -1e12}]}"])
def test_a_scale_beyond_its_bound_is_refused_in_a_recipe_too(ppdgrow: Command, entry: str) -> None:
    refused = ppdgrow("train --layers 1 --steps 200 --out a", "-o", f"growth=[{entry}]", code=2)
    assert "scale: found" in refused.stderr
    assert "expected a number from -1000 to 1000" in refused.stderr


def test_the_last_override_of_a_key_holds_and_is_named(ppdgrow: Command) -> None:
    line = "train --layers 1 --steps 2 -o train.lr=1 -o train.seed=3 -o train.lr=0.5 --out"
    told = ppdgrow(f"{line} a", *TINY)
    assert told.stderr.splitlines()[0] == "-o was given more than once for a key, the last one holds: train.lr=0.5"
    assert "lr: 0.5" in Path("a/recipe.yaml").read_text()
    assert "more than once" not in ppdgrow(f"{line} b --quiet", *TINY).stderr


def test_the_flags_of_rate_and_batch_size(ppdgrow: Command) -> None:
    ppdgrow("train --layers 1 --steps 2 --lr 3e-4 --batch-size 3 --out a --quiet", *TINY)
    recipe = Path("a/recipe.yaml").read_text()
    assert re.search(r"lr: 0.0003 +# --lr\n", recipe)
    assert re.search(r"batch_size: 3 +# --batch-size\n", recipe)


def test_a_diverging_run_stops_with_a_valid_checkpoint(ppdgrow: Command) -> None:
    line = "train --layers 2 --steps 60 --out d --quiet -o train.lr=100 -o train.clip_norm=1e30"
    failed = ppdgrow(line, *TINY, code=5)
    assert "diverge" in failed.stderr
    newest = RunFolder(Path("d")).newest_valid()
    assert newest is not None
    assert "diverge" in ppdgrow(line, *TINY, code=5).stderr
    assert RunFolder(Path("d")).newest_valid() == newest


def test_a_diverged_run_is_known_as_one(ppdgrow: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """After its first evaluation it is shown, before that it is left out; one that goes on is as any other."""
    harm = ["-o", "train.lr=100", "-o", "train.clip_norm=1e30", "--quiet"]
    ppdgrow("train --layers 1 --steps 10 --out b --quiet", *TINY)
    ppdgrow("train --layers 1 --steps 10 --out c --quiet -o train.weight_decay=0", *TINY)
    steps = {}
    for name, model in (("late", TINY), ("early", [v.replace("eval_every=5", "eval_every=50") for v in TINY])):
        line = [f"train --layers 2 --steps 60 --out {name}", *model, *harm]
        found = re.search(r"diverged at step (\d+)", ppdgrow(*line, code=5).stderr)
        assert found is not None
        steps[name] = int(found[1])
        ppdgrow(*line, code=5)
        events = [(event["event"], event["step"]) for event in read_jsonl(Path(name) / "growth.jsonl")]
        assert events == [("train", 0), ("diverged", steps[name])], "said once, however often it is tried"
    told = ppdgrow("compare b early late c")
    assert f"left out early: 'early' diverged at step {steps['early']} of 60, before its first" in told.stderr
    assert f"late: diverged at step {steps['late']} of 60\n" in told.stderr
    assert "unfinished" not in told.stderr

    line = ["train --layers 1 --steps 10 --out e --json", *TINY]
    with monkeypatch.context() as patch:
        patch.setattr(Evaluation, "loss", math.nan)
        ppdgrow(*line, code=5)
    assert [event["event"] for event in read_jsonl(Path("e/growth.jsonl"))] == ["train", "diverged"]
    assert "left out e: 'e' diverged at step 5 of 10, before its first evaluation" in ppdgrow("compare b e c").stderr
    ppdgrow(*line)
    assert [event["event"] for event in read_jsonl(Path("e/growth.jsonl"))] == ["train"]
    assert ppdgrow("compare b e --json").document["warnings"] == []


def test_a_branch_of_one_channel_and_a_scale_that_does_nothing_are_refused(ppdgrow: Command, shallow: Path) -> None:
    refused = ppdgrow("train --layers 1 --steps 1 --width 2 -o model.heads=1 --out w", code=2)
    assert "model.width is 2, which leaves a branch one channel" in refused.stderr
    refused = ppdgrow("grow shallow --pair orthogonal,linear --pairs 2 --scale 0.5 --out s", code=2)
    assert "--scale 0.5 does nothing to pairs of kind orthogonal and linear" in refused.stderr
    assert "attention-first" in ppdgrow("grow shallow --pair fnn --out s", code=2).stderr


def test_parameters_of_a_tied_pair_are_told_apart_from_those_after_untying(ppdgrow: Command, shallow: Path) -> None:
    grown = ppdgrow("grow shallow --pairs 2 --out g")
    assert "once untied" in grown.stdout
    document = ppdgrow("grow shallow --pairs 2 --out g --json").document
    trained = ppdgrow("train g --steps 3 --out t --json").document
    assert document["parameters_after"] < document["parameters_untied"] == trained["parameters"]
