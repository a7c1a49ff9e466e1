"""A user's own data through the whole story: train, grow, probe, compare, resume; and what goes wrong with it."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_line import TINY, Command
from local_images import write_classes

LINES = "".join(f"line {number} of m\u00fc text\n" for number in range(600))
SMALL_IMAGES = ["--width", "16", "-o", "model.heads=2", "-o", "train.batch_size=4", "-o", "train.warmup_steps=2"]


def corpus(folder: str = "my [red] c\u00f6rpus") -> Path:
    path = Path(folder)
    path.mkdir()
    for number in range(3):
        (path / f"part {number}.txt").write_bytes(b"\xef\xbb\xbf" + LINES.replace("\n", "\r\n").encode())
    return path


def test_text_at_a_path_is_trained_grown_probed_and_compared(ppdgrow: Command) -> None:
    path = corpus()
    ppdgrow("train --layers 2 --steps 6 --no-decay --out s --quiet --data", f"{path}/", *TINY)
    ppdgrow("grow s --pair attention --out g --quiet")
    assert ppdgrow("probe g --json").document["passed"] is True
    ppdgrow("train g --steps 4 --out t --quiet")
    ppdgrow("train --layers 4 --steps 10 --out b --quiet --data", str(path.absolute()), *TINY)
    document = ppdgrow("compare b t --test --json").document
    assert all(run["test"] is not None for run in document["runs"])
    recipe = Path("s/recipe.yaml").read_text()
    assert "my [red] c\u00f6rpus" in recipe
    assert "corpus/" not in recipe


def test_a_moved_path_is_found_below_the_data_directory(ppdgrow: Command) -> None:
    ppdgrow("train --layers 2 --steps 4 --out s --quiet --data", str(corpus("words")), *TINY)
    Path("elsewhere").mkdir()
    shutil.move("words", "elsewhere/words")
    failed = ppdgrow("grow s --out g", code=2)
    assert failed.stderr.count("\n") == 1
    assert "'words'" in failed.stderr
    ppdgrow("grow s --out g --data-dir elsewhere --quiet")


def test_changed_data_is_noticed(ppdgrow: Command) -> None:
    path = corpus("words")
    ppdgrow("train --layers 2 --steps 4 --out s --quiet --data words", *TINY)
    assert "warning" not in ppdgrow("train s --steps 1 --out t").stderr
    (path / "part 1.txt").write_text("and other\n" * 900)
    assert "warning: the train" in ppdgrow("train s --steps 1 --out u").stderr


def test_a_stopped_run_does_not_go_on_with_other_data(ppdgrow: Command) -> None:
    path = corpus("words")
    line = ["train --layers 2 --steps 12 --out s --quiet --data words", *TINY]
    ppdgrow(*line)
    newest = sorted(Path("s/checkpoints").iterdir())[-1]
    shutil.rmtree(newest)
    (path / "part 1.txt").write_text("other\n" * 900)
    failed = ppdgrow(*line, code=4)
    assert "the train and validation splits of words changed since step" in failed.stderr


def write_data(kind: str, path: Path) -> Path:
    """Data of a kind, at a path; written there twice it is the same."""
    if kind == "text":
        path.write_text(LINES)
    elif kind == "texts":
        path.mkdir()
        (path / "part.txt").write_text(LINES)
    elif kind == "images":
        write_classes(path)
    else:
        images = write_classes(Path("of-rows"))
        files = sorted(images.rglob("*.png"))
        rows = [{"image": {"bytes": file.read_bytes()}, "label": file.parent.name} for file in files]
        texts = [{"text": line} for line in LINES.splitlines()]
        pq.write_table(pa.Table.from_pylist(rows if kind == "table of images" else texts), path)
    return path


KINDS = {"text": "a.txt", "texts": "a", "images": "a", "table of images": "a.parquet", "table of texts": "a.parquet"}


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_data_at_another_path_is_the_same_data(ppdgrow: Command, kind: str) -> None:
    """Identity is content: `compare`, `train RUN --data MOVED` and a run that goes on under another spelling."""
    model = TINY if "text" in kind else [*SMALL_IMAGES, "-o", "train.save_every=6"]
    here = write_data(kind, Path(KINDS[kind]))
    moved = Path("elsewhere") / f"renamed{here.suffix}"
    moved.parent.mkdir()
    line = ["train --layers 1 --steps 12 --quiet", *model, "--data"]
    ppdgrow(*line, str(here), "--out", "here")
    ppdgrow(*line, str(here), "--out", "cut")
    shutil.rmtree("cut/checkpoints/step-00000012")
    here.rename(moved)

    ppdgrow(*line, str(moved), "--out", "there")
    assert ppdgrow(*line, str(moved), "--out", "here").stderr == "", "finished, and known as the same run"
    assert ppdgrow(*line, str(moved.absolute()), "--out", "cut").stderr == ""
    assert f"name: {moved.absolute()}" in Path("cut/recipe.yaml").read_text()
    weights = [Path(run) / "checkpoints/step-00000012/model.safetensors" for run in ("here", "cut", "there")]
    assert len({file.read_bytes() for file in weights}) == 1
    assert "warning" not in ppdgrow("train here --steps 2 --out on --data", str(moved)).stderr
    told = ppdgrow("compare here there cut on --json")
    assert (told.code, len(told.document["arms"])) == (0, 4)


@pytest.mark.parametrize("finished", [True, False])
def test_other_data_under_another_name_is_another_run(ppdgrow: Command, finished: bool) -> None:
    Path("a.txt").write_text(LINES)
    Path("b.txt").write_text(LINES.replace("line", "lime"))
    line = ["train --layers 1 --steps 12 --out s --quiet", *TINY, "--data"]
    ppdgrow(*line, "a.txt")
    if not finished:
        shutil.rmtree("s/checkpoints/step-00000012")
    failed = ppdgrow(*line, "b.txt", code=2)
    assert "holds another run (data.name: a.txt -> b.txt): choose another --out" in failed.stderr
    told = ppdgrow("train s --steps 1 --out on --data b.txt").stderr
    assert "the train and validation splits of b.txt had other content when s/checkpoints/" in told
    assert "was trained (its data was a.txt): figures before and after do not compare" in told
    refused = ppdgrow("compare s on", code=2)
    assert "(data: 'a.txt' and 'b.txt'; sha256 of the train split:" in refused.stderr


def test_a_relative_and_an_absolute_path_name_one_folder(ppdgrow: Command) -> None:
    data = corpus("words")
    Path("link").symlink_to("words")
    line = ["train --layers 1 --steps 1 --json", *TINY, "--data"]
    runs = [ppdgrow(*line, str(path)).document["run"] for path in (data, data.absolute(), Path("./link/"))]
    assert len(set(runs)) == 1
    write = ppdgrow(*line, str(corpus("other"))).document["run"]
    assert write not in runs, "control: another folder of the same content is named as it is called"


def test_images_in_folders(ppdgrow: Command) -> None:
    write_classes(Path("pets"), ["cat", "d\u00f6g"])
    line = "train --layers 2 --steps 6 --no-decay --data pets"
    trained = ppdgrow(f"{line} --out s", *SMALL_IMAGES)
    assert (
        "pets: 32 train, 4 validation images of 8 x 8, 2 classes (cat, d\u00f6g), flipped and cropped at random"
        in trained.stderr
    )
    assert "d\u00f6g" in Path("s/README.md").read_text()
    ppdgrow("grow s --pair ffn --out g --quiet")
    ppdgrow("train g --steps 4 --out t --quiet")
    assert ppdgrow("compare s t --test --json").document["runs"][0]["test"]["class_accuracy"]
    plain = ppdgrow(f"{line} --out p -o data.augment=false", *SMALL_IMAGES)
    assert "flipped" not in plain.stderr
    assert Path("p/metrics.jsonl").read_text() != Path("s/metrics.jsonl").read_text()


def test_a_resumed_run_sees_the_same_augmented_images(ppdgrow: Command) -> None:
    write_classes(Path("pets"))
    line = [
        "train --layers 2 --steps 12 --data pets --quiet -o train.save_every=5 -o train.accumulate=2",
        *SMALL_IMAGES,
    ]
    ppdgrow(*line, "--out", "whole")
    ppdgrow(*line, "--out", "cut")
    shutil.rmtree(Path("cut/checkpoints/step-00000012"))
    ppdgrow(*line, "--out", "cut")
    for name in ("model.safetensors", "trainer_state.safetensors"):
        files = [Path(run) / "checkpoints" / "step-00000012" / name for run in ("whole", "cut")]
        assert files[0].read_bytes() == files[1].read_bytes()


def test_broken_images_are_warned_of_once_each(ppdgrow: Command) -> None:
    write_classes(Path("pets"))
    for number in (3, 5):
        file = Path(f"pets/cat/{number}.png")
        file.write_bytes(file.read_bytes()[:50])
    line = "train --layers 1 --steps 2 --data pets --out s"
    failed = ppdgrow(line, *SMALL_IMAGES, code=4)
    assert failed.stderr.count("\n") == 1
    assert "data.skip_broken" in failed.stderr
    assert not Path("s").exists()
    warned = ppdgrow(line, "-o", "data.skip_broken=true", *SMALL_IMAGES)
    assert warned.stderr.count("warning: skipped") == 2
    assert "pets: 3" in warned.stderr


def test_of_many_skipped_files_a_few_are_named(ppdgrow: Command) -> None:
    path = corpus("words")
    for number in range(40):
        (path / f"{number}.bin").write_bytes(bytes(range(256)))
    told = ppdgrow("train --layers 1 --steps 1 --data words --out s -o data.skip_broken=true", *TINY).stderr
    assert told.count("warning: skipped") == 6
    listed = re.search(r"skipped 35 more: all 40 are listed in '(.*)'", " ".join(told.split()))
    assert listed
    assert Path(listed[1]).read_text().count("is binary") == 40


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_a_column_of_rows_is_trained_and_resumed(ppdgrow: Command, suffix: str) -> None:
    rows = {"csv": "id,text\n" + "1,some text\n" * 600, "jsonl": '{"id": 1, "text": "some text"}\n' * 600}
    Path(f"t.{suffix}").write_text(rows[suffix])
    line = f"train --layers 1 --steps 2 --no-decay --data t.{suffix} --out s"
    told = ppdgrow(line, *TINY).stderr
    assert "5.4 k train, 300 validation tokens" in told
    assert "warning" not in told
    assert "warning" not in ppdgrow("train s --steps 1 --out t").stderr


def test_what_does_nothing_is_said_once(ppdgrow: Command) -> None:
    corpus("words")
    line = "train --layers 1 --steps 1 --data words --out s -o data.image_size=8 -o data.mask_fraction=0.2"
    told = ppdgrow(line, *TINY).stderr
    assert told.count("data.image_size does nothing with data words") == 1
    assert told.count("data.mask_fraction does nothing with data words, task lm") == 1
    assert "data.encoding" not in told
    assert "data.image_size" not in ppdgrow("train s --steps 1 --out t").stderr


def test_runs_recorded_before_augmentation_go_on_without(ppdgrow: Command) -> None:
    write_classes(Path("pets"))
    ppdgrow("train --layers 1 --steps 2 --no-decay --data pets --out s --quiet", *SMALL_IMAGES)
    recipe = Path("s/recipe.yaml")
    recipe.write_text("".join(line for line in recipe.read_text().splitlines(True) if "augment" not in line))
    told = ppdgrow("train s --steps 1 --out t").stderr
    assert "flipped" not in told
    assert "augment: false" in Path("t/recipe.yaml").read_text()


def test_masked_text_and_mlm_in_pieces(ppdgrow: Command) -> None:
    corpus("words")
    line = "train --layers 1 --steps 6 --data words -o model.task=mlm --json"
    losses = [
        ppdgrow(line, "--out", f"s{pieces}", "-o", f"train.accumulate={pieces}", *TINY).document["train_loss"]
        for pieces in (1, 3)
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_json_stays_one_document_with_warnings_about(ppdgrow: Command) -> None:
    write_classes(Path("pets"))
    Path("pets/cat/1.png").write_bytes(b"no image")
    line = "train --layers 1 --steps 1 --data pets --out s --json -o data.skip_broken=true"
    done = ppdgrow(line, *SMALL_IMAGES)
    assert json.loads(done.stdout)["step"] == 1
    assert done.stderr == ""
