"""Runs that may not be compared, files that are broken, what is warned of, and the document and table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from synthetic_runs import figures, growth, metrics_line, write_run

from ppdgrow.comparison.compare import compare_runs
from ppdgrow.comparison.tables import comparison_rows, criteria_rows, verdict_lines
from ppdgrow.errors import ConfigError, InvalidInputError

NOT_DECAYED = "the learning rate is not decayed at the end, so the last loss is not the best"


def pair_of_runs(folder: Path, **changes: Any) -> list[Path]:
    return [
        write_run(folder / "base", {20: 4.1}, flops=20.0, seconds=2.0),
        write_run(folder / "other", {20: 4.0}, **changes),
    ]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"identity": {"name": "w", "sha256": {"validation": "d" * 64}}}, "data: 'stdlib' and 'w'; sha256 of the"),
        ({"identity": {"name": "w", "sha256": {}}}, "data: 'stdlib' and 'w'"),
        ({"identity": {"tokenizer": "bpe:300"}}, "tokenizer: 'byte' and 'bpe:300'"),
        ({"identity": {"sequence_length": 8}}, "sequence length: 16 and 8"),
        ({"identity": {"validation_examples": 32}}, "validation examples: 64 and 32"),
        ({"identity": {"sha256": {"validation": "d" * 64}}}, "sha256 of the validation split: b{12}.. and d{12}.."),
        ({"task": "mlm"}, "task: 'lm' and 'mlm'"),
        ({"task": "classify"}, "task: 'lm' and 'classify'"),
    ],
)
def test_losses_of_other_examples_are_refused(tmp_path: Path, changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        compare_runs(pair_of_runs(tmp_path, **changes))


def test_a_refusal_names_every_difference(tmp_path: Path) -> None:
    changes = {"identity": {"sequence_length": 8, "tokenizer": "word"}}
    with pytest.raises(ConfigError, match=r"tokenizer: .*; sequence length: .*\): give runs on the same data"):
        compare_runs(pair_of_runs(tmp_path, **changes))


def test_a_split_that_only_one_run_read_is_no_difference(tmp_path: Path) -> None:
    sha256 = {"validation": "b" * 64, "test": "e" * 64}
    assert compare_runs(pair_of_runs(tmp_path, identity={"sha256": sha256})).warnings == ()


def test_the_same_content_under_another_name_is_the_same_data(tmp_path: Path) -> None:
    changes = {"identity": {"name": "copy"}, "recipe": {"data.name": "/moved/copy"}}
    assert compare_runs(pair_of_runs(tmp_path, **changes)).warnings == ()


def test_other_masking_is_refused(tmp_path: Path) -> None:
    base = write_run(tmp_path / "base", {20: 4.1}, task="mlm")
    other = write_run(tmp_path / "other", {20: 4.0}, task="mlm", mask_fraction=0.4)
    with pytest.raises(ConfigError, match=r"data.mask_fraction: 0.15 and 0.4"):
        compare_runs([base, other])


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ({"step": 19}, "step 19 follows step 19"),
        ({"step": "20"}, "step is '20'"),
        ({"step": True}, "step is True"),
        ({"train_loss": float("nan")}, "train_loss is nan"),
        ({"train_loss": None}, "train_loss is None"),
        ({"grad_norm": float("inf")}, "grad_norm is inf"),
        ({"grad_norm_new": [1]}, r"grad_norm_new is \[1\]"),
        ({"flops": "many"}, "flops is 'many'"),
        ({"flops": 10**400}, "flops is 1000"),
        ({"timing": {"seconds": float("nan")}}, "timing.seconds is nan"),
        ({"validation": {"loss": "low", "accuracy": 0.5}}, "validation.loss"),
        ({"validation": 4.0}, "validation"),
    ],
)
def test_broken_metrics_name_the_line(tmp_path: Path, line: dict[str, Any], found: str) -> None:
    paths = pair_of_runs(tmp_path, lines=lambda step: line if step == 20 else {})
    with pytest.raises(InvalidInputError, match=f"metrics.jsonl', line 20: {found}"):
        compare_runs(paths)


def test_a_cost_that_falls_is_refused(tmp_path: Path) -> None:
    base = write_run(tmp_path / "base", {20: 4.1})
    other = write_run(tmp_path / "other", {10: 4.2, 20: 4.0}, lines=lambda s: {"flops": 10**6} if s == 10 else {})
    with pytest.raises(InvalidInputError, match="running count of flops falls"):
        compare_runs([base, other])


def test_broken_lineage_names_the_line(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"growth.jsonl', line 2: loss_after"):
        compare_runs(pair_of_runs(tmp_path, events=[growth(10, 4.0, None, loss_after="low")]))


def test_no_steps_no_evaluation_no_run(tmp_path: Path) -> None:
    base, other = pair_of_runs(tmp_path)
    with pytest.raises(InvalidInputError, match="has no evaluated step"):
        compare_runs([base, write_run(tmp_path / "unevaluated", {}, steps=5)])
    with pytest.raises(InvalidInputError, match="does not exist"):
        compare_runs([base, tmp_path / "nowhere"])
    (other / "metrics.jsonl").write_text("", encoding="utf-8")
    with pytest.raises(InvalidInputError, match="has no steps up to step 20"):
        compare_runs([base, other])


def test_a_changed_function_that_was_never_evaluated_has_no_loss(tmp_path: Path) -> None:
    base = write_run(tmp_path / "base", {10: 4.1})
    parent_line = {"validation": figures(4.0)}
    grown: dict[str, Any] = {"steps": 10, "lines": lambda step: parent_line if step == 10 else {}}
    exact = write_run(tmp_path / "exact", {}, events=[growth(10, None, None, bit_exact=True)], **grown)
    other = write_run(tmp_path / "other", {}, events=[growth(10, None, None, bit_exact=False)], **grown)
    assert compare_runs([base, exact]).runs[1].history.final.validation.loss == 4.0
    with pytest.raises(InvalidInputError, match="no evaluated step"):
        compare_runs([base, other])


def test_a_cut_last_line_is_tolerated_and_told(tmp_path: Path) -> None:
    base, other = pair_of_runs(tmp_path)
    file = other / "metrics.jsonl"
    file.write_bytes(file.read_bytes()[:-9])
    comparison = compare_runs([base, other])
    assert comparison.runs[1].history.final.validation.loss == 4.0
    assert any("other: the metrics end at step 19" in warning for warning in comparison.warnings)


def test_lines_beyond_the_checkpoint_do_not_count(tmp_path: Path) -> None:
    base, other = pair_of_runs(tmp_path)
    with (other / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(metrics_line(21, validation=figures(1.0))) + "\n")
    run = compare_runs([base, other]).runs[1]
    assert (run.history.final.step, run.history.final.validation.loss) == (20, 4.0)


def test_names_are_unique(tmp_path: Path) -> None:
    a, b = write_run(tmp_path / "a" / "run", {20: 4.1}), write_run(tmp_path / "b" / "run", {20: 4.0})
    c = write_run(tmp_path / "c", {20: 4.0})
    named = [run.name for run in compare_runs([a, b, c, c, c / "checkpoints" / "step-00000020"]).runs]
    assert named == ["a/run", "b/run", "c", "c (2)", "c (3)"]


def test_two_checkpoints_of_one_run_are_named_by_step(tmp_path: Path) -> None:
    base = write_run(tmp_path / "base", {10: 4.5, 20: 4.1})
    early = write_run(tmp_path / "early", {10: 4.5})
    (early / "checkpoints" / "step-00000010").rename(base / "checkpoints" / "step-00000010")
    runs = compare_runs([base / "checkpoints" / "step-00000010", base]).runs
    assert [(run.name, run.history.final.validation.loss) for run in runs] == [("base@10", 4.5), ("base@20", 4.1)]


@pytest.mark.parametrize(
    ("changes", "warned"),
    [
        ({"recipe": {"train.decay": False}}, f"other: {NOT_DECAYED}"),
        ({"recipe": {"train.horizon": 40}}, f"other: {NOT_DECAYED}"),
        ({"lr_factor": 1.0}, f"other: {NOT_DECAYED}"),
        ({"lr_factor": 0.25}, None),
        ({"lr_factor": 0.25, "recipe": {"train.horizon": 20}}, None),
        ({"environment": {"threads": 2}}, "other: another environment than that of base (threads 2, not 1): do not"),
        ({"environment": {"device": "cuda"}}, "device cuda, not cpu"),
        ({"seed": 1}, "other: another seed than that of base (1, not 0)"),
        ({"batch_size": 8}, "other: another batch size than that of base (8, not 4): equal steps are not equal data"),
        ({"events": [{"event": "train", "step": 20, "steps": 30}]}, "other: unfinished, at step 20 of 50"),
        (
            {"lr_factor": 1.0, "events": [{"event": "diverged", "step": 20, "until": 21}]},
            "other: diverged at step 20 of 20",
        ),
        ({"steps": 20}, None),
    ],
)
def test_doubts_are_told(tmp_path: Path, changes: dict[str, Any], warned: str | None) -> None:
    warnings = compare_runs(pair_of_runs(tmp_path, **changes)).warnings
    assert len(warnings) == (warned is not None)
    assert warned is None or warned in warnings[0]


def test_an_unreadable_recipe_is_told(tmp_path: Path) -> None:
    base, other = pair_of_runs(tmp_path)
    (other / "recipe.yaml").unlink()
    assert compare_runs([base, other]).warnings == ("other: the recipe cannot be read: the batch size is not known",)


def test_what_several_runs_have_in_common_is_said_once(tmp_path: Path) -> None:
    """Arms of three seeds, runs with a name of their own: by arm where it is true of a whole one."""

    def arm(name: str, **changes: Any) -> Path:
        for seed in range(3):
            write_run(tmp_path / name / f"s{seed}", {20: 4.0}, seed=seed, **changes)
        return tmp_path / name

    undecayed = {"recipe": {"train.decay": False}}
    base, one, other = arm("base"), arm("one", **undecayed), arm("other", **undecayed)
    assert compare_runs([base, one, other]).warnings == (f"all but base: {NOT_DECAYED}",)
    assert compare_runs([base, one]).warnings == (f"one: {NOT_DECAYED}",)
    assert compare_runs([one, other]).warnings == (f"all runs: {NOT_DECAYED}",)
    assert compare_runs([one, base, other / "s1"]).warnings[0] == f"one, other/s1: {NOT_DECAYED}"
    slow, wide = arm("slow", environment={"threads": 2}), arm("wide", environment={"threads": 2}, batch_size=8)
    told = compare_runs([base, one, slow, wide]).warnings
    assert told == (
        f"one: {NOT_DECAYED}",
        "slow, wide: another environment than that of base (threads 2, not 1): do not compare their wall-clock",
        "wide: another batch size than that of base (8, not 4): equal steps are not equal data",
    )


def test_a_rate_is_judged_by_its_size_where_the_recipe_is_lost(tmp_path: Path) -> None:
    base, *others = (write_run(tmp_path / f"{rate}", {20: 4.0}, lr_factor=rate) for rate in (0.01, 0.05, 0.25))
    for run in others:
        (run / "recipe.yaml").unlink()
    told = [warning for warning in compare_runs([base, *others]).warnings if "decayed" in warning]
    assert told == [f"0.25: {NOT_DECAYED}"]


def test_a_late_evaluation_is_told(tmp_path: Path) -> None:
    base, other = write_run(tmp_path / "base", {20: 4.1}), write_run(tmp_path / "other", {20: 4.0}, steps=25)
    assert any("last evaluated at step 20" in warning for warning in compare_runs([base, other]).warnings)


RUN_KEYS = [
    "name", "run", "checkpoint", "checkpoint_sha256", "seeds", "layers", "parameters", "flops_per_token",
    "half_steps", "steps", "tokens", "flops", "flops_ratio", "seconds", "seconds_ratio", "trials", "trials_kept",
    "trials_rejected", "lr_factor", "train_loss", "validation", "validation_step", "test", "on", "insertions",
    "gradient_spikes", "loss_spikes", "cost_to_baseline_loss", "equal", "curve", "arm",
]  # fmt: skip
INSERTION_KEYS = [
    "step", "method", "kinds", "ids", "bit_exact", "loss_before", "loss_after", "loss_after_updates", "updates",
    "gradient_spike", "loss_spikes", "growth_bump", "steps_to_recover",
]  # fmt: skip
ARM_KEYS = [
    "name", "runs", "seeds", "paired_seeds", "left_out", "loss", "accuracy", "train_loss", "test_loss", "test_accuracy",
    "on", "flops_ratio", "seconds_ratio", "loss_difference", "accuracy_difference", "cost_to_baseline_loss",
    "front_loss", "front_difference", "compute_gain", "pays", "pays_doubt", "controls", "verdict", "curves",
]  # fmt: skip
CRITERION_KEYS = [
    "name", "run", "against", "passed", "value", "bound", "relation", "unit", "note", "low", "high", "judged", "seeds",
]  # fmt: skip


def test_the_document_keeps_its_keys(tmp_path: Path) -> None:
    document = compare_runs(pair_of_runs(tmp_path, events=[growth(10)])).document()
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert list(document) == [
        "schema",
        "baseline",
        "arms",
        "runs",
        "criteria",
        "decision",
        "verdict",
        "pays",
        "compute_gain",
        "warnings",
        "notes",
    ]
    assert (document["schema"], document["decision"], document["verdict"]) == (1, None, "accept")
    assert [list(run) for run in document["runs"]] == [RUN_KEYS, RUN_KEYS]
    other = document["runs"][1]
    assert [list(insertion) for insertion in other["insertions"]] == [INSERTION_KEYS]
    assert list(other["equal"]) == ["steps", "flops", "seconds", "shared_steps", "curve"]
    assert list(other["equal"]["steps"]) == ["step", "loss", "baseline_loss", "difference"]
    assert list(other["curve"][0]) == ["step", "loss", "flops", "seconds"]
    assert list(other["validation"]) == ["loss", "accuracy", "perplexity", "bits_per_byte", "class_accuracy"]
    assert [list(criterion) for criterion in document["criteria"]] == [CRITERION_KEYS] * 6
    assert [list(arm) for arm in document["arms"]] == [ARM_KEYS] * 2
    assert [list(arm["curves"]) for arm in document["arms"]] == [["steps", "flops", "seconds"]] * 2
    assert list(document["arms"][1]["loss"]) == ["mean", "sd", "low", "high", "values"]


def test_the_table_puts_the_runs_side_by_side(tmp_path: Path) -> None:
    comparison = compare_runs(
        [
            write_run(tmp_path / "base", {20: 4.1}, flops=20.0),
            write_run(
                tmp_path / "grown",
                {10: 4.2, 20: 4.0},
                accuracy=0.503,
                events=[growth(10, 4.213077, 4.213077)],
                lines=lambda step: {"grad_norm_new": 0.5} if step > 10 else {},
            ),
        ]
    )
    table = comparison_rows(comparison)
    assert table.header == ("", "base", "grown")
    rows = {row[0]: row[1:] for row in table.rows}
    assert rows["layers"] == ("2", "2 -> 4 at step 10")
    assert rows["validation loss"] == ("4.1000", "4.0000")
    assert rows["loss against baseline"] == ("-", "-0.1000")
    assert rows["accuracy"] == ("50.00 %", "50.30 %")
    assert rows["accuracy against baseline"] == ("-", "+0.30 pt")
    assert rows["FLOPs"] == ("1.00 (400 FLOP)", "0.50 (200 FLOP)")
    assert rows["loss before / after insertion"] == ("-", "4.213077 / 4.213077")
    assert rows["loss 10 updates after"] == ("-", "4.0000")
    assert rows["gradient spikes (old / new)"] == ("0", "0 / 0")
    assert "loss at equal steps" not in rows
    ((title, criteria),) = criteria_rows(comparison).items()
    assert title == "grown against base"
    assert [row[:4] for row in criteria.rows] == [
        ("no insertion spike", "0", "<= 0", "pass"),
        ("lower loss at equal steps", "-0.1000", "< 0", "pass"),
        ("comparable final accuracy", "+0.30 pt", "> -0.5 pt", "pass"),
        ("FLOPs to equal loss", "0.38", "<= 0.8", "pass"),
        ("wall-clock to equal loss", "0.75", "<= 0.8", "pass"),
        ("pays against ungrown training", "-", "< 0", "not judged"),
    ]
    assert all(len(row) == len(t.header) for t in (table, criteria) for row in t.rows)
    lines = verdict_lines(comparison)
    assert lines[0] == (
        "verdict: accept by 5 of 5 criteria against base; whether growing paid is not known: it took fewer "
        "FLOPs than every ungrown run"
    )
    assert lines[-1].startswith("one seed each")
    assert all(text.isascii() for t in (table, criteria) for row in (t.header, *t.rows) for text in row)


def test_losses_that_differ_never_look_equal(tmp_path: Path) -> None:
    paths = pair_of_runs(tmp_path, events=[growth(10, 4.2130771, 4.2130772)])
    comparison = compare_runs([*paths, write_run(tmp_path / "near", {20: 4.1 - 1e-9})])
    rows = {row[0]: row[1:] for row in comparison_rows(comparison).rows}
    assert rows["loss before / after insertion"][1] == "4.2130771 / 4.2130772"
    near = [row for row in criteria_rows(comparison)["near against base"].rows if row[0] == "lower loss at equal steps"]
    assert near[0][1:4] == ("-1e-09", "< 0", "pass")


def test_final_steps_that_differ_are_shown(tmp_path: Path) -> None:
    base = write_run(tmp_path / "base", {20: 4.1, 40: 3.9})
    rows = comparison_rows(compare_runs([base, write_run(tmp_path / "other", {20: 4.0})])).rows
    assert ("loss at equal steps", "-", "4.0000 (-0.1000) at step 20") in rows
