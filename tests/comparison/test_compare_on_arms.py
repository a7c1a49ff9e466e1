"""Figures on another data set over arms and seeds: paired differences, tables, pages, baselines of other data."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from synthetic_runs import write_run

from ppdgrow.comparison.compare import Comparison, compare_runs
from ppdgrow.comparison.criteria import NO_INSERTION_SPIKE, OTHER_EXAMPLES
from ppdgrow.comparison.measures import FiguresOn
from ppdgrow.comparison.report import report_page
from ppdgrow.comparison.tables import comparison_rows
from ppdgrow.config.state import Validation
from ppdgrow.console.page import Table
from ppdgrow.errors import ConfigError


def figures(loss: float, bits: float | None = None) -> Validation:
    return Validation(loss=loss, accuracy=0.5, perplexity=math.exp(loss), bits_per_byte=bits)


def evaluated(
    comparison: Comparison, losses: Callable[[str, int], float], bits: float | None = None, same_tokens: bool = True
) -> Comparison:
    """With chosen losses on `far/notes`, by arm and place of the run."""
    baseline = [losses(comparison.baseline.name, place) for place in range(len(comparison.baseline.runs))]
    references = {id(run.history): loss for run, loss in zip(comparison.baseline.runs, baseline, strict=True)}
    arms = []
    for arm in comparison.arms:
        runs = []
        for place, run in enumerate(arm.runs):
            reference = figures(references[id(run.reference)], bits)
            same = same_tokens or run.history is run.reference
            own = FiguresOn(figures(losses(arm.name, place), bits), 8, "d" * 64, reference, same)
            runs.append(replace(run, on={"far/notes": own}))
        arms.append(replace(arm, runs=tuple(runs)))
    return replace(comparison, arms=tuple(arms))


def arms_of_three(folder: Path, *, seeds: range = range(3)) -> Comparison:
    for name in ("base", "other"):
        for seed in seeds if name == "other" else range(3):
            write_run(folder / name / f"seed-{seed}", {10: 4.5, 20: 4.0}, seed=seed)
    return compare_runs([folder / "base", folder / "other"])


LOSSES = {"base": (4.0, 5.0, 6.0), "other": (4.1, 5.2, 6.3)}
HALF = 4.302653 * 0.1 / math.sqrt(3)  # Student's t with 2 degrees of freedom, on differences of 0.1, 0.2 and 0.3


def test_differences_are_paired_by_seed_with_their_interval(tmp_path: Path) -> None:
    found = evaluated(arms_of_three(tmp_path), lambda arm, place: LOSSES[arm][place], bits=2.0)
    base, other = (arm["on"]["far/notes"] for arm in found.document()["arms"])
    assert list(other) == ["loss", "accuracy", "perplexity", "bits_per_byte", "difference", "bits_per_byte_difference"]
    assert other["loss"]["values"] == list(LOSSES["other"])
    assert base["difference"] is None
    difference = other["difference"]
    assert difference["values"] == pytest.approx([0.1, 0.2, 0.3])
    assert difference["mean"] == pytest.approx(0.2)
    assert difference["sd"] == pytest.approx(0.1)
    assert (difference["low"], difference["high"]) == pytest.approx((0.2 - HALF, 0.2 + HALF))
    rows = {row[0]: row[1:] for row in comparison_rows(found).rows}
    assert rows["on notes"] == ("5.0000 sd 1.0000", "5.2000 sd 1.1000")
    assert rows["on notes against baseline"] == ("-", "+0.2000 [-0.0484, +0.4484]")
    assert not [name for name in rows if name.startswith("bits per byte on")]
    single = evaluated(compare_runs([tmp_path / "base/seed-0", tmp_path / "other/seed-1"]), lambda arm, _: 4.0)
    assert {row[0]: row[1:] for row in comparison_rows(single).rows}["on notes against baseline"] == ("-", "+0.0000")


def test_a_seed_without_a_partner_counts_in_the_mean_alone(tmp_path: Path) -> None:
    losses = {"base": (4.0, 5.0, 6.0), "other": (5.2, 6.3, 9.0)}
    found = evaluated(arms_of_three(tmp_path, seeds=range(1, 4)), lambda arm, place: losses[arm][place])
    other = found.document()["arms"][1]["on"]["far/notes"]
    assert other["loss"]["mean"] == pytest.approx((5.2 + 6.3 + 9.0) / 3)
    assert other["difference"]["values"] == pytest.approx([0.2, 0.3])


def test_the_page_has_a_section_and_a_row_for_every_run(tmp_path: Path) -> None:
    plain = arms_of_three(tmp_path)
    found = evaluated(plain, lambda arm, place: LOSSES[arm][place], bits=2.0)
    page = report_page(found, None)
    tables = {table.header: table for table in page.blocks if isinstance(table, Table)}
    (section,) = [table for header, table in tables.items() if header[:2] == ("arm", "on notes")]
    assert section.header[2:] == ("on notes against baseline", "accuracy on notes", "perplexity on notes",
                                  "bits per byte on notes")  # fmt: skip
    assert [row[:3] for row in section.rows] == [
        ("base", "5.0000 sd 1.0000", "-"),
        ("other", "5.2000 sd 1.1000", "+0.2000 [-0.0484, +0.4484]"),
    ]
    every = next(table for table in tables.values() if len(table.rows) == 6 and "on notes" in table.header)
    place = every.header.index("on notes")
    assert [row[place] for row in every.rows] == [f"{loss:.4f}" for losses in LOSSES.values() for loss in losses]
    for text in (page.markdown(), page.html()):
        assert "On other data" in text
        assert f"on far/notes: 8 examples, sha256 of its validation split: {'d' * 64}" in text
    assert "On other data" not in report_page(plain, None).markdown()


# --- a baseline of other data


def of_other_data(folder: Path, name: str, seed: int = 0, **changes: Any) -> Path:
    identity = {"name": "letters", "sha256": {"train": "e" * 64, "validation": "f" * 64}}
    return write_run(folder / name, {30: 2.0}, steps=30, seed=seed, identity=identity, **changes)


def test_nothing_of_other_data_is_held_against_the_baseline(tmp_path: Path) -> None:
    base = write_run(tmp_path / "base", {20: 4.0})
    other = of_other_data(tmp_path, "other")
    with pytest.raises(ConfigError, match=r"data: 'stdlib' and 'letters'; sha256 .* or evaluate both on one with --on"):
        compare_runs([base, other])
    found = compare_runs([base, other], on_other_data=True)
    arm = found.arms[1]
    assert (arm.loss_difference, arm.accuracy_difference, arm.runs[0].equal) == (None, None, None)
    assert [arm.cost_to_loss(axis) for axis in ("steps", "flops", "seconds")] == [None] * 3
    assert {c.passed for c in found.criteria} == {None}
    assert {c.note for c in found.criteria if c.name != NO_INSERTION_SPIKE} == {OTHER_EXAMPLES}
    rows = {row[0]: row[1:] for row in comparison_rows(found).rows}
    assert rows["validation loss"] == ("4.0000", "2.0000")
    assert {rows[f"{axis} to equal loss"] for axis in ("steps", "FLOPs", "wall-clock")} == {("-", "-")}
    # Negative control: the same run on the same data.
    same = compare_runs([base, write_run(tmp_path / "same", {30: 2.0})], on_other_data=True)
    assert same.arms[1].loss_difference is not None
    assert {row[0]: row[1:] for row in comparison_rows(same).rows}["FLOPs to equal loss"] == ("-", "1.50")


def test_runs_of_one_task_are_evaluated_however_their_own_examples_are_coded(tmp_path: Path) -> None:
    base = write_run(tmp_path / "base", {20: 4.0})
    for key, value in (("sequence_length", 8), ("tokenizer", "word")):
        other = write_run(tmp_path / key, {20: 4.0}, identity={key: value})
        with pytest.raises(ConfigError, match=f"{key.replace('_', ' ')}: .* or evaluate both on one with --on DATA"):
            compare_runs([base, other])
        found = compare_runs([base, other], on_other_data=True)
        assert found.arms[1].loss_difference is None
        assert f"({key.replace('_', ' ')} {value}, not" in found.warnings[0]
    with pytest.raises(ConfigError, match=r"task: 'lm' and 'mlm'\): give runs on .* and task$"):
        compare_runs([base, write_run(tmp_path / "mlm", {20: 4.0}, task="mlm")], on_other_data=True)


def test_the_runs_of_one_arm_are_on_the_same_examples(tmp_path: Path) -> None:
    base = write_run(tmp_path / "base", {20: 4.0})
    of_other_data(tmp_path, "mixed/one")
    write_run(tmp_path / "mixed/two", {30: 2.0}, seed=1)
    with pytest.raises(ConfigError, match=r"cannot compare 'one' with 'two'.*sequence length and task$"):
        compare_runs([base, tmp_path / "mixed"], on_other_data=True)
    loose = [of_other_data(tmp_path, "run-0"), write_run(tmp_path / "run-1", {30: 2.0}, seed=1)]
    assert [arm.name for arm in compare_runs([base, *loose], on_other_data=True).arms] == ["base", "run-0", "run-1"]
