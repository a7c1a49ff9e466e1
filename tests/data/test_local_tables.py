"""Parquet files and saved data sets: columns that are named, guessed or refused; splits; classes with names."""

from __future__ import annotations

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
    assert dataset.classes == tuple(sorted({str(label) for label in labels}))
    assert [len(dataset.images(split).labels) for split in SPLITS] == [16, 2, 2]


def test_what_labels_can_be_wrong(tmp_path: Path, pictures: list[bytes]) -> None:
    with pytest.raises(ConfigError, match=r"found images in 'img' and no labels.*data\.label_column=NAME"):
        opened(parquet(tmp_path / "a.parquet", img=pictures, kind=[0, 1] * 10))
    named = opened(tmp_path / "a.parquet", label_column="kind")
    assert isinstance(named, ImageDataset)
    assert named.classes == ("0", "1")
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

    saved("train", ["dark", "light"], [0, 1] * 10)
    saved("validation", ["light", "dark"], [0, 1] * 10)
    dataset = opened(folder)
    assert isinstance(dataset, ImageDataset)
    assert dataset.classes == ("dark", "light")
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
    assert dataset.classes == ("0", "1")
    assert len(dataset.images("train").labels) == 18
    with pytest.raises(InvalidInputError, match=r"the label '-1' in test does not occur in the training data"):
        dataset.images("test")


def test_odd_columns(tmp_path: Path, pictures: list[bytes]) -> None:
    categories = pa.array(ROWS).dictionary_encode()
    assert whole(opened(parquet(tmp_path / "a.parquet", text=categories))) == "\n".join(ROWS) + "\n"
    named = opened(parquet(tmp_path / "b.parquet", image=pictures, label=pa.array(["x", "y"] * 10).dictionary_encode()))
    assert isinstance(named, ImageDataset)
    assert named.classes == ("x", "y")
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
    assert dataset.classes == ("dog", "cat"), "in the order of their numbers, not of the alphabet"
    assert dataset.images("validation").labels.tolist() == [0, 1, 0, 1, 0]
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    (tmp_path / "images" / "train" / "state.json").write_text("{")
    with pytest.raises(InvalidInputError, match=r"the saved data set cannot be read") as info:
        opened(tmp_path / "images")
    assert "\n" not in str(info.value)
