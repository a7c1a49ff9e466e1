"""Text: splits of the standard library, tokenisers and their figures, identities."""

from __future__ import annotations

import hashlib
import sysconfig
from pathlib import Path

import pytest
import torch

from ppdgrow.config.schema import DataConfig
from ppdgrow.data import Dataset, open_dataset
from ppdgrow.data.named import Stdlib, WikiText2
from ppdgrow.data.text import TextDataset
from ppdgrow.data.tokenization import CHUNK_CHARACTERS, load_tokenizer, make_tokenizer
from ppdgrow.errors import InvalidInputError

CPU = torch.device("cpu")
# Line ends next to spaces are where a tokenizer that looks across lines would differ between chunks.
TEXT = "\n".join(
    f"def f{number}(x):  \n    return x + {number}  # \u00fc \u4e2d\n\n\n \n\t" for number in range(600)
).encode()
SPECS = ["byte", "bpe:300", "word"]


def text_dataset(folder: Path, tokenizer: str, **options: object) -> TextDataset:
    dataset = open_dataset(
        DataConfig.model_validate({"name": "wikitext2", "tokenizer": tokenizer, "directory": str(folder), **options}),
        "lm",
    )
    assert isinstance(dataset, TextDataset)
    return dataset


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "wikitext-2").mkdir()
    for index, name in enumerate(("train", "valid")):
        (tmp_path / "wikitext-2" / f"{name}.txt").write_bytes(TEXT[index * 1000 :])
    return tmp_path


@pytest.mark.parametrize("spec", SPECS)
def test_chunks_do_not_change_the_ids(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(TEXT) > 5 * CHUNK_CHARACTERS
    tokenizer = make_tokenizer(spec, lambda: TEXT)
    expected = tokenizer.encode(TEXT, "text").tolist()
    for size in (1, 100, 10**9):
        monkeypatch.setattr("ppdgrow.data.tokenization.CHUNK_CHARACTERS", size)
        assert tokenizer.encode(TEXT, "text").tolist() == expected
    assert 0 <= min(expected) <= max(expected) < tokenizer.size


@pytest.mark.parametrize("spec", ["bpe:300", "word"])
def test_training_is_deterministic_and_kept_in_json(spec: str) -> None:
    first, second = make_tokenizer(spec, lambda: TEXT), make_tokenizer(spec, lambda: TEXT)
    assert first.json is not None
    assert first.json == second.json
    other = make_tokenizer(spec, lambda: TEXT.replace(b"def", b"class"))
    assert other.json != first.json
    loaded = load_tokenizer(first.json)
    assert loaded.size == first.size
    assert loaded.encode(TEXT, "text").tolist() == first.encode(TEXT, "text").tolist()


def test_bytes_and_bpe_give_the_text_back() -> None:
    from tokenizers import Tokenizer

    unseen = "never seen: \U0001f600 \u00e9\r\n\x00 \t end".encode()
    for text in (TEXT, unseen):
        assert bytes(make_tokenizer("byte", lambda: b"").encode(text, "text").tolist()) == text
        bpe = make_tokenizer("bpe:300", lambda: TEXT)
        assert bpe.size == 300
        assert bpe.json is not None
        decoded = Tokenizer.from_str(bpe.json).decode(bpe.encode(text, "text").tolist(), skip_special_tokens=False)
        assert decoded.encode() == text


def test_words_line_ends_and_unknown_words() -> None:
    tokenizer = make_tokenizer("word", lambda: b"a b a\nc  a\n")
    ids = tokenizer.encode(b"a b a\nc zzz\n", "text").tolist()
    assert tokenizer.size == 5  # a, <eos>, b, c and <unk>, which the text lacks
    assert ids == [0, 2, 0, 1, 3, 4, 1]
    own = make_tokenizer("word", lambda: b"a <unk> a\n")
    assert own.size == 3
    unknown, eos = own.encode(b"<unk>\n", "text").tolist()
    assert own.encode(b"zzz\n", "text").tolist() == [unknown, eos]


@pytest.mark.parametrize(
    ("spec", "size", "train", "validation"),
    [("byte", 256, 10_797_148, 1_121_681), ("word", 33_278, 2_088_628, 217_646), ("bpe:4096", 4096, None, None)],
)
def test_wikitext_has_the_published_figures(
    real_data: Path, spec: str, size: int, train: int | None, validation: int | None
) -> None:
    dataset = text_dataset(real_data, spec)
    assert dataset.input_spec(4).vocabulary_size == size
    counts = [len(dataset.stream(split).tokens) for split in ("train", "validation")]
    if train is not None:
        assert counts == [train, validation]
    assert dataset.bytes_per_token("validation") == 1_121_681 / counts[1]
    assert dataset.describe().endswith(f" validation tokens, {spec}")
    digests = {
        split: hashlib.sha256((real_data / "wikitext-2" / file).read_bytes()).hexdigest()
        for split, file in (("train", "train.txt"), ("validation", "valid.txt"))
    }
    assert dataset.identity(7).sha256 == digests


def test_rows_of_the_hub_are_the_official_file(real_data: Path) -> None:
    official = (real_data / "wikitext-2" / "valid.txt").read_bytes()
    rows = [row if row.strip() else "" for row in official.decode().splitlines(keepends=True)]
    assert rows.count("") > 100
    assert WikiText2.join_rows(rows) == official


@pytest.mark.parametrize("spec", SPECS)
def test_validation_of_a_checkpoint_touches_no_other_split(folder: Path, spec: str) -> None:
    trained = text_dataset(folder, spec)
    expected = trained.evaluation("validation", batch_size=4, num_batches=2, device=CPU)
    (folder / "wikitext-2" / "train.txt").unlink()
    config = DataConfig(name="wikitext2", tokenizer=spec, directory=str(folder))
    found = open_dataset(config, "lm", trained.tokenizer_json)
    assert (trained.tokenizer_json is None) == (spec == "byte")
    assert found.input_spec(4) == trained.input_spec(4)
    for first, second in zip(
        expected, found.evaluation("validation", batch_size=4, num_batches=2, device=CPU), strict=True
    ):
        assert torch.equal(first.inputs, second.inputs)
    assert set(found.identity(8).sha256) == {"validation"}
    with pytest.raises(InvalidInputError, match=r"train\.txt"):
        found.batches("train", batch_size=1, seed=0, device=CPU)


def test_mlm_has_a_mask_token_and_no_bits_per_byte(folder: Path) -> None:
    config = DataConfig(name="wikitext2", tokenizer="byte", directory=str(folder))
    lm, mlm = (open_dataset(config, task) for task in ("lm", "mlm"))
    assert (lm.input_spec(4).vocabulary_size, mlm.input_spec(4).vocabulary_size) == (256, 257)  # type: ignore[union-attr]
    assert (lm.bytes_per_token("validation"), mlm.bytes_per_token("validation")) == (1.0, None)
    batch = mlm.batches("train", batch_size=64, seed=0, device=CPU).at(1)
    assert int(batch.inputs.max()) == 256
    assert int(batch.targets.max()) < 256


def test_sources_of_python_are_dealt_to_three_splits() -> None:
    names = Stdlib.source_files(Path(sysconfig.get_path("stdlib")))
    assert names == sorted(set(names))
    assert "os.py" in names
    assert "json/decoder.py" in names
    assert not [name for name in names if {"site-packages", "test", "tests", "idlelib"} & set(name.split("/"))]
    shares = {
        split: sum(Stdlib.split_of(name) == split for name in names) / len(names) for split in ("validation", "test")
    }
    assert all(0.02 < share < 0.1 for share in shares.values())

    dataset = open_dataset(DataConfig(tokenizer="byte"), "lm")
    assert isinstance(dataset, Stdlib)
    texts = {split: dataset.read(split) for split in ("train", "validation", "test")}
    assert len(texts["train"]) > 2_000_000
    assert texts["train"] == dataset.read("train")
    source = (Path(sysconfig.get_path("stdlib")) / "os.py").read_bytes()
    assert [split for split, text in texts.items() if source in text] == [Stdlib.split_of("os.py")]


def test_a_python_without_sources_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    dataset: Dataset = open_dataset(DataConfig(tokenizer="byte"), "lm")
    with pytest.raises(InvalidInputError, match=r"stdlib: found no sources .*--data wikitext2"):
        dataset.describe()


def test_a_git_lfs_pointer_is_no_text(folder: Path) -> None:
    (folder / "wikitext-2" / "valid.txt").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    with pytest.raises(InvalidInputError, match=r"wikitext2: '.*valid\.txt' is a git-lfs pointer.*`git lfs pull`"):
        text_dataset(folder, "byte").stream("validation")


@pytest.mark.parametrize("spec", ["bpe:300", "word"])
def test_text_that_is_not_utf8_is_refused(folder: Path, spec: str) -> None:
    (folder / "wikitext-2" / "valid.txt").write_bytes(b"abc\xff" + TEXT)
    with pytest.raises(InvalidInputError, match=r"wikitext2 validation: found byte 0xff at offset 3, expected UTF-8"):
        text_dataset(folder, spec).stream("validation")


@pytest.mark.parametrize("broken", ["", "{}", "not json"])
def test_a_broken_tokenizer_is_refused(broken: str) -> None:
    with pytest.raises(InvalidInputError, match="tokenizer of the checkpoint"):
        load_tokenizer(broken)
