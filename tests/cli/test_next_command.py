"""Each command ends with the next one, ready to paste: what is proposed is run as it stands, through a shell's eyes."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import TINY, Command, Result

LONG_WAY = "--no-decay is for a run that will be continued"


def proposed(result: Result) -> list[list[str]]:
    """The commands at the end of stderr, as a shell reads them, without the program's name."""
    commands: list[list[str]] = []
    for line in reversed(result.stderr.splitlines()):
        if not line.startswith("  ppdgrow "):
            assert line.endswith(":"), "why comes before"
            break
        commands.insert(0, shlex.split(line)[1:])
    assert commands
    return commands


@pytest.mark.parametrize("name", ["shallow", "it's [a] $HOME ~", "-dashed"])
def test_the_default_path_leads_from_train_to_a_comparison(ppdgrow: Command, name: str) -> None:
    """Nothing but what is proposed is typed after the first command."""
    last = ppdgrow("train --layers 2 --steps 4", *TINY, "--out", f"./{name}")
    assert LONG_WAY in last.stderr, "it has decayed, so a growth will warm up again"
    last = ppdgrow("", *proposed(last)[0])
    assert LONG_WAY in last.stderr
    (train,) = proposed(last)
    assert train[0] == "train"
    assert train[2:] == ["--steps", "4"]
    grown = train[1]
    assert proposed(ppdgrow("", "probe", grown)) == [train]
    last = ppdgrow("", *train)
    assert LONG_WAY in last.stderr, "the re-warm-up is said by the run itself"
    assert "warm-up to 2.0e-03 at step 5 again" in last.stderr
    control, ungrown, compare = proposed(last)
    assert control[-1].endswith("-baseline")
    assert proposed(ppdgrow("", *control)) == [ungrown, compare], "what is left of the three"
    told = ppdgrow("", *ungrown)
    assert proposed(told) == [compare]
    assert "grow it" not in told.stderr
    assert LONG_WAY not in told.stderr, "it is not to be trained on"
    table = ppdgrow("", *compare)
    rows = [line.split() for line in table.stdout.splitlines()]
    assert ["layers", "4", "2", "2", "->", "4", "at", "step", "4"] in rows
    assert ["steps", "8", ungrown[ungrown.index("--steps") + 1], "8"] in rows, "the control is as deep and as long"
    assert "whether growing paid" not in table.stdout
    costs = next(row for row in rows if row[0] == "FLOPs")
    assert float(costs[4]) == pytest.approx(float(costs[7]), rel=0.08), "the ungrown one costs what the grown one does"
    ((*report,),) = proposed(table)
    assert report[: len(compare)] == compare
    assert proposed(ppdgrow("", *report[:-1], "page.md"))[0][0] == "probe"


def test_an_undecayed_run_is_grown_and_trained_without_a_caution(ppdgrow: Command, shallow: Path) -> None:
    told = ppdgrow("train --layers 2 --steps 10 --no-decay --out shallow", *TINY)
    assert "already finished" in told.stderr
    assert proposed(told) == [["grow", "shallow"]]
    grown = ppdgrow("grow shallow --out g --device cpu")
    assert LONG_WAY not in told.stderr + grown.stderr
    assert proposed(grown) == [["train", "g", "--steps", "10", "--device", "cpu"]]
    told = ppdgrow("train g --steps 3 --no-decay --out t")
    assert LONG_WAY not in told.stderr
    assert proposed(told) == [["train", "t", "--steps", "3"]]
    assert proposed(ppdgrow("grow t --remove last --out less")) == [["train", "less", "--steps", "3"]]
    assert proposed(ppdgrow("probe t/checkpoints/step-00000013")) == [["train", "t", "--steps", "3"]]
    assert proposed(ppdgrow("probe shallow")) == [["grow", "shallow"]]
    assert proposed(ppdgrow("compare shallow t")) == [["train", "shallow", "--steps", "10"]]
    kept = {0: "t", 3: "shallow"}
    for epsilon, code in (("9", 0), ("-9", 3)):
        told = ppdgrow("compare shallow t --accept --epsilon", epsilon, code=code)
        assert proposed(told)[0][:2] == ["train", kept[code]]


def test_of_a_plan_that_was_cut_short_the_rest_is_proposed(ppdgrow: Command, stop_at: Callable[..., None]) -> None:
    stop_at(8, signal.SIGTERM)
    ppdgrow("train --layers 2 --steps 20 --out cut", *TINY, code=143)
    assert proposed(ppdgrow("grow cut --out g")) == [["train", "g", "--steps", "12"]]
    assert proposed(ppdgrow("probe g")) == [["train", "g", "--steps", "12"]]
    ppdgrow("train g --steps 12 --no-decay --out t --quiet")
    assert proposed(ppdgrow("grow t --out again")) == [["train", "again", "--steps", "12"]], "a whole plan, once more"
    assert proposed(ppdgrow("compare t again")) == [["train", "again", "--steps", "12"]]
    assert proposed(ppdgrow("compare t g")) == [["train", "g", "--steps", "12"]]


def test_a_growth_that_was_never_trained_is_trained_before_it_is_compared(ppdgrow: Command, shallow: Path) -> None:
    ppdgrow("grow shallow --out g --quiet")
    told = ppdgrow("compare shallow g")
    assert "warning: g: not trained since it was grown at step 10: train it first" in told.stderr
    assert proposed(told) == [["train", "g", "--steps", "10"]]
    assert "fail" not in told.stdout
    assert told.stdout.count("not judged: not trained since it was grown") == 4
    assert "verdict: reject, nothing that training does was judged; whether growing paid is not known" in told.stdout
    document = ppdgrow("compare shallow g --json").document
    assert [criterion["passed"] for criterion in document["criteria"]] == [True, None, None, None, None, None]
    assert document["verdict"] == "reject"
    ppdgrow("", *proposed(told)[0], "--out", "t")
    assert "not trained" not in ppdgrow("compare shallow t").stderr


def test_a_baseline_is_proposed_for_a_run_that_grew_by_itself(ppdgrow: Command) -> None:
    growth = "growth=[{at: 3, trial: {steps: 2, rule: parent, epsilon: 9}}]"
    grown = ppdgrow("train --layers 2 --steps 9 --horizon 9 --out r", *TINY, "-o", growth)
    control, ungrown, compare = proposed(grown)
    ppdgrow("", *control)
    ppdgrow("", *ungrown)
    ppdgrow("", *compare)
    assert "growth=[]" in control
    assert "train.horizon=null" in control


def test_nothing_is_proposed_to_a_script_or_where_it_would_be_wrong(ppdgrow: Command, shallow: Path) -> None:
    for more in ("--quiet", "--json"):
        for line in ("train shallow --steps 2 --out t", "grow shallow --out g", "probe g", "compare shallow t"):
            assert ppdgrow(line, more).stderr.count("ppdgrow ") == 0
    assert "ppdgrow" not in ppdgrow("train shallow --steps 2 --dry-run").stderr
    told = ppdgrow("train shallow --steps 2", "--out", "a\u00a0b")
    assert "ppdgrow" not in told.stderr, "the name cannot be shown as it is"


def words_of_control(told: Result) -> list[str]:
    (found,) = (words for words in proposed(told) if words[-1].endswith("-control"))
    return found


def test_the_control_goes_on_from_the_checkpoint_that_was_grown_by_the_recipe_of_the_grown_run(
    ppdgrow: Command, shallow: Path
) -> None:
    ppdgrow("grow shallow --out g --quiet")
    changed = ppdgrow("train g --steps 10 --out t --seed 5 --batch-size 8 --lr 1e-3")
    words = words_of_control(changed)
    assert words[:2] == ["train", "shallow"]
    assert set(words[2:]) >= {"train.seed=5", "train.batch_size=8", "train.lr=0.001"}
    ppdgrow("", *words)
    ppdgrow("train --layers 4 --steps 20 --seed 5 --out base", *TINY, "-o", "train.batch_size=8")
    document = ppdgrow("compare base t-control t --json").document
    assert document["pays"] != "not judged"
    costs = [run["flops"] for run in document["runs"]]
    assert costs[1] == pytest.approx(costs[2], rel=0.05)
    assert ppdgrow("compare base t --json").document["arms"][1]["controls"] == [shlex.join(["ppdgrow", *words])]

    # Another run at the place of the parent is not taken for it.
    Path("shallow").rename("elsewhere")
    ppdgrow("train --layers 3 --steps 10 --no-decay --out shallow --quiet", *TINY)
    told = ppdgrow("compare base t")
    assert words_of_control(told)[:5] == ["train", "--recipe", "t/recipe.yaml", "--layers", "2"]


@pytest.mark.parametrize(
    ("command", "is_control"),
    [
        ("train --layers 2 --steps 8 --out t-control", True),
        ("train --layers 4 --steps 8 --out t-baseline", True),
        ("train --layers 3 --steps 8 --out t-control", False),
        ("train --layers 2 --steps 8 --out t-baseline", False),
        ("train --layers 2 --steps 8 --out u-control", False),
        ("train --layers 2 --steps 8 --no-decay --out t-control", False),
        ("train --layers 2 --steps 8 --out control", False),
    ],
)
def test_a_control_is_known_by_its_place_and_depth(ppdgrow: Command, command: str, is_control: bool) -> None:
    ppdgrow("train --layers 2 --grow-to 4 --steps 4 --out t --quiet", *TINY)
    words = proposed(ppdgrow(command, *TINY))
    assert (words[-1][0] == "compare" and words[-1][-1] == "t") == is_control
    assert (words[-1][0] == "grow") != is_control


def test_the_controls_of_a_folder_of_seeds_are_a_folder_beside_it(
    ppdgrow: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in (0, 1):
        ppdgrow(f"train --layers 4 --steps 8 --seed {seed} --out base/r{seed} --quiet", *TINY)
        ppdgrow(f"train --layers 2 --grow-to 4 --steps 8 --seed {seed} --out grown/r{seed} --quiet", *TINY)
    *controls, compare = proposed(ppdgrow("compare base grown"))
    assert [words[-1] for words in controls] == ["grown-control/r0", "grown-control/r1"]
    assert proposed(ppdgrow("", *controls[0])) == [["compare", "grown-control/r0", "grown/r0"]]
    assert compare == ["compare", "base", "grown-control", "grown"]
    with monkeypatch.context() as inside:
        inside.chdir("grown")
        *_, from_inside = proposed(ppdgrow("compare ../base ."))
    assert Path(from_inside[2]).name == "grown-control"
    for words in controls:
        ppdgrow("", *words)
    told = ppdgrow("", *compare)
    assert "is not known" not in told.stdout
