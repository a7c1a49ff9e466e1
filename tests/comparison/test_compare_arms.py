"""Which runs are seeds of one arm, what the arm is called, and its paired differences."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from synthetic_runs import growth, trial, write_run

from ppdgrow.comparison.arms import read_arms
from ppdgrow.comparison.compare import Comparison, compare_runs
from ppdgrow.comparison.criteria import NO_COMMON_SEED
from ppdgrow.comparison.tables import comparison_rows
from ppdgrow.errors import ConfigError, InvalidInputError

Grouped = list[tuple[str, list[int]]]
# A recipe key that the seeds of one arm must share: runs with it are another arm.
OTHER: dict[str, Any] = {"recipe": {"train.lr": 1e-3}}


def run(path: Path, seed: int, loss: float = 4.0, **changes: Any) -> Path:
    return write_run(path, {20: loss}, seed=seed, **changes)


def grouped(paths: Sequence[Path]) -> Grouped:
    """Name and seeds of each arm."""
    return [(arm.name, [history.seeds[0] for history in arm.histories]) for arm in read_arms(paths)[0]]


def loose(folder: Path, one: dict[str, Any], other: dict[str, Any]) -> Grouped:
    """Two single runs with seeds 0 and 1, beside one that is another arm."""
    reference = run(folder / "reference", 0, recipe={"train.lr": 5e-4})
    return grouped([reference, run(folder / "base-seed-0", 0, **one), run(folder / "base-seed-1", 1, **other)])


TOGETHER: Grouped = [("reference", [0]), ("base", [0, 1])]
APART: Grouped = [("reference", [0]), ("base-seed-0", [0]), ("base-seed-1", [1])]


def test_a_folder_of_runs_is_one_arm_by_rising_seed(tmp_path: Path) -> None:
    for name, seed in (("first", 10), ("second", 9), ("third", 2)):
        run(tmp_path / "base" / name, seed)
    (tmp_path / "base" / "notes").mkdir()
    assert grouped([tmp_path / "base"]) == [("base", [2, 9, 10])]


@pytest.mark.parametrize(
    ("names", "common"),
    [
        (("base-seed-0", "base-seed-1"), "base"),
        (("base-seed-10", "base-seed-11"), "base"),
        (("run_s0", "run_s1"), "run"),
        (("run.Seed.0", "run.Seed.1"), "run"),
        (("zero0", "zero1"), "zero"),
        (("12-deep-0", "12-deep-seed-1"), "12-deep"),
        (("0", "1"), "0, 1"),
        (("early", "late"), "early, late"),
    ],
)
def test_single_runs_that_differ_in_the_seed_alone_are_one_arm(
    tmp_path: Path, names: tuple[str, str], common: str
) -> None:
    other = run(tmp_path / "other", 0, **OTHER)
    paths = [run(tmp_path / name, seed) for seed, name in enumerate(names)]
    assert grouped([other, *paths]) == [("other", [0]), (common, [0, 1])]


def test_runs_that_only_their_folders_tell_apart_are_named_by_these(tmp_path: Path) -> None:
    paths = [run(tmp_path / "a" / name, int(name)) for name in ("0", "1")]
    paths += [run(tmp_path / "b" / name, int(name), **OTHER) for name in ("0", "1")]
    assert grouped(paths) == [("a", [0, 1]), ("b", [0, 1])]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({}, {"recipe": {"train.eval_every": 5, "train.save_every": 7, "train.keep": 9}}),
        ({}, {"recipe": {"data.name": "/moved/copy"}}),
        ({}, {"loss": 5.0, "seconds": 7.0, "environment": {"threads": 2}}),
        ({"events": [growth(10, 4.0, 4.0)]}, {"events": [growth(10, 4.1, 4.1, seed=1, ids=["p9"])]}),
    ],
    ids=["keys that change no number", "the name of the data", "figures", "the same growth by hand"],
)
def test_what_the_seeds_of_one_arm_may_differ_in(tmp_path: Path, one: dict[str, Any], other: dict[str, Any]) -> None:
    assert loose(tmp_path, one, other) == TOGETHER


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({}, OTHER),
        ({}, {"batch_size": 8}),
        ({}, {"events": [growth(10)]}),
        ({"events": [growth(10)]}, {"events": [growth(11)]}),
        ({"events": [growth(10)]}, {"events": [growth(10, method="copy")]}),
        ({"events": [growth(10)]}, {"events": [growth(10, kinds=["attention"])]}),
        ({"events": [growth(10)]}, {"events": [growth(10, positions=[0])]}),
        ({"events": [growth(10, scale=1.0)]}, {"events": [growth(10, scale=0.3)]}),
        ({"events": [growth(10, moments="fresh")]}, {"events": [growth(10, moments="copy")]}),
        ({"events": [growth(10)]}, {"events": [growth(10, event="remove")]}),
        ({}, {"steps": 25}),
    ],
    ids=[
        "recipe",
        "batch size",
        "grown",
        "grown later",
        "method",
        "kind",
        "position",
        "scale",
        "moments",
        "removed",
        "step",
    ],
)
def test_what_makes_another_arm(tmp_path: Path, one: dict[str, Any], other: dict[str, Any]) -> None:
    assert loose(tmp_path, one, other) == APART


def test_a_run_before_its_end_is_another_arm(tmp_path: Path) -> None:
    other = run(tmp_path / "other", 0, **OTHER)
    paths = [run(tmp_path / "base-0", 0), write_run(tmp_path / "base-1", {20: 4.0, 25: 3.9}, seed=1)]
    lines = (paths[1] / "growth.jsonl").read_text(encoding="utf-8")
    (paths[0] / "growth.jsonl").write_text(lines.replace('"seed": 1', '"seed": 0'), encoding="utf-8")
    assert grouped([other, *paths]) == [("other", [0]), ("base-0", [0]), ("base-1", [1])]
    finished = run(tmp_path / "base-2", 2, steps=25)
    assert grouped([other, *paths, finished])[2] == ("base", [1, 2]), "control: both at their end"


def test_trials_that_were_decided_otherwise_are_of_the_same_arm(tmp_path: Path) -> None:
    kept = trial("1.1", 5, 10, "accept")
    refused = [*trial("1.1", 5, 10, "reject"), *trial("1.2", 5, 10, "reject", positions=[0])]
    assert loose(tmp_path / "tried", {"events": kept}, {"events": refused}) == TOGETHER
    by_hand = [{key: value for key, value in event.items() if key != "trial"} for event in kept]
    assert loose(tmp_path / "by hand", {"events": by_hand}, {"events": refused}) == APART


def test_the_same_seed_twice_is_no_arm(tmp_path: Path) -> None:
    other = run(tmp_path / "other", 0, **OTHER)
    paths = [run(tmp_path / f"base-{number}", seed) for number, seed in enumerate([0, 1, 1])]
    assert grouped([other, *paths]) == [("other", [0]), ("base-0", [0]), ("base-1", [1]), ("base-2", [1])]
    assert grouped([other, *paths[:2]]) == [("other", [0]), ("base", [0, 1])]


def test_a_folder_that_holds_a_seed_twice_is_refused(tmp_path: Path) -> None:
    other = run(tmp_path / "other", 0, **OTHER)
    for name, seed in (("first", 3), ("second", 4), ("third", 3)):
        run(tmp_path / "base" / name, seed)
    with pytest.raises(ConfigError, match=r"base' holds seed 3 twice, in 'first' and 'third'"):
        compare_runs([other, tmp_path / "base"])


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (OTHER, "train.lr 0.002 and 0.001"),
        ({"batch_size": 8}, "train.batch_size 4 and 8"),
        ({"steps": 2500}, "steps 20 and 2,500"),
    ],
)
def test_runs_in_a_folder_that_are_no_seeds_are_one_arm_with_a_warning(
    tmp_path: Path, changes: dict[str, Any], told: str
) -> None:
    run(tmp_path / "base" / "s0", 0), run(tmp_path / "base" / "s1", 1, **changes)
    arms, warnings = read_arms([tmp_path / "base"])
    assert [len(arm.histories) for arm in arms] == [2]
    assert warnings == [f"s0 and s1 are in one folder but are not seeds of one arm: {told}"]
    run(tmp_path / "fine" / "s0", 0), run(tmp_path / "fine" / "s1", 1)
    assert read_arms([tmp_path / "fine"])[1] == [], "control: seeds of one arm"


def test_runs_that_would_all_be_one_arm_are_left_alone(tmp_path: Path) -> None:
    paths = [run(tmp_path / f"base-{seed}", seed) for seed in (0, 1, 2)]
    assert grouped(paths) == [("base-0", [0]), ("base-1", [1]), ("base-2", [2])]
    other = run(tmp_path / "other", 0, **OTHER)
    assert grouped([*paths, other]) == [("base", [0, 1, 2]), ("other", [0])]


def test_runs_of_one_folder_are_named_alike(tmp_path: Path) -> None:
    """Also the one whose own name is nobody else's."""
    a = [run(tmp_path / "a" / f"seed-{seed}", seed) for seed in (0, 1, 2)]
    b = [run(tmp_path / "b" / f"seed-{seed}", seed, **OTHER) for seed in (0, 1)]
    arms = read_arms([*a, *b])[0]
    assert [arm.name for arm in arms] == ["a", "b"]
    assert [history.name for history in arms[0].histories] == ["a/seed-0", "a/seed-1", "a/seed-2"]
    assert grouped([*a, b[0]]) == [("a", [0, 1, 2]), ("b/seed-0", [0])]
    single = run(tmp_path / "single", 0, batch_size=8)
    assert grouped([single, *a]) == [("single", [0]), ("a", [0, 1, 2])], "seeds are no name of an arm, their folder is"
    assert grouped([single, *a, run(tmp_path / "a" / "odd", 0, **OTHER)])[1][0] == "seed-0, seed-1, seed-2", "control"


def test_the_arms_stand_in_the_order_in_which_they_were_given(tmp_path: Path) -> None:
    for seed in (0, 1):
        run(tmp_path / "folder" / f"s{seed}", seed)
    zero = [run(tmp_path / f"zero-{seed}", seed, **OTHER) for seed in (0, 1)]
    base = [run(tmp_path / f"base-{seed}", seed, batch_size=8) for seed in (0, 1)]
    expected = [("zero", [0, 1]), ("folder", [0, 1]), ("base", [0, 1])]
    assert grouped([zero[1], tmp_path / "folder", base[1], zero[0], base[0]]) == expected
    assert grouped([base[0], zero[0], zero[1], tmp_path / "folder", base[1]]) == [expected[2], *expected[:2]]


def test_a_run_whose_recipe_cannot_be_read_is_an_arm_of_its_own(tmp_path: Path) -> None:
    other = run(tmp_path / "other", 0, **OTHER)
    paths = [run(tmp_path / f"base-{seed}", seed) for seed in (0, 1, 2)]
    assert len(grouped([other, *paths])) == 2
    for path in paths[:2]:
        (path / "recipe.yaml").write_text("train: [", encoding="utf-8")
    assert grouped([other, *paths]) == [("other", [0]), ("base-0", [0]), ("base-1", [1]), ("base-2", [2])]


def test_the_names_of_arms_and_runs_differ(tmp_path: Path) -> None:
    every: dict[str, dict[str, Any]] = {"x": {}, "y": OTHER}
    for parent, changes in every.items():
        for seed in (0, 1):
            run(tmp_path / parent / "base" / f"s{seed}", seed, **changes)
    single = run(tmp_path / "z" / "base", 0, batch_size=8)
    comparison = compare_runs([tmp_path / "x" / "base", tmp_path / "y" / "base", single, single])
    names = [arm.name for arm in comparison.arms]
    assert names[:2] == ["base", "base (2)"]
    assert len(set(names)) == 4
    assert len({run.name for run in comparison.runs}) == 6
    assert {c.run for c in comparison.criteria} == set(names[1:])


@pytest.mark.parametrize("name", ["two words", "a[b](c)", "Größe é", "ärm [0] (x)", "{}", "%s"])
def test_a_name_may_have_any_letters(tmp_path: Path, name: str) -> None:
    for seed in (0, 1):
        run(tmp_path / name / f"s{seed}", seed)
    singles = [run(tmp_path / f"{name} seed {seed}", seed, **OTHER) for seed in (0, 1)]
    assert grouped([tmp_path / name, *singles]) == [(name, [0, 1]), (f"{name} (2)", [0, 1])]


def compared(folder: Path, base: dict[int, float], other: dict[int, float]) -> Comparison:
    """Arms of runs with these seeds and final losses."""
    for name, figures in (("base", base), ("other", other)):
        for seed, loss in figures.items():
            run(folder / name / f"s{seed}", seed, loss, accuracy=0.5 - loss / 100)
    return compare_runs([folder / "base", folder / "other"])


def test_the_paired_interval_is_that_of_a_calculation_by_hand(tmp_path: Path) -> None:
    comparison = compared(tmp_path, {0: 4.1, 1: 4.5, 2: 4.3}, {0: 4.0, 1: 4.45, 2: 4.1})
    found = comparison.document()["arms"][1]["loss_difference"]
    mean = -0.35 / 3
    deviation = math.sqrt(sum((d - mean) ** 2 for d in (-0.1, -0.05, -0.2)) / 2)
    half = 4.302653 * deviation / math.sqrt(3)
    assert found["values"] == pytest.approx([-0.1, -0.05, -0.2])
    assert [found[key] for key in ("mean", "sd", "low", "high")] == pytest.approx(
        [mean, deviation, mean - half, mean + half], rel=1e-6
    )
    assert comparison.document()["arms"][1]["accuracy_difference"]["mean"] == pytest.approx(-mean)
    assert comparison.document()["arms"][0]["loss_difference"] is None, "the baseline has no difference from itself"


def test_runs_are_paired_by_their_seeds(tmp_path: Path) -> None:
    comparison = compared(tmp_path, {0: 9.0, 1: 4.1, 2: 4.3}, {1: 4.0, 2: 4.1, 3: 1.0})
    arm = comparison.document()["arms"][1]
    assert (arm["seeds"], arm["paired_seeds"]) == ([[1], [2], [3]], [[1], [2]])
    assert arm["loss_difference"]["values"] == pytest.approx([-0.1, -0.2])
    assert arm["loss"]["mean"] == pytest.approx((4.0 + 4.1 + 1.0) / 3)
    told = [warning for warning in comparison.warnings if "no run with seed" in warning]
    assert told == [
        "other: base has no run with seed 3, which counts in means and not in paired differences",
        "other: no run with seed 0 of base, so the means are over different seeds",
    ]


def test_without_a_seed_in_common_nothing_is_judged(tmp_path: Path) -> None:
    comparison = compared(tmp_path, {0: 4.1, 1: 4.3}, {2: 1.0, 3: 1.0})
    arm = comparison.document()["arms"][1]
    assert (arm["paired_seeds"], arm["loss_difference"], arm["cost_to_baseline_loss"]["flops"]) == ([], None, None)
    assert [(c.passed, c.value, c.low, c.high) for c in comparison.criteria] == [(None, None, None, None)] * 5
    assert [c.note for c in comparison.criteria[1:]] == [NO_COMMON_SEED] * 4
    assert comparison.verdict == "reject"


def test_several_seeds_are_held_against_the_end_of_the_interval(tmp_path: Path) -> None:
    base = {0: 4.1, 1: 4.2, 2: 4.3}
    clear = compared(tmp_path / "clear", base, {0: 4.0, 1: 4.1, 2: 4.2})
    unclear = compared(tmp_path / "unclear", base, {0: 3.6, 1: 4.199, 2: 4.299})
    lower = [(one.criteria[1].passed, one.criteria[1].judged) for one in (clear, unclear)]
    assert lower == [(True, "high"), (False, "high")]
    means = [value for one in (clear, unclear) if (value := one.criteria[1].value) is not None]
    assert len(means) == 2
    assert means == sorted(means, reverse=True), "control: by the mean alone the second would be the better"


def test_a_folder_of_one_run_is_an_arm_of_its_own(tmp_path: Path) -> None:
    for name, seed in (("x", 0), ("y", 1)):
        write_run(tmp_path / name / "r", {20: 4.0}, seed=seed)
    other = write_run(tmp_path / "other", {20: 4.0}, recipe={"train.lr": 1e-3})
    arms, _ = read_arms([other, tmp_path / "x", tmp_path / "y"])
    assert [arm.name for arm in arms] == ["other", "x", "y"]


def test_runs_of_a_folder_that_grew_differently_are_told(tmp_path: Path) -> None:
    write_run(tmp_path / "g" / "0", {20: 4.0}, seed=0, events=[growth(10)])
    write_run(tmp_path / "g" / "1", {20: 4.0}, seed=1, events=[growth(5, method="copy")])
    _, warnings = read_arms([tmp_path / "g"])
    assert len(warnings) == 1
    assert "not seeds of one arm: how they were trained and grown" in warnings[0]


@pytest.mark.parametrize(
    ("names", "shared"),
    [
        (("pairs-0", "pairs-1"), "pairs"),
        (("loss0", "loss1"), "loss"),
        (("12-layers-0", "12-layers-1"), "12-layers"),
        (("scratch12", "scratch12-seed-1"), "scratch12"),
        (("base10", "base11"), "base"),
        (("run_s1", "run_s12"), "run"),
    ],
)
def test_a_common_name_loses_nothing_but_the_seed(tmp_path: Path, names: tuple[str, str], shared: str) -> None:
    runs = [write_run(tmp_path / name, {20: 4.0}, seed=seed) for seed, name in enumerate(names)]
    other = write_run(tmp_path / "other", {20: 4.0}, recipe={"train.lr": 1e-3})
    assert [arm.name for arm in read_arms([*runs, other])[0]] == [shared, "other"]


def test_runs_of_a_folder_that_cannot_count_are_left_out_by_name(tmp_path: Path) -> None:
    """A lost, broken or unfinished seed must neither stop the comparison nor vanish from it."""
    for seed in range(4):
        write_run(tmp_path / "base" / f"seed-{seed}", {20: 4.1}, seed=seed)
        write_run(tmp_path / "other" / f"seed-{seed}", {20: 4.0}, seed=seed)
    shutil.rmtree(tmp_path / "other" / "seed-1" / "checkpoints")
    (tmp_path / "other" / "seed-2" / "metrics.jsonl").write_text("")
    shutil.rmtree(tmp_path / "other" / "seed-3")
    planned = {"event": "train", "step": 20, "steps": 30, "seed": 3}
    write_run(tmp_path / "other" / "seed-3", {20: 9.0}, seed=3, events=[planned])
    comparison = compare_runs([tmp_path / "base", tmp_path / "other"])
    arm = comparison.arms[1]
    assert (arm.left_out, [run.validation.loss for run in arm.runs]) == (("seed-1", "seed-2", "seed-3"), [4.0])
    told = "\n".join(comparison.warnings)
    for reason in ("seed-1: .*no checkpoints", "seed-2: .*no steps", "seed-3: unfinished, at step 20 of 50$"):
        assert re.search(f"^other: left out {reason}", told, re.MULTILINE), told
    assert "other: no run with seed 1, 2, 3 of base" in told
    assert ("seeds", "0, 1, 2, 3", "0 (3 left out)") in comparison_rows(comparison).rows


def test_a_folder_without_a_run_that_counts_is_refused(tmp_path: Path) -> None:
    base = write_run(tmp_path / "base", {20: 4.1})
    write_run(tmp_path / "other" / "seed-0", {20: 4.0})
    (tmp_path / "other" / "seed-0" / "metrics.jsonl").write_text("")
    with pytest.raises(InvalidInputError, match=r"no run in '.*other' can be compared; .*no steps"):
        compare_runs([base, tmp_path / "other"])


def test_an_arm_that_is_all_unfinished_is_shown_as_it_stands(tmp_path: Path) -> None:
    base = write_run(tmp_path / "base", {20: 4.1})
    planned = {"event": "train", "step": 20, "steps": 30, "seed": 0}
    write_run(tmp_path / "other" / "seed-0", {20: 4.0}, events=[planned])
    comparison = compare_runs([base, tmp_path / "other"])
    assert comparison.arms[1].left_out == ()
    assert any("unfinished" in warning for warning in comparison.warnings)


def diverged(path: Path, seed: int = 0, losses: dict[int, float] | None = None) -> Path:
    """A run that diverged at step 5 of 30, at its checkpoint of step 4."""
    write_run(path, losses or {}, steps=4, seed=seed)
    lines = [{"event": "train", "step": 0, "steps": 30, "seed": seed}, {"event": "diverged", "step": 5, "until": 6}]
    (path / "growth.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def test_a_diverged_run_without_a_loss_is_left_out_by_name(tmp_path: Path) -> None:
    base, other = write_run(tmp_path / "base", {20: 4.1}), write_run(tmp_path / "other", {20: 4.0})
    bad = diverged(tmp_path / "bad")
    comparison = compare_runs([base, bad, other])
    assert [arm.name for arm in comparison.arms] == ["base", "other"]
    assert len(comparison.warnings) == 1
    told = r"left out bad: '.*bad' diverged at step 5 of 30, before its first evaluation, so there is no loss"
    assert re.match(told, comparison.warnings[0])
    assert comparison.verdict == compare_runs([base, other]).verdict
    with pytest.raises(InvalidInputError, match=r"nothing is left to compare with 'base': left out bad: .* at step 5"):
        compare_runs([base, bad])
    with pytest.raises(InvalidInputError, match=r"the baseline cannot be one: .*bad' diverged at step 5 of 30"):
        compare_runs([bad, other])


def test_a_diverged_run_with_a_loss_is_shown_and_called_so(tmp_path: Path) -> None:
    base = write_run(tmp_path / "base", {20: 4.1})
    comparison = compare_runs([base, diverged(tmp_path / "bad", losses={4: 5.0})])
    assert comparison.warnings == ("bad: diverged at step 5 of 30",)


def test_diverged_seeds_of_a_folder_are_left_out_and_said_once(tmp_path: Path) -> None:
    for seed in range(4):
        write_run(tmp_path / "base" / f"s{seed}", {20: 4.1}, seed=seed)
    write_run(tmp_path / "other" / "s0", {20: 4.0}, seed=0)
    for seed in (1, 2):
        diverged(tmp_path / "other" / f"s{seed}", seed, {4: 5.0})
    diverged(tmp_path / "lost" / "s0")
    comparison = compare_runs([tmp_path / "base", tmp_path / "other", tmp_path / "lost"])
    assert [arm.name for arm in comparison.arms] == ["base", "other"]
    assert comparison.warnings[0] == "other: left out s1, s2: diverged at step 5 of 30"
    assert "lost: left out s0: " in comparison.warnings[1]
