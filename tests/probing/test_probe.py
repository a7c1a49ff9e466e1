"""The command: theta_0 against growth.jsonl, checkpoints that contradict themselves, notes, and the picture."""

from __future__ import annotations

import dataclasses
import errno
import json
import struct
import sys
from pathlib import Path

import pytest
from command_line import TINY, Command

from ppdgrow.checkpoint import RunFolder, read_checkpoint, write_checkpoint
from ppdgrow.console.terminal import clean
from ppdgrow.probing.plot import STYLES, draw
from ppdgrow.probing.report import BlockReport


def newest(run: Path) -> Path:
    found = RunFolder(run).newest_valid()
    assert found is not None
    return found


@pytest.fixture
def grown(ppdgrow: Command, shallow: Path) -> Path:
    ppdgrow("grow shallow --pair ffn,orthogonal --pairs 2 --no-eval --out g --quiet")
    return Path("g")


def test_the_tables_show_figures_beside_their_bounds_and_the_costs(ppdgrow: Command, grown: Path) -> None:
    pytest.importorskip("matplotlib")
    told = ppdgrow("probe g --plot picture.svg")
    assert "round trip fp64 / bound" in told.stdout
    assert "|W^T W - I| / bound" in told.stdout
    assert "half-steps" in told.stdout
    assert "as recorded" in told.stdout
    assert "all 2 tied pairs cancel to the last bit" in told.stderr
    assert Path("picture.svg").read_text().lstrip().startswith("<?xml")
    assert not list(Path().glob(".tmp-*"))


def test_a_tied_pair_whose_weights_were_changed_since_the_growth_fails_and_is_named(
    ppdgrow: Command, grown: Path
) -> None:
    """The members still share the changed weights: it cancels, but it is not what the lineage says."""
    checkpoint = read_checkpoint(newest(grown))
    name = "blocks.p1.plus.g.out.bias"
    changed = checkpoint.tensors | {name: checkpoint.tensors[name] + 1e-3}
    write_checkpoint(newest(grown), dataclasses.replace(checkpoint, tensors=changed))
    failed = ppdgrow("probe g --dtype fp32", code=7)
    assert "pair p1 is recorded as tied but its theta_0 is not the one" in failed.stderr
    assert "p2" not in failed.stderr.split("error:")[1]
    document = ppdgrow("probe g --dtype fp32 --json", code=7).document
    assert document["passed"] is False
    assert [pair["theta_0"] for pair in document["pairs"]] == ["changed", "as recorded"]
    assert [pair["cancellation"]["fp32"]["max_abs"] for pair in document["pairs"]] == [0, 0]


@pytest.mark.parametrize("record", ["absent file", "no digests"])
def test_a_checkpoint_without_a_record_gets_a_note_and_no_failure(ppdgrow: Command, grown: Path, record: str) -> None:
    log = grown / "growth.jsonl"
    events = [json.loads(line) for line in log.read_text().splitlines()]
    if record == "absent file":
        log.unlink()
    else:
        for event in events:
            event.pop("theta_sha256", None)
        log.write_text("".join(json.dumps(event) + "\n" for event in events))
    told = ppdgrow("probe g --dtype fp32")
    assert "no sha256 of theta_0 for p1, p2" in told.stderr
    assert {pair["theta_0"] for pair in ppdgrow("probe g --dtype fp32 --json").document["pairs"]} == {"not recorded"}


def test_a_tied_pair_with_tensors_of_a_second_member_is_refused(ppdgrow: Command, grown: Path) -> None:
    checkpoint = read_checkpoint(newest(grown))
    second = {n.replace(".plus.", ".minus."): t.clone() for n, t in checkpoint.tensors.items() if ".p1.plus." in n}
    assert second
    write_checkpoint(newest(grown), dataclasses.replace(checkpoint, tensors=checkpoint.tensors | second))
    refused = ppdgrow("probe g", code=4)
    assert "unexpected tensor 'blocks.p1.minus." in refused.stderr


def test_what_a_pair_that_stays_idle_is_told(ppdgrow: Command, grown: Path) -> None:
    ppdgrow("train g --steps 2 --pair-lr 1e-6 --out t --quiet")
    told = ppdgrow("probe t --dtype fp32")
    assert "idle: p1, p2 (trained, but" in told.stderr
    document = ppdgrow("probe t --dtype fp32 --json").document
    assert document["passed"] is True
    assert [pair["idle"] for pair in document["pairs"]] == [True, True]
    assert [pair["theta_0"] for pair in document["pairs"]] == [None, None]


def test_a_picture_that_cannot_be_made_is_refused_before_any_work(ppdgrow: Command, tmp_path: Path) -> None:
    """There is no checkpoint here: looking for it would be the first work."""
    pytest.importorskip("matplotlib")
    (tmp_path / "folder.png").mkdir()
    assert ".svg or .png" in ppdgrow("probe nowhere --plot figure.pdf", code=2).stderr
    assert "does not exist" in ppdgrow("probe nowhere --plot missing/figure.png", code=6).stderr
    assert "is a folder" in ppdgrow("probe nowhere --plot folder.png", code=6).stderr
    assert "--plot" not in ppdgrow("probe nowhere --plot figure.png", code=4).stderr


def test_without_matplotlib_the_way_out_is_named(ppdgrow: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert "pip install 'ppdgrow[plot]'" in ppdgrow("probe nowhere --plot figure.png", code=2).stderr


def test_a_full_disk_is_a_storage_error_and_leaves_the_older_picture(
    ppdgrow: Command, grown: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    Path("a.png").write_text("older")
    monkeypatch.setattr("ppdgrow.atomic.os.fsync", full)
    assert "cannot write --plot 'a.png': No space left" in ppdgrow("probe g --dtype fp32 --plot a.png", code=6).stderr
    assert Path("a.png").read_text() == "older"
    assert not list(Path().glob(".tmp-*"))


def blocks(*figures: tuple[str, float, float]) -> list[BlockReport]:
    return [
        BlockReport(f"b{place}", kind, None, norm, activity, parameters=1, half_steps=2)
        for place, (kind, norm, activity) in enumerate(figures)
    ]


def test_a_picture_has_every_kind_in_the_legend_and_is_the_same_each_time() -> None:
    pytest.importorskip("matplotlib")
    shown = blocks(*((kind, 1.0 + place, 0.1) for place, kind in enumerate(STYLES)))
    first = draw(shown, "svg", title="$x^$ <run>")
    assert draw(shown, "svg", title="$x^$ <run>") == first
    for text in (*STYLES, "gradient norm", "block, in order of application"):
        assert f"<!-- {text} -->".encode() in first
    assert b"idle below" not in first
    assert first != draw(blocks(("layer", 1.0, 0.1)), "svg", title="$x^$ <run>")


@pytest.mark.parametrize(
    "figures",
    [
        [("layer", 0.0, 0.0)],
        [("layer", float("nan"), float("inf")), ("ffn pair", float("inf"), float("nan"))],
        [("layer", 1e-9, 1e9), ("linear pair", 1e9, 0.0)],
        [("layer", 1.0, 1.0), ("ffn pair", 1.0, 0.0)] * 60,
    ],
    ids=["zero", "not finite", "wide", "deep"],
)
def test_any_figures_can_be_drawn(figures: list[tuple[str, float, float]]) -> None:
    pytest.importorskip("matplotlib")
    picture = draw(blocks(*figures), "png", title="run")
    assert picture.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", picture[16:24])
    assert 600 < width < 3000
    assert 600 < height < 1500


def test_every_kind_of_pair_has_a_style_of_its_own() -> None:
    from ppdgrow.config.kinds import KINDS

    assert set(STYLES) == {"layer"} | {f"{kind} pair" for kind in KINDS}
    assert (
        len({colour for colour, _ in STYLES.values()}) == len({marker for _, marker in STYLES.values()}) == len(STYLES)
    )


# --- the continuation of a text


@pytest.mark.parametrize("tokenizer", ["byte", "bpe:300", "word"])
@pytest.mark.parametrize("family", ["transformer", "sequence"])
def test_a_growth_keeps_the_continuation_of_a_seed(
    ppdgrow: Command, tokenizer: str, family: str, tmp_path: Path
) -> None:
    Path("text.txt").write_text("a few words of text for a model to read\nand a second line\n" * 200)
    data = f"--data text.txt -o data.tokenizer={tokenizer} --model {family}"
    ppdgrow(f"train --layers 2 --steps 4 --no-decay --out lm --quiet {data}", *TINY)
    ppdgrow("grow lm --pairs 2 --out grown --quiet")
    ask = ["--sample", "a few words", "--tokens", "40", "--dtype", "fp32"]
    before = ppdgrow("probe lm --json", *ask).document["sample"]
    after = ppdgrow("probe grown --json", *ask).document["sample"]
    assert before == after
    assert (before["prompt"], before["tokens"], before["seed"]) == ("a few words", 40, 0)
    assert len(before["text"]) >= 20
    other = ppdgrow("probe lm --json --seed 1", *ask).document["sample"]
    assert other["text"] != before["text"], "another seed draws another text"
    told = ppdgrow("probe lm", *ask)
    assert told.stdout.endswith(f"{clean(before['text'])}\n")
    assert "40 tokens after 'a few words', seed 0" in told.stderr
    ppdgrow("train grown --steps 30 -o train.lr=0.02 --out on --quiet")
    assert ppdgrow("probe on --json", *ask).document["sample"]["text"] != before["text"], "a trained one says another"


def test_control_without_a_sample_there_is_none(ppdgrow: Command, shallow: Path) -> None:
    assert ppdgrow("probe shallow --dtype fp32 --json").document["sample"] is None


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--sample", ""], "--sample '' has no token to start from"),
        (["--sample", "x", "--tokens", "0"], "--tokens is 0, expected a whole number of at least 1"),
        (["--tokens", "5"], "--tokens and --seed are those of a --sample"),
    ],
)
def test_a_sample_that_cannot_be_is_refused(ppdgrow: Command, shallow: Path, options: list[str], says: str) -> None:
    assert says in ppdgrow("probe shallow", *options, code=2).stderr


@pytest.mark.parametrize("line", ["-o model.task=mlm", "--data digits --model mlp"])
def test_only_a_language_model_continues_a_text(ppdgrow: Command, line: str) -> None:
    pytest.importorskip("sklearn")
    ppdgrow(f"train --layers 1 --steps 1 --out other --quiet {line}", *TINY)
    refused = ppdgrow("probe other --sample x", code=2).stderr
    assert "takes a language model (task lm), and this one has task" in refused
