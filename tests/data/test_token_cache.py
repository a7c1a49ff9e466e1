"""The token cache: the same ids with and without it, made anew when damaged, and never in the way."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
import torch

from ppdgrow.data import token_cache
from ppdgrow.data.token_cache import cache_folder, cached_tokenizer, cached_tokens
from ppdgrow.data.tokenization import TrainedTokenizer, make_tokenizer

TEXT = "".join(f"{n * n} some words, and more w\u00f6rds\n" for n in range(400)).encode()
DIGEST = hashlib.sha256(TEXT).hexdigest()


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PPDGROW_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def encodings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of texts that were really encoded."""
    done: list[str] = []
    encode = TrainedTokenizer.encode

    def counted(self: TrainedTokenizer, raw: bytes, name: str) -> object:
        done.append(name)
        return encode(self, raw, name)

    monkeypatch.setattr(TrainedTokenizer, "encode", counted)
    return done


@pytest.mark.parametrize("spec", ["bpe:300", "word"])
def test_the_second_time_comes_from_the_cache_and_is_the_same(spec: str, folder: Path, encodings: list[str]) -> None:
    expected = make_tokenizer(spec, lambda: TEXT)
    for _ in range(3):
        tokenizer = cached_tokenizer(spec, lambda: TEXT)
        assert tokenizer.json == expected.json
        tokens = cached_tokens(tokenizer, TEXT, DIGEST, "text")
        assert torch.equal(tokens, torch.from_numpy(expected.encode(TEXT, "reference")))
    assert encodings.count("text") == 1
    assert len(list(folder.iterdir())) == 2


def test_other_text_other_tokenizer_other_entry(folder: Path, encodings: list[str]) -> None:
    for spec in ("bpe:300", "bpe:310"):
        for raw in (TEXT, TEXT[:900]):
            tokenizer = cached_tokenizer(spec, lambda: TEXT)
            cached_tokens(tokenizer, raw, hashlib.sha256(raw).hexdigest(), "text")
    assert encodings == ["text"] * 4
    assert len(list(folder.glob("tokens-*"))) == 4


@pytest.mark.parametrize("damage", [b"", b"x", b"x" * 100, None])
def test_a_damaged_entry_is_made_anew(damage: bytes | None, folder: Path, encodings: list[str]) -> None:
    tokenizer = cached_tokenizer("bpe:300", lambda: TEXT)
    expected = cached_tokens(tokenizer, TEXT, DIGEST, "text")
    for entry in folder.iterdir():
        data = bytearray(entry.read_bytes())
        data[-1] ^= 1  # one flipped bit
        entry.write_bytes(data if damage is None else damage)
    tokenizer = cached_tokenizer("bpe:300", lambda: TEXT)
    assert torch.equal(cached_tokens(tokenizer, TEXT, DIGEST, "text"), expected)
    assert encodings == ["text", "text"]
    cached_tokens(tokenizer, TEXT, DIGEST, "text")
    assert encodings == ["text", "text"], "the entry is whole again"


def test_an_entry_under_another_name_is_none(folder: Path) -> None:
    tokenizer = cached_tokenizer("bpe:300", lambda: TEXT)
    texts = [TEXT, TEXT[:900]]
    digests = [hashlib.sha256(raw).hexdigest() for raw in texts]
    expected = [cached_tokens(tokenizer, raw, digest, "text") for raw, digest in zip(texts, digests, strict=True)]
    first, second = sorted(folder.glob("tokens-*"))
    content = first.read_bytes(), second.read_bytes()
    first.write_bytes(content[1])
    second.write_bytes(content[0])
    for raw, digest, tokens in zip(texts, digests, expected, strict=True):
        assert torch.equal(cached_tokens(tokenizer, raw, digest, "text"), tokens)


def test_the_home_of_nobody_costs_time_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PPDGROW_CACHE", "~no-such-user/cache")
    assert cached_tokenizer("bpe:300", lambda: TEXT).json


def test_a_folder_that_cannot_be_written_costs_time_only(folder: Path, encodings: list[str]) -> None:
    folder.write_text("a file in its place")
    for _ in range(2):
        tokenizer = cached_tokenizer("bpe:300", lambda: TEXT)
        assert cached_tokens(tokenizer, TEXT, DIGEST, "text").numel() > 100
    assert encodings == ["text", "text"]
    assert folder.read_text() == "a file in its place"


def test_bytes_need_no_cache(folder: Path) -> None:
    tokenizer = cached_tokenizer("byte", lambda: TEXT)
    assert bytes(cached_tokens(tokenizer, TEXT, DIGEST, "text").numpy()) == TEXT
    assert not folder.exists()


def test_the_place_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert cache_folder() == Path(os.environ["PPDGROW_CACHE"])
    monkeypatch.delenv(token_cache.CACHE_VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "ppdgrow"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder() == tmp_path / "home" / ".cache" / "ppdgrow"
