"""Parquet files and saved data sets: columns that are named, guessed or refused; splits; classes with names."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from local_images import write_image

from ppdgrow.config.schema import DataConfig
from ppdgrow.data import Dataset, Split, open_dataset, resolve_defaults
from ppdgrow.data.images import ImageDataset
from ppdgrow.data.text import TextDataset
from ppdgrow.errors import ConfigError, InvalidInputError

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12345\n"
SPLITS: tuple[Split, ...] = ("train", "validation", "test")
ROWS = [f"row {number}\nof text" for number in range(100)]


def opened(path: Path, **options: Any) -> Dataset:
    config = DataConfig.model_validate({"name": str(path), **options})
    return open_dataset(config, resolve_defaults(config)[0])


def parquet(path: Path, **columns: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)
    return path


def whole(dataset: Dataset) -> str:
    assert isinstance(dataset, TextDataset)
    return b"".join(dataset.read(split) for split in SPLITS).decode()


@pytest.fixture
def pictures(tmp_path: Path) -> list[bytes]:
    return [write_image(tmp_path / "pictures" / f"{n}.png", seed=n).read_bytes() for n in range(20)]


def test_a_column_of_text_by_name_by_type_and_by_choice(tmp_path: Path) -> None:
    expected = "\n".join(ROWS) + "\n"
    assert whole(opened(parquet(tmp_path / "a.parquet", id=range(100), title=["t"] * 100, text=ROWS))) == expected
    assert whole(opened(parquet(tmp_path / "b.parquet", n=range(100), poem=ROWS))) == expected
    two = parquet(tmp_path / "c.parquet", verse=ROWS, prose=["x"] * 100)
    with pytest.raises(
        ConfigError, match=r"columns 'verse \(string\)', 'prose \(string\)', of which none is clearly the text"
    ):
        opened(two)
    assert whole(opened(two, text_column="verse")) == expected
    with pytest.raises(ConfigError, match=r"data\.text_column is 'vers', which is not there .*one of 'verse', 'prose'"):
        opened(two, text_column="vers")
    numbers = parquet(tmp_path / "d.parquet", n=range(100))
    with pytest.raises(ConfigError, match=r"data\.text_column is 'n', which is of type int64"):
        opened(numbers, text_column="n")


def test_nulls_are_left_out_and_line_ends_are_newlines(tmp_path: Path) -> None:
    dataset = opened(parquet(tmp_path / "a.parquet", text=["one\r\n", None, "", "two"] * 50))
    assert whole(dataset) == "one\ntwo\n" * 50
    assert dataset.warnings == ["left out 100 of 200 rows that have no text in 'text'"]


def test_named_parquet_files_are_splits(tmp_path: Path) -> None:
    for name, text in (("train-00000-of-00002", "a"), ("train-00001-of-00002", "b"), ("test-00000-of-00001", "c")):
        parquet(tmp_path / "data" / f"{name}.parquet", text=[text] * 40)
    (tmp_path / "README.md").write_text("card")
    dataset = opened(tmp_path)
    assert isinstance(dataset, TextDataset)
    assert (dataset.read("train") + dataset.read("validation")).decode() == "a\n" * 40 + "b\n" * 40
    assert dataset.read("test").decode() == "c\n" * 40


@pytest.mark.parametrize("labels", [[0, 1] * 10, ["dog", "cat"] * 10, [True, False] * 10])
@pytest.mark.parametrize("struct", [True, False])
def test_images_with_labels(tmp_path: Path, pictures: list[bytes], labels: list[Any], struct: bool) -> None:
    column = [{"bytes": picture, "path": None} for picture in pictures] if struct else pictures
    dataset = opened(parquet(tmp_path / "p.parquet", img=column, label=labels))
    assert isinstance(dataset, ImageDataset)
    assert dataset.class_names == tuple(sorted({str(label) for label in labels}))
    assert [len(dataset.images(split).labels) for split in SPLITS] == [16, 2, 2]


def test_what_labels_can_be_wrong(tmp_path: Path, pictures: list[bytes]) -> None:
    with pytest.raises(ConfigError, match=r"found images in 'img' and no labels.*data\.label_column=NAME"):
        opened(parquet(tmp_path / "a.parquet", img=pictures, kind=[0, 1] * 10))
    named = opened(tmp_path / "a.parquet", label_column="kind")
    assert isinstance(named, ImageDataset)
    assert named.class_names == ("0", "1")
    with pytest.raises(InvalidInputError, match=r"row 3 has the label None, expected a whole number or a name"):
        opened(parquet(tmp_path / "b.parquet", img=pictures, label=[0, 1, 0, None] * 5))
    with pytest.raises(ConfigError, match=r"data\.label_column is 'label', which is of type double"):
        opened(parquet(tmp_path / "c.parquet", img=pictures, label=[0.5] * 20), label_column="label")
    empty = opened(parquet(tmp_path / "d.parquet", img=[*pictures[:19], None], label=[0, 1] * 10))
    with pytest.raises(InvalidInputError, match=r"'d\.parquet row 19' cannot be read \(the row has no bytes"):
        [empty.images(split) for split in SPLITS]  # type: ignore[attr-defined]


def test_classes_are_matched_by_name_across_tables(tmp_path: Path, pictures: list[bytes]) -> None:
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    folder = tmp_path / "set"
    folder.mkdir()

    def saved(name: str, classes: list[str], labels: list[int]) -> None:
        features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=classes)})
        rows = {"image": [{"bytes": picture, "path": None} for picture in pictures], "label": labels}
        datasets.Dataset.from_dict(rows, features=features).to_parquet(str(folder / f"{name}.parquet"))

    saved("train", ["dark", "light", "grey"], [0, 1] * 10)
    dataset = opened(folder)
    dataset.describe()
    assert dataset.warnings == ["no image has the class 'grey', which the table names"]
    saved("validation", ["light", "grey"], [0, 1] * 10)
    with pytest.raises(InvalidInputError, match="the class 'grey' has no image in the training split"):
        opened(folder).describe()
    saved("train", ["dark", "light"], [0, 1] * 10)
    saved("validation", ["light", "dark"], [0, 1] * 10)
    dataset = opened(folder)
    assert isinstance(dataset, ImageDataset)
    assert dataset.class_names == ("dark", "light")
    assert dataset.images("train").labels.tolist() == [0, 1] * 10
    assert dataset.images("validation").labels.tolist() == [1, 0] * 10
    parquet(folder / "test.parquet", image=pictures, label=[0, 1] * 10)
    with pytest.raises(InvalidInputError, match="some tables name the classes of 'label' and others do not"):
        opened(folder)


def test_a_test_split_without_labels_stops_only_who_reads_it(tmp_path: Path, pictures: list[bytes]) -> None:
    parquet(tmp_path / "set" / "train.parquet", image=pictures, label=[0, 1] * 10)
    parquet(tmp_path / "set" / "test.parquet", image=pictures, label=[-1] * 20)
    dataset = opened(tmp_path / "set")
    assert isinstance(dataset, ImageDataset)
    assert dataset.class_names == ("0", "1")
    assert len(dataset.images("train").labels) == 18
    says = r"no image for the test split among 0; left out 20 of 20 rows of test whose 'label' is -1, the mark"
    with pytest.raises(InvalidInputError, match=says):
        dataset.images("test")
    parquet(tmp_path / "set" / "test.parquet", image=pictures, label=[0, 7] * 10)
    says = r"class '7' has no image in the training split \(found 'test\.parquet row 1', .* and 7 more\)"
    with pytest.raises(InvalidInputError, match=says):
        opened(tmp_path / "set").images("test")  # type: ignore[attr-defined]


def test_rows_without_a_label_are_left_out_and_said(tmp_path: Path, pictures: list[bytes]) -> None:
    dataset = opened(parquet(tmp_path / "a.parquet", image=pictures, label=[0, 1, 0, -1] * 5))
    assert isinstance(dataset, ImageDataset)
    assert dataset.class_names == ("0", "1")
    assert sum(len(dataset.images(split).labels) for split in SPLITS) == 15
    assert dataset.warnings == ["left out 5 of 20 rows whose 'label' is -1, the mark of no label"]
    signed = opened(parquet(tmp_path / "b.parquet", image=pictures, label=[-1, 1] * 10))
    assert isinstance(signed, ImageDataset)
    assert (signed.class_names, signed.warnings) == (("-1", "1"), [])
    for name, labels in (("c", [-1] * 20), ("d", [-1, 0] * 10)):
        with pytest.raises(InvalidInputError, match=r"found (no class|the one class '0'); left out (20|10) of 20 rows"):
            opened(parquet(tmp_path / f"{name}.parquet", image=pictures, label=labels))


def test_which_of_several_columns_was_taken_is_said(tmp_path: Path, pictures: list[bytes]) -> None:
    columns = {"img": pictures, "fine_label": [0, 1] * 10, "coarse_label": [1, 0] * 10, "size": [8] * 20}
    dataset = opened(parquet(tmp_path / "a.parquet", **columns))
    assert dataset.warnings == [
        "label taken from the column 'fine_label', not from 'coarse_label' (set data.label_column to choose)"
    ]
    assert opened(tmp_path / "a.parquet", label_column="coarse_label").warnings == []
    texts = parquet(tmp_path / "b.parquet", text=ROWS, content=ROWS, title=["t"] * 100)
    assert opened(texts).warnings[0].startswith("text taken from the column 'text', not from 'content'")
    assert opened(texts, text_column="title").warnings == []
    assert opened(parquet(tmp_path / "c.parquet", n=range(100), poem=ROWS)).warnings == [
        "text taken from the column 'poem' (set data.text_column to choose)"
    ]


def test_bytes_that_are_called_text_are_text(tmp_path: Path) -> None:
    expected = "\n".join(ROWS) + "\n"
    encoded = [row.encode() for row in ROWS]
    assert whole(opened(parquet(tmp_path / "a.parquet", text=encoded, label=[0, 1] * 50))) == expected
    assert whole(opened(parquet(tmp_path / "b.parquet", raw=encoded), text_column="raw")) == expected
    with pytest.raises(ConfigError, match=r"found images in 'raw' and no labels.*data\.text_column=NAME"):
        opened(tmp_path / "b.parquet")
    with pytest.raises(InvalidInputError, match=r"cannot read .*c\.parquet.*can't decode byte 0xff"):
        whole(opened(parquet(tmp_path / "c.parquet", text=[b"\xff"] * 50)))


def test_images_by_their_paths(tmp_path: Path, pictures: list[bytes]) -> None:
    paths = [f"pictures/{number}.png" for number in range(20)]
    labels = [0, 1] * 10
    expected = opened(parquet(tmp_path / "bytes.parquet", image=pictures, label=labels))
    structs = parquet(tmp_path / "structs.parquet", image=[{"path": path} for path in paths], label=labels)
    empty = parquet(tmp_path / "e.parquet", image=[{"bytes": None, "path": path} for path in paths], label=labels)
    (tmp_path / "t.csv").write_text("\n".join(["file_name,label", *map("{},{}".format, paths, labels)]))
    rows = (json.dumps({"image": path, "label": label}) + "\n" for path, label in zip(paths, labels, strict=True))
    (tmp_path / "t.jsonl").write_text("".join(rows))
    for path in (structs, empty, tmp_path / "t.csv", tmp_path / "t.jsonl"):
        dataset = opened(path)
        assert isinstance(dataset, ImageDataset)
        assert isinstance(expected, ImageDataset)
        assert dataset.class_names == ("0", "1")
        found = sum(int(dataset.images(split).pixels.sum()) for split in SPLITS)
        assert found == sum(int(expected.images(split).pixels.sum()) for split in SPLITS)
    (tmp_path / "pictures" / "3.png").unlink()
    says = r"row 3' cannot be read \(the row has only the path 'pictures/3\.png', and no file is there\)"
    with pytest.raises(InvalidInputError, match=says):
        opened(structs).describe()


@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl", "ndjson"])
def test_columns_of_rows_as_text(tmp_path: Path, suffix: str) -> None:
    rows = ["plain", 'with "quotes", and\nlines', "\u00fcber; alles", "x" * 2_000_000]
    file = tmp_path / f"t.{suffix}"
    if suffix in ("csv", "tsv"):
        with file.open("w", newline="") as opened_file:
            writer = csv.writer(opened_file, delimiter="," if suffix == "csv" else "\t")
            writer.writerows([("id", "text"), *enumerate(rows)])
    else:
        lines = (json.dumps({"id": n, "text": row, "meta": {"path": "a.py"}}) + "\n" for n, row in enumerate(rows))
        file.write_text("".join(lines))
    dataset = opened(file)
    assert whole(dataset) == "\n".join(rows) + "\n"
    assert dataset.warnings == []
    assert "encoding" in dataset.keys
    file.write_bytes(b"\xff\xfe" + file.read_text().encode("utf-16-le"))
    assert whole(opened(file, encoding="utf-16")) == "\n".join(rows) + "\n"
    with pytest.raises(InvalidInputError, match=r"not utf-8 text.*data\.encoding=utf-16"):
        opened(file)


def test_named_files_of_rows_are_splits_and_what_else_lies_there_is_said(tmp_path: Path) -> None:
    for name, text in (("train", "a"), ("valid", "b"), ("test", "c")):
        (tmp_path / f"{name}.csv").write_text("label;text\n" + f"1;{text}\n" * 40)
    for name in ("README.md", "citation.csv", "notes.txt"):
        (tmp_path / name).write_text("about")
    dataset = opened(tmp_path)
    assert isinstance(dataset, TextDataset)
    assert [dataset.read(split) for split in SPLITS] == [b"a\n" * 40, b"b\n" * 40, b"c\n" * 40]
    assert dataset.warnings == ["left out what is no table of that kind: 'notes.txt'"]
    (tmp_path / "valid.csv").unlink()
    (tmp_path / "train.csv").rename(tmp_path / "rows.csv")
    with pytest.raises(InvalidInputError, match=r"found 'rows\.csv' beside what is named for test"):
        opened(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.csv", "", "Empty CSV file"),
        ("a.jsonl", "", "Empty JSON file"),
        ("a.csv", "a,text\n1,2\n1,2,3\n", "Row #3: Expected 2 columns, got 3"),
        ("a.jsonl", '{"text": "a"}\n{"text"', "JSON parse error: Missing a colon"),
        ("a.jsonl", '[{"text": "a"}]\n', "changed from object to array"),
        ("a.csv", "text,text\na,b\n", "two columns have one name"),
        ("a.csv", "verse,prose\nx,y\n", "columns 'verse (string)', 'prose (string)', of which none is clearly"),
        ("a.csv", POINTER, "a.csv' is a git-lfs pointer, not the file itself: fetch it with `git lfs pull`"),
        ("a.jsonl", POINTER, "a.jsonl' is a git-lfs pointer"),
        ("a.parquet", POINTER, "a.parquet' is a git-lfs pointer"),
        ("dataset_info.json", POINTER, "dataset_info.json' is a git-lfs pointer"),
        ("a.csv", "a\0b,c\n1,2\n", "is binary"),
    ],
)
def test_bad_rows(tmp_path: Path, name: str, content: str, says: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises((InvalidInputError, ConfigError), match=re.escape(says)) as info:
        opened(tmp_path)
    assert "\n" not in str(info.value)


def test_odd_columns(tmp_path: Path, pictures: list[bytes]) -> None:
    categories = pa.array(ROWS).dictionary_encode()
    assert whole(opened(parquet(tmp_path / "a.parquet", text=categories))) == "\n".join(ROWS) + "\n"
    named = opened(parquet(tmp_path / "b.parquet", image=pictures, label=pa.array(["x", "y"] * 10).dictionary_encode()))
    assert isinstance(named, ImageDataset)
    assert named.class_names == ("x", "y")
    with pytest.raises(
        ConfigError, match=r"no labels among the columns 'image \(binary\)', 'label \(double\)', expected"
    ):
        opened(parquet(tmp_path / "c.parquet", image=pictures, label=[0.0, 1.0] * 10))
    with pytest.raises(ConfigError, match=r"'text \(list<element: string>\)', of which none is clearly the text"):
        opened(parquet(tmp_path / "d.parquet", text=[["a"]] * 9))
    twice = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["text", "text"])
    pq.write_table(twice, tmp_path / "e.parquet")
    with pytest.raises(InvalidInputError, match="two columns have one name"):
        opened(tmp_path / "e.parquet")
    broken = pa.array([b"\xff\xfe bad"] * 50).view(pa.string())
    with pytest.raises(InvalidInputError, match=r"cannot read .*f\.parquet"):
        whole(opened(parquet(tmp_path / "f.parquet", text=broken)))
    with pytest.raises(InvalidInputError, match="found 9 rows and no text in the column 'text'"):
        whole(opened(parquet(tmp_path / "g.parquet", text=pa.array([None] * 9, pa.string()))))


def test_damaged_parquet(tmp_path: Path) -> None:
    good = parquet(tmp_path / "a.parquet", text=ROWS)
    for size in (0, 5, good.stat().st_size - 10):
        cut = tmp_path / f"cut{size}.parquet"
        cut.write_bytes(good.read_bytes()[:size])
        with pytest.raises(InvalidInputError, match=rf"cannot read .*cut{size}\.parquet") as info:
            opened(cut)
        assert "\n" not in str(info.value)
    parquet(tmp_path / "two" / "a.parquet", text=ROWS)
    parquet(tmp_path / "two" / "b.parquet", prose=ROWS)
    with pytest.raises(InvalidInputError, match=r"has no column 'text' as the other tables have"):
        whole(opened(tmp_path / "two"))


def test_saved_data_sets(tmp_path: Path, pictures: list[bytes]) -> None:
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    texts = datasets.Dataset.from_dict({"text": ROWS})
    texts.select(range(99, -1, -1)).save_to_disk(str(tmp_path / "texts"))
    assert whole(opened(tmp_path / "texts")) == "\n".join(reversed(ROWS)) + "\n"
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["dog", "cat"])})
    rows = {"image": [{"bytes": picture, "path": None} for picture in pictures], "label": [0, 1] * 10}
    images = datasets.Dataset.from_dict(rows, features=features)
    datasets.DatasetDict(train=images, dev=images.select(range(5))).save_to_disk(str(tmp_path / "images"))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    dataset = opened(tmp_path / "images")
    assert isinstance(dataset, ImageDataset)
    assert dataset.class_names == ("dog", "cat"), "in the order of their numbers, not of the alphabet"
    assert dataset.images("validation").labels.tolist() == [0, 1, 0, 1, 0]
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    (tmp_path / "images" / "train" / "state.json").write_text("{")
    with pytest.raises(InvalidInputError, match=r"the saved data set cannot be read") as info:
        opened(tmp_path / "images")
    assert "\n" not in str(info.value)
