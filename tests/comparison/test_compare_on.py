"""`compare --on DATA`: the figures of every run on another data set, recorded, and held against the baseline's."""

from __future__ import annotations

import math
import os
import random
import shlex
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import TINY, Command
from local_images import write_classes
from synthetic_wikitext import write_wikitext

import ppdgrow as package
from ppdgrow.checkpoint import append_jsonl, read_jsonl
from ppdgrow.comparison.criteria import OTHER_EXAMPLES
from ppdgrow.config.schema import DataConfig
from ppdgrow.data import open_dataset
from ppdgrow.engine.evaluate import evaluate
from ppdgrow.errors import ConfigError
from ppdgrow.training.context import Setting

PROSE = "the pair is a block and its inverse so that nothing changes at first and then both part"
DRAWN = "wug zil kpa xoq vrr ulu nym tez ibb oq"


def write_text(path: Path, words: str = DRAWN, seed: int = 0, lines: int = 300) -> Path:
    draw = random.Random(seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{' '.join(draw.choices(words.split(), k=8))}.\n" for _ in range(lines)))
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`base` and `other`, trained on `prose`, beside the text of `drawn`."""
    folder = tmp_path_factory.mktemp("trained")
    write_text(folder / "prose" / "text.txt", PROSE)
    write_text(folder / "drawn" / "text.txt", DRAWN)
    values = {"model.width": 16, "model.heads": 2, "data.sequence_length": 16, "train.batch_size": 4}
    values |= {"train.eval_batches": 2, "train.steps": 8, "train.eval_every": 4, "train.warmup_steps": 2}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name, layers in (("base", 1), ("other", 2)):
            package.train(values=values | {"model.layers": layers, "data.name": "prose"}, out=name, quiet=True)
    return folder


@pytest.fixture
def runs(trained: Path, tmp_path: Path, ppdgrow: Command) -> Path:
    """A copy of them in the current folder."""
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    return tmp_path


@pytest.fixture
def evaluations(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Where each evaluation of a checkpoint took place, by the name of the data."""
    seen: list[str] = []
    real = Setting.evaluate_checkpoint

    def watched(self: Setting, *given: Any, **more: Any) -> Any:
        seen.append(self.dataset.config.name)
        return real(self, *given, **more)

    monkeypatch.setattr(Setting, "evaluate_checkpoint", watched)
    return seen


def rows_of(printed: str) -> dict[str, str]:
    """The last cell of every row of the table, by its name."""
    return {line.partition("  ")[0]: line.split()[-1] for line in printed.splitlines() if line.strip()}


def directly(run: str, data: str, *, task: Any = "lm") -> float:
    """The loss of a run on the validation split of other data, without `compare`."""
    config, cpu = DataConfig(name=data, sequence_length=16), torch.device("cpu")
    batches = open_dataset(config, task).evaluation("validation", batch_size=4, num_batches=2, device=cpu)
    return evaluate(package.load(run), batches, device=cpu, precision="fp32").loss


# --- what is computed


@pytest.mark.usefixtures("runs")
def test_figures_are_those_of_a_direct_evaluation_to_the_bit(ppdgrow: Command) -> None:
    document = ppdgrow("compare base other --on drawn --on prose --on stdlib --json").document
    for run, arm in zip(document["runs"], document["arms"], strict=True):
        assert list(run["on"]) == list(arm["on"]) == ["drawn", "prose", "stdlib"]
        for data in ("drawn", "stdlib"):
            assert run["on"][data]["loss"] == directly(run["name"], data) != run["validation"]["loss"]
            assert run["on"][data]["bits_per_byte"] == run["on"][data]["loss"] / math.log(2)
        assert run["on"]["prose"] == run["validation"], "its own data: its own examples"
        assert arm["on"]["drawn"]["loss"]["values"] == [run["on"]["drawn"]["loss"]]
    ours, theirs = (run["on"]["drawn"] for run in reversed(document["runs"]))
    assert document["arms"][0]["on"]["drawn"]["difference"] is None
    difference = document["arms"][1]["on"]["drawn"]["difference"]
    assert difference == {
        "mean": ours["loss"] - theirs["loss"],
        "sd": None,
        "low": None,
        "high": None,
        "values": [ours["loss"] - theirs["loss"]],
    }
    plain = ppdgrow("compare base other --json").document
    assert [arm["on"] for arm in plain["arms"]] == [run["on"] for run in plain["runs"]] == [{}, {}]
    assert (plain["criteria"], plain["verdict"]) == (document["criteria"], document["verdict"]), "it decides nothing"


@pytest.mark.usefixtures("runs")
def test_masked_tokens_and_images(ppdgrow: Command) -> None:
    for name, layers in (("a", 1), ("b", 2)):
        line = (
            f"train --data prose --layers {layers} --steps 4 -o model.task=mlm -o data.mask_fraction=0.3 --out {name}"
        )
        ppdgrow(line, *TINY)
    document = ppdgrow("compare a b --on drawn --json").document
    config = DataConfig(name="drawn", sequence_length=16, mask_fraction=0.3)
    cpu = torch.device("cpu")
    batches = open_dataset(config, "mlm").evaluation("validation", batch_size=4, num_batches=2, device=cpu)
    expected = evaluate(package.load("a"), batches, device=cpu, precision="fp32").loss
    assert document["runs"][0]["on"]["drawn"]["loss"] == expected
    assert document["runs"][0]["on"]["drawn"]["bits_per_byte"] is None
    assert [line["mask_fraction"] for line in read_jsonl(Path("a/on.jsonl"))] == [0.3]

    write_classes(Path("pets"))
    write_classes(Path("animals"), count=30)
    for name, layers in (("c", 1), ("d", 2)):
        ppdgrow(f"train --data pets --layers {layers} --steps 4 -o model.patch_size=4 --out {name}", *TINY)
    found = ppdgrow("compare c d --on animals --json").document["runs"][0]["on"]["animals"]
    assert found["loss"] == directly("c", "animals", task="classify")
    assert set(found["class_accuracy"]) == {"cat", "dog"}


def bpe_runs(ppdgrow: Command) -> None:
    """`scratch` and `adapted` on `drawn`: the tokenizer of the second is that of `prose`."""
    small = [*TINY, "-o", "data.tokenizer=bpe:270", "--quiet"]
    ppdgrow("train --data prose --layers 1 --steps 4 --no-decay --out parent", *small)
    ppdgrow("train parent --data drawn --steps 4 --out adapted --quiet")
    ppdgrow("train --data drawn --layers 1 --steps 8 --out scratch", *small)


@pytest.mark.usefixtures("runs")
def test_losses_by_other_tokenizers_do_not_compare_and_bits_per_byte_do(ppdgrow: Command) -> None:
    bpe_runs(ppdgrow)
    told = ppdgrow("compare scratch adapted --on stdlib")
    warning = "adapted: another tokenizer than that of scratch: losses are per token and do not compare"
    assert f"warning: {warning}, bits per byte do" in told.stderr.splitlines()
    rows = rows_of(told.stdout)
    assert rows["on stdlib against baseline"] == "-"
    document = ppdgrow("compare scratch adapted --on stdlib --json").document
    assert document["warnings"] == [f"{warning}, bits per byte do"]
    on = [arm["on"]["stdlib"] for arm in document["arms"]]
    assert on[1]["difference"] is None
    bits = on[1]["bits_per_byte"]["mean"] - on[0]["bits_per_byte"]["mean"]
    assert on[1]["bits_per_byte_difference"]["mean"] == pytest.approx(bits)
    assert rows["bits per byte on stdlib against baseline"] == f"{bits:+.4f}"

    document = ppdgrow("compare base scratch --on stdlib --json").document
    byte, bpe = (run["on"]["stdlib"]["bits_per_byte"] for run in document["runs"])
    on = document["arms"][1]["on"]["stdlib"]
    assert (on["difference"], on["bits_per_byte_difference"]["values"]) == (None, [bpe - byte])
    assert "data drawn, not prose, tokenizer bpe:270, not byte" in document["warnings"][0]

    # Negative control: of one tokenizer.
    told = ppdgrow("compare parent adapted --on stdlib")
    assert "another tokenizer" not in told.stderr
    assert "bits per byte on" not in told.stdout
    assert rows_of(told.stdout)["on stdlib against baseline"] != "-"


@pytest.mark.usefixtures("runs")
def test_each_run_reads_the_test_split_by_its_own_tokenizer(ppdgrow: Command) -> None:
    bpe_runs(ppdgrow)
    first = ppdgrow("compare scratch adapted --test --json").document
    for name in ("scratch", "adapted"):
        Path(name, "test.jsonl").unlink()
    second = ppdgrow("compare adapted scratch --test --json").document
    assert [run["test"] for run in first["runs"]] == [run["test"] for run in reversed(second["runs"])]
    assert any("another tokenizer" in warning for warning in first["warnings"])


@pytest.mark.usefixtures("runs")
def test_a_table_is_read_as_the_run_that_was_trained_on_it_reads_it(ppdgrow: Command) -> None:
    lines = Path("prose/text.txt").read_text().splitlines()
    Path("t.csv").write_text("\n".join(["text,body", *(f"t{number},{line}" for number, line in enumerate(lines))]))
    Path("u.csv").write_text("\n".join(["words", *lines]))
    ppdgrow("train --data t.csv -o data.text_column=body --layers 1 --steps 4 --out table", *TINY)
    document = ppdgrow("compare table base --on t.csv --on u.csv --json").document
    assert document["runs"][0]["on"]["t.csv"] == document["runs"][0]["validation"]
    assert document["arms"][1]["on"]["t.csv"]["difference"] is not None, "the same column, not that of the best name"
    assert document["arms"][1]["on"]["u.csv"]["difference"] is not None, "whose only column has another name"


@pytest.mark.usefixtures("runs")
def test_a_named_data_set_lies_in_the_folder_that_is_given(ppdgrow: Command) -> None:
    write_wikitext(Path("copies"))
    told = ppdgrow("compare base other --on wikitext2 --data-dir copies")
    assert "on wikitext2 against baseline" in told.stdout
    line = told.stderr.splitlines()[-1]
    assert " --on wikitext2 --data-dir copies --report " in line, "the next command finds it too"
    ppdgrow("", *shlex.split(line)[1:-1], "r.md")


# --- what is recorded


def test_the_second_call_reads_the_record(runs: Path, ppdgrow: Command, evaluations: list[str]) -> None:
    line = "compare base other --on drawn --json"
    first = ppdgrow(line).document
    assert evaluations == ["drawn"] * 2
    assert ppdgrow(line).document == first
    shutil.copytree("drawn", "copied")
    assert (
        ppdgrow(line.replace("drawn", "copied")).document["runs"][0]["on"]["copied"] == first["runs"][0]["on"]["drawn"]
    )
    assert evaluations == ["drawn"] * 2, "by content, whatever it is called"
    assert len(read_jsonl(runs / "base" / "on.jsonl")) == 1
    assert not (runs / "base" / "test.jsonl").exists()


def test_control_other_content_size_checkpoint_or_precision_is_evaluated_anew(
    runs: Path, ppdgrow: Command, evaluations: list[str]
) -> None:
    def anew(line: str = "compare base other --on drawn --json") -> int:
        evaluations.clear()
        ppdgrow(line)
        return len(evaluations)

    assert (anew(), anew()) == (2, 0)
    assert anew("compare base other --on drawn --precision bf16") == 2
    recipe = runs / "base" / "recipe.yaml"
    kept = recipe.read_text()
    assert "eval_batches: 2" in kept
    recipe.write_text(kept.replace("eval_batches: 2", "eval_batches: 3"))
    assert anew() == 1, "of that run alone"
    recipe.write_text(kept)
    assert anew() == 0
    ppdgrow("train other --steps 4 --out other-on --quiet")
    assert anew("compare base other-on --on drawn") == 1
    write_text(Path("drawn/text.txt"), DRAWN, seed=1)
    assert (anew(), anew()) == (2, 0)


def test_the_record_of_the_test_split_is_as_it_was(runs: Path, ppdgrow: Command, evaluations: list[str]) -> None:
    ppdgrow("compare base other --test --on drawn")
    assert sorted(evaluations) == ["drawn", "drawn", "prose", "prose"]
    (line,) = read_jsonl(runs / "base" / "test.jsonl")
    assert list(line) == ["checkpoint_sha256", "test_sha256", "precision", "examples", "figures"]
    evaluations.clear()
    ppdgrow("compare base other --test")
    assert evaluations == []


def test_a_broken_record_is_named_and_a_cut_line_is_dropped(runs: Path, ppdgrow: Command) -> None:
    first = ppdgrow("compare base other --on drawn --json").document
    log = runs / "base" / "on.jsonl"
    whole = log.read_text()
    log.write_text(whole[:-40])
    assert ppdgrow("compare base other --on drawn --json").document == first
    assert log.read_text() == whole
    log.write_text(whole.replace('"loss"', '"lost"'))
    failed = ppdgrow("compare base other --on drawn", code=4).stderr
    assert "base/on.jsonl'" in failed
    assert "remove the file" in failed


def test_a_signal_leaves_whole_lines_and_the_next_call_goes_on(
    runs: Path, ppdgrow: Command, evaluations: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = ppdgrow("compare base other --on drawn --json").document
    for name in ("base", "other"):
        (runs / name / "on.jsonl").unlink()
    watched = Setting.evaluate_checkpoint

    def interrupted(self: Setting, *given: Any, **more: Any) -> Any:
        if len(evaluations) == 3:  # of the second run
            os.kill(os.getpid(), signal.SIGINT)
        return watched(self, *given, **more)

    monkeypatch.setattr(Setting, "evaluate_checkpoint", interrupted)
    ppdgrow("compare base other --on drawn", code=130)
    assert (runs / "base" / "on.jsonl").read_bytes().count(b"\n") == len(read_jsonl(runs / "base" / "on.jsonl")) == 1
    assert not (runs / "other" / "on.jsonl").exists()
    evaluations.clear()
    assert ppdgrow("compare base other --on drawn --json").document == expected
    assert len(evaluations) == 1


def test_a_run_folder_that_cannot_be_written_costs_the_record_alone(
    runs: Path, ppdgrow: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, lines: Any) -> None:
        append_jsonl(runs / "nowhere" / path.name, lines)

    monkeypatch.setattr("ppdgrow.comparison.evaluation.append_jsonl", refuse)
    told = ppdgrow("compare base other --on drawn")
    assert "warning: the reading of drawn is not recorded in 2 of 2 runs: cannot write" in told.stderr
    assert "on drawn against baseline" in told.stdout


# --- what is refused


@pytest.mark.parametrize(
    ("data", "code", "said"),
    [
        (
            "wikitxt2",
            2,
            "--on is 'wikitxt2', expected one of stdlib, wikitext2, cifar10, digits (did you mean 'wikitext2'?)",
        ),
        ("", 2, "--on is '', expected one of stdlib"),
        ("no/where", 4, "--on: 'no/where' does not exist"),
        ("cifar10", 2, "'base' cannot be evaluated on 'cifar10': model.task is 'lm', which does not fit"),
        ("empty", 4, "'empty' holds no files"),
        ("short", 4, "short validation: found 0 tokens, expected at least 17"),
    ],
)
def test_data_that_is_not_there_or_does_not_fit_is_one_line_before_anything_is_evaluated(
    runs: Path, ppdgrow: Command, evaluations: list[str], data: str, code: int, said: str
) -> None:
    Path("empty").mkdir()
    Path("short").mkdir()
    Path("short/text.txt").write_text("so few words\n")
    failed = ppdgrow("compare base other --on drawn --on", data, code=code).stderr
    assert said in failed
    assert len(failed.splitlines()) == 1
    assert evaluations == []
    assert not (runs / "base" / "on.jsonl").exists()


@pytest.mark.usefixtures("runs")
def test_runs_of_images_are_refused_on_text_and_on_other_classes(ppdgrow: Command) -> None:
    for data, classes in (("pets", ("cat", "dog")), ("cars", ("car", "van")), ("three", ("cat", "cow", "dog"))):
        write_classes(Path(data), classes)
    for name, layers in (("c", 1), ("d", 2)):
        ppdgrow(f"train --data pets --layers {layers} --steps 2 -o model.patch_size=4 --out {name}", *TINY)
    for data, said in (
        ("drawn", "model.task is 'classify', which does not fit data.name 'drawn'"),
        ("cars", "the data has the classes car, van, but the run was trained on cat, dog"),
        ("three", "the data gives kind images, channels 3, height 8, width 8, patch_size 4, num_classes 3, but"),
    ):
        failed = ppdgrow("compare c d --on", data, code=2).stderr
        assert f"error: 'c' cannot be evaluated on {data!r}: {said}" in failed
        assert len(failed.splitlines()) == 1
    ppdgrow("compare c d --on pets")


@pytest.mark.parametrize("name", ["with space", "[red]markup[/red]", "sch\u00f6n \u4e2d", "-dashed", "a|b `c` $d"])
def test_names_that_are_not_plain(runs: Path, ppdgrow: Command, name: str) -> None:
    name = name.replace("/", ":")
    shutil.copytree("drawn", name)
    told = ppdgrow("compare base other --report r.md", f"--on=./{name}")
    row = next(line for line in told.stdout.splitlines() if line.startswith(f"on {name} against baseline"))
    assert len(row.split()[-1]) == len("+0.0000")
    document = ppdgrow("compare base other --json", f"--on=./{name}").document
    assert list(document["arms"][1]["on"]) == [f"./{name}"]
    assert read_jsonl(runs / "base" / "on.jsonl")[0]["data"] == f"./{name}"
    page = Path("r.md").read_text(encoding="utf-8")
    assert "|b `c`" not in page
    told = ppdgrow("compare base other", f"--on=./{name}")
    ppdgrow("", *shlex.split(told.stderr.splitlines()[-1])[1:-1], "again.md")


def test_what_two_data_sets_have_in_common_does_not_name_them(runs: Path, ppdgrow: Command) -> None:
    shutil.copytree("drawn", "one/notes")
    shutil.copytree("prose", "two/notes")
    told = ppdgrow("compare base other --on one/notes --on two/notes --on drawn --on drawn")
    heads = [line.partition("  ")[0] for line in told.stdout.splitlines() if line.startswith("on ")]
    expected = [f"on {name}{end}" for name in ("one/notes", "two/notes", "drawn") for end in ("", " against baseline")]
    assert [head for head in heads if "DATA" not in head] == expected


# --- what adapting cost


def test_what_adapting_cost_is_held_against_the_model_before(runs: Path, ppdgrow: Command) -> None:
    for seed in (0, 1):
        ppdgrow(f"train base --data drawn --steps 6 --seed {seed} --out adapted/seed-{seed} --quiet")
    document = ppdgrow("compare base adapted --on prose --on drawn --json").document
    parent, *adapted = document["runs"]
    cost = document["arms"][1]["on"]["prose"]["difference"]
    own = [run["on"]["prose"]["loss"] for run in adapted]
    assert own == [directly(f"adapted/seed-{seed}", "prose") for seed in (0, 1)]
    assert cost["values"] == [loss - parent["validation"]["loss"] for loss in own], "both seeds, against their parent"
    assert [run["on"]["drawn"] for run in adapted] == [run["validation"] for run in adapted]
    assert document["arms"][1]["loss_difference"] is None
    assert {criterion["note"] for criterion in document["criteria"][1:]} == {OTHER_EXAMPLES}
    assert {criterion["passed"] for criterion in document["criteria"]} == {None}
    told = "adapted: its losses are of other examples than those of base (data drawn, not prose): only those on"
    assert [warning[: len(told)] for warning in document["warnings"]] == [told]
    refused = ppdgrow("compare base adapted", code=2).stderr
    assert "data: 'prose' and 'drawn'" in refused
    assert "or evaluate both on one with --on DATA" in refused
    ppdgrow("compare base adapted --on prose --report r.md --plot p.svg")


# --- from Python


@pytest.mark.usefixtures("runs")
def test_from_python(ppdgrow: Command) -> None:
    document = ppdgrow("compare base other --on drawn --json").document
    for on in ("drawn", ["drawn"], Path("drawn"), [Path("drawn")]):
        assert package.compare("base", "other", on=on, quiet=True) == document
    assert list(package.compare("base", "other", on=["drawn", "prose"], quiet=True)["arms"][0]["on"]) == [
        "drawn",
        "prose",
    ]
    with pytest.raises(ConfigError, match="on is 3, expected the name of a data set, or a path"):
        package.compare("base", "other", on=[3])
