"""Text at a path: one file or a folder, encodings, line ends, splits by name or by a cut, and what is refused."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from ppdgrow.config.schema import DataConfig
from ppdgrow.data import canonical_name, open_dataset, resolve_defaults
from ppdgrow.data.local.splits import by_hash
from ppdgrow.data.local.text import LocalText
from ppdgrow.errors import ConfigError, InvalidInputError

CPU = torch.device("cpu")
LINES = "".join(f"line {number} of a text, \u00fcber alles\n" for number in range(1000))


def text_at(path: Path, **options: Any) -> LocalText:
    config = DataConfig.model_validate({"name": str(path), "sequence_length": 16, **options})
    assert resolve_defaults(config) == ("lm", "byte")
    dataset = open_dataset(config, "lm")
    assert isinstance(dataset, LocalText)
    return dataset


def written(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_one_file_is_cut_at_line_ends_into_three_splits_without_loss(tmp_path: Path) -> None:
    dataset = text_at(written(tmp_path / "my text.txt", LINES))
    train, validation, test = (dataset.read(split) for split in ("train", "validation", "test"))
    assert (train + validation + test).decode() == LINES
    assert all(part.endswith(b"\n") for part in (train, validation, test))
    assert 0.88 < len(train) / len(LINES.encode()) < 0.92
    assert 0.03 < len(validation) / len(LINES.encode()) < 0.07
    assert dataset.name == "my text.txt"
    assert dataset.describe().startswith("my text.txt: 28.7 k train, 1.6 k validation tokens, byte")
    assert dataset.identity(3).name == "my text.txt"


def test_a_text_without_line_ends_is_cut_between_characters(tmp_path: Path) -> None:
    text = "\u00e4\u4e2d\U0001f600" * 501
    dataset = text_at(written(tmp_path / "one line", text))
    parts = [dataset.read(split).decode() for split in ("train", "validation", "test")]
    assert "".join(parts) == text
    assert all(parts)


@pytest.mark.parametrize(
    ("raw", "encoding"),
    [
        (LINES.encode(), "utf-8"),
        (b"\xef\xbb\xbf" + LINES.encode(), "utf-8"),
        (LINES.replace("\n", "\r\n").encode(), "utf-8"),
        (LINES.replace("\n", "\r").encode(), "utf-8"),
        (LINES.encode("utf-16"), "utf-16"),
        (LINES.encode("cp1252"), "cp1252"),
        (LINES.encode("latin-1"), "iso-8859-1"),
    ],
)
def test_encodings_marks_and_line_ends_give_the_same_text(tmp_path: Path, raw: bytes, encoding: str) -> None:
    dataset = text_at(written(tmp_path / "a.txt", raw), encoding=encoding)
    assert b"".join(dataset.read(split) for split in ("train", "validation", "test")).decode() == LINES


def test_named_splits_in_files_and_in_folders(tmp_path: Path) -> None:
    parts = {"train": "a\n" * 99, "validation": "b\n" * 99, "test": "c\n" * 99}
    files = {"train": "wiki.train.tokens", "validation": "wiki.valid.tokens", "test": "wiki.test.tokens"}
    folders = {"train": "train/x/1.txt", "validation": "dev/2.txt", "test": "Test/3.txt"}
    for kind, names in (("files", files), ("folders", folders)):
        for split, name in names.items():
            written(tmp_path / kind / name, parts[split])
        written(tmp_path / kind / "README.md", "about")
        written(tmp_path / kind / ".hidden" / "x", b"\0")
        dataset = text_at(tmp_path / kind)
        assert {split: dataset.read(split).decode() for split in parts} == parts  # type: ignore[arg-type]


def test_what_is_not_named_is_cut_off_train_and_a_missing_test_split_is_said(tmp_path: Path) -> None:
    written(tmp_path / "a" / "train.txt", LINES)
    written(tmp_path / "a" / "test.txt", "test\n" * 20)
    dataset = text_at(tmp_path / "a")
    assert (dataset.read("train") + dataset.read("validation")).decode() == LINES
    assert dataset.read("test") == b"test\n" * 20
    written(tmp_path / "b" / "train.txt", LINES)
    written(tmp_path / "b" / "valid.txt", LINES)
    with pytest.raises(InvalidInputError, match=r"splits train, validation and has no test split: add one"):
        text_at(tmp_path / "b").read("test")
    written(tmp_path / "c" / "train-0.txt", LINES)
    parts = [text_at(tmp_path / "c").read(split) for split in ("train", "validation", "test")]
    assert b"".join(parts).decode() == LINES


def test_a_file_in_no_split_beside_named_splits_is_refused(tmp_path: Path) -> None:
    for name in ("train.txt", "valid.txt", "more.txt"):
        written(tmp_path / name, LINES)
    with pytest.raises(
        InvalidInputError, match=r"found 'more\.txt' beside what is named for train, validation: name each"
    ):
        text_at(tmp_path)


@pytest.mark.parametrize("other", ["eval", "dev", "val_set", "testing"])
def test_other_names_of_splits(tmp_path: Path, other: str) -> None:
    written(tmp_path / "train.txt", "train\n" * 50)
    written(tmp_path / f"{other}.txt", "other\n" * 50)
    assert b"other" not in text_at(tmp_path).read("train")


def test_train_and_an_unknown_name_are_not_thrown_together(tmp_path: Path) -> None:
    written(tmp_path / "a" / "train.txt", LINES)
    written(tmp_path / "a" / "gold.txt", LINES)
    with pytest.raises(InvalidInputError, match=r"found 'gold\.txt' beside what is named for train"):
        text_at(tmp_path / "a")
    written(tmp_path / "b" / "valid.txt", LINES)
    written(tmp_path / "b" / "test.txt", LINES)
    with pytest.raises(InvalidInputError, match=r"found the splits test, validation and none that is called train"):
        text_at(tmp_path / "b")


def test_splits_that_lie_deeper(tmp_path: Path) -> None:
    for name, text in (("train", "a"), ("valid", "b"), ("test", "c")):
        written(tmp_path / "en" / f"{name}.txt", f"{text}\n" * 50)
    dataset = text_at(tmp_path)
    assert dataset.read("train") == b"a\n" * 50
    assert dataset.read("test") == b"c\n" * 50


def test_runs_of_the_program_below_the_data_are_no_data(tmp_path: Path) -> None:
    written(tmp_path / "a.txt", LINES)
    for name in ("recipe.yaml", "growth.jsonl", "checkpoints/step-00000001/model.safetensors"):
        written(tmp_path / "runs" / "r" / name, BINARY)
    parts = [text_at(tmp_path).read(split) for split in ("train", "validation", "test")]
    assert b"".join(parts).decode() == LINES
    (tmp_path / "runs" / "r" / "growth.jsonl").unlink()
    with pytest.raises(InvalidInputError, match="is binary"):
        text_at(tmp_path).read("train")


def test_rows_of_a_table_as_text_are_said(tmp_path: Path) -> None:
    written(tmp_path / "a.jsonl", '{"text": "x"}\n' * 100)
    written(tmp_path / "a.txt", LINES)
    assert text_at(tmp_path).warnings[0].startswith("'a.jsonl' read as plain text, names of columns and all: name one")
    assert text_at(written(tmp_path / "b" / "b.txt", LINES)).warnings == []


def test_one_long_line_with_a_line_end_near_its_end_has_all_splits(tmp_path: Path) -> None:
    dataset = text_at(written(tmp_path / "long.txt", "word " * 4000 + "\n" + "tail " * 100))
    assert all(len(dataset.read(split)) > 500 for split in ("train", "validation", "test"))


def test_half_characters_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="is not unicode_escape text"):
        text_at(written(tmp_path / "e.txt", "\\ud800 text\n" * 100), encoding="unicode_escape").read("train")


def test_a_data_directory_that_is_none_is_said_although_the_path_exists(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="is not a folder"):
        text_at(written(tmp_path / "a.txt", LINES), directory=str(tmp_path / "gone"))


def test_a_folder_of_code_has_no_splits_by_accident(tmp_path: Path) -> None:
    names = ["src/train.py", "src/model.py", "tests/test_model.py"]
    for name in names:
        written(tmp_path / name, f"# {name}\n" * 200)
    dataset = text_at(tmp_path)
    whole = b"".join(dataset.read(split) for split in ("train", "validation", "test")).decode()
    assert whole == "\n".join(f"# {name}\n" * 200 for name in sorted(names, key=by_hash))
    assert dataset.warnings == []
    written(tmp_path / "test.py", "# test\n" * 200)
    assert text_at(tmp_path).warnings == ["'test.py' is named for a split, and read like the others, which are not"]


def test_identity_follows_the_content_and_not_the_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x").mkdir()
    here = written(tmp_path / "x" / "t.txt", LINES)
    monkeypatch.chdir(tmp_path)
    identities = []
    for name in (str(here), "x/t.txt"):
        dataset = text_at(Path(name))
        dataset.describe()
        identities.append(dataset.identity(4))
    written(here, "more\n" + LINES)
    changed = text_at(here)
    changed.describe()
    assert identities[0] == identities[1] != changed.identity(4)


def test_a_relative_path_is_also_looked_for_below_the_data_directory(tmp_path: Path) -> None:
    written(tmp_path / "data" / "deep" / "t.txt", LINES)
    for name in ("deep/t.txt", "/gone/elsewhere/t.txt"):
        directory = tmp_path / "data" / ("" if name.startswith("deep") else "deep")
        assert text_at(Path(name), directory=str(directory)).read("train")


@pytest.mark.parametrize(
    ("given", "canonical"),
    [
        ("corpus/", "corpus"),
        ("./corpus//x/../y", "corpus/y"),
        ("digits", "digits"),
        ("./digits/", "./digits"),
        ("/a/b/", "/a/b"),
        ("my corpus", "my corpus"),
    ],
)
def test_one_spelling_of_a_path(given: str, canonical: str) -> None:
    assert canonical_name(given) == canonical == canonical_name(canonical)


BINARY = bytes(range(256)) * 8


def test_a_binary_file_among_text_is_named_or_skipped(tmp_path: Path) -> None:
    for number in range(3):
        written(tmp_path / f"{number}.txt", LINES)
    written(tmp_path / "logo [1].ico", BINARY)
    with pytest.raises(InvalidInputError, match=r"logo \[1\]\.ico' is binary.*leave it out.*data\.skip_broken") as info:
        text_at(tmp_path).describe()
    assert "\n" not in str(info.value)
    dataset = text_at(tmp_path, skip_broken=True)
    dataset.describe()
    assert len(dataset.warnings) == 1
    assert dataset.warnings[0].startswith("skipped: ")
    assert "logo [1].ico" in dataset.warnings[0]


def use(path: Path, options: dict[str, Any]) -> None:
    dataset = text_at(path, **options)
    dataset.batches("train", batch_size=4, seed=0, device=CPU)
    dataset.evaluation("validation", batch_size=4, num_batches=1, device=CPU)


def test_files_that_are_skipped_in_several_splits_are_told_once_each(tmp_path: Path) -> None:
    for split in ("train", "valid"):
        written(tmp_path / split / "a.txt", LINES)
        written(tmp_path / split / f"{split}.ico", BINARY)
    dataset = text_at(tmp_path, skip_broken=True)
    dataset.describe()
    assert [warning.count(".ico") for warning in dataset.warnings] == [1, 1]
    assert len(set(dataset.warnings)) == 2


def refused(path: Path, match: str, **options: Any) -> None:
    with pytest.raises((InvalidInputError, ConfigError), match=match) as info:
        use(path, options)
    assert str(info.value).count("\n") == 0


def test_bad_text(tmp_path: Path) -> None:
    refused(tmp_path / "gone", r"does not exist")
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", r"holds no files")
    refused(written(tmp_path / "e.txt", b""), r"no file could be read: 'e\.txt' is empty; use other data")
    written(tmp_path / "m" / "e.txt", b"")
    says = r"no file could be read: '.*bin' is binary, expected text.*; 'e\.txt' is empty; use other data"
    refused(written(tmp_path / "m" / "a.bin", BINARY).parent, says, skip_broken=True)
    written(tmp_path / "m" / "s.txt", b"short")
    refused(tmp_path / "m", r"found \d tokens beside 1 skipped files, expected at least 17", skip_broken=True)
    for split in ("train", "valid"):
        written(tmp_path / "v" / split / "a.txt", LINES if split == "train" else b"")
    refused(tmp_path / "v", r"no file of validation could be read: 'valid/a\.txt' is empty")
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
    refused(written(tmp_path / "p.txt", pointer), r"'.*p\.txt' is a git-lfs pointer.*`git lfs pull`")
    refused(written(tmp_path / "s.txt", b"short"), r"at least 17 for one sequence: lower data\.sequence_length")
    refused(written(tmp_path / "bin", BINARY), r"'.*bin' is binary")
    refused(written(tmp_path / "l.txt", LINES.encode("cp1252")), r"not utf-8 text \(byte 0xfc.*data\.encoding=cp1252")
    refused(written(tmp_path / "u.txt", LINES.encode("utf-16")), r"not utf-8 text.*data\.encoding=utf-16")
    refused(written(tmp_path / "odd.txt", LINES.encode()[:-1]), r"not utf-32 text.*data\.encoding=", encoding="utf-32")
    refused(written(tmp_path / "nul.txt", LINES + "\0" + LINES), r"binary \(a zero byte\)")
    os.mkfifo(tmp_path / "pipe")
    refused(tmp_path / "pipe", r"neither a file nor a folder")
    with pytest.raises(ConfigError, match=r"data\.name is ' ', expected one of"):
        resolve_defaults(DataConfig(name=" "))
    refused(Path("\0"), r"a path to your own")
    refused(Path("x" * 5000), r"cannot read|expected one of")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_unreadable_files_and_folders(tmp_path: Path) -> None:
    written(tmp_path / "a" / "x.txt", LINES).chmod(0)
    refused(tmp_path / "a", r"cannot read .*x\.txt.*Permission denied")


def test_read_only_data_is_enough(tmp_path: Path) -> None:
    written(tmp_path / "a" / "x.txt", LINES).chmod(0o444)
    (tmp_path / "a").chmod(0o555)
    text_at(tmp_path / "a", tokenizer="bpe:300").describe()
    assert [entry.name for entry in (tmp_path / "a").iterdir()] == ["x.txt"]
    (tmp_path / "a").chmod(0o755)
