"""Trained tokenizers, tokenised text and long lists, kept between runs in a cache folder, keyed by content.

The folder is `PPDGROW_CACHE`, else `ppdgrow` below `XDG_CACHE_HOME` or `~/.cache`. A key is the sha256 of everything
that the entry depends on, so an entry is never out of date; one that is damaged is made anew, and a folder that cannot
be written costs time only. It may be removed at any time.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

import torch
from torch import Tensor

from ppdgrow.atomic import replace_file
from ppdgrow.data.tokenization import ByteTokenizer, Tokenizer, load_tokenizer, make_tokenizer

CACHE_VARIABLE = "PPDGROW_CACHE"
FORMAT = "1"
FEW = 5


def cache_folder() -> Path:
    """Where entries lie; it need not exist."""
    named = os.environ.get(CACHE_VARIABLE)
    folder = Path(named) if named else Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "ppdgrow"
    try:
        return folder.expanduser()
    except RuntimeError:  # of a user without a home
        return folder


def cached_tokenizer(
    spec: str, train_text: Callable[[], bytes], report: Callable[[str], object] = lambda doing: None
) -> Tokenizer:
    """As `make_tokenizer`, trained only once on the same text; `report` hears what is being done."""
    if spec == "byte":
        return ByteTokenizer()
    report("reading the text for the tokenizer")
    text = train_text()

    def train() -> bytes:
        report(f"training the tokenizer {spec}")
        return (make_tokenizer(spec, lambda: text).json or "").encode()

    return load_tokenizer(_kept("tokenizer", spec, hashlib.sha256(text).hexdigest(), make=train).decode())


def cached_tokens(tokenizer: Tokenizer, raw: bytes, digest: str, name: str) -> Tensor:
    """The ids `(tokens,)` of a text with its sha256, as `Tokenizer.encode` gives them."""
    if isinstance(tokenizer, ByteTokenizer):
        return torch.from_numpy(tokenizer.encode(raw, name))
    from safetensors.torch import load, save

    def encode() -> bytes:
        return save({"tokens": torch.from_numpy(tokenizer.encode(raw, name))})

    return load(_kept("tokens", digest, hashlib.sha256(tokenizer.json.encode()).hexdigest(), make=encode))["tokens"]


def few_lines(lines: Sequence[str]) -> list[str]:
    """The first five lines; of more, how many there are and where all are listed, if the file system lets us."""
    if len(lines) <= FEW:
        return list(lines)
    content = "".join(f"{line}\n" for line in lines).encode("utf-8", "backslashreplace")
    path = cache_folder() / f"skipped-{hashlib.sha256(content).hexdigest()[:16]}.txt"
    listed = f": all {len(lines):,} are listed in {str(path)!r}" if _write(path, content) else ""
    return [*lines[:FEW], f"skipped {len(lines) - FEW:,} more{listed}"]


def _kept(kind: str, *content: str, make: Callable[[], bytes]) -> bytes:
    """What `make` gives, from the cache if it is there; before it, the file has a digest of its own name and of it."""
    key = hashlib.sha256("\n".join([FORMAT, version("tokenizers"), kind, *content]).encode()).hexdigest()
    path = cache_folder() / f"{kind}-{key[:32]}.cache"

    def digest(entry: bytes) -> bytes:
        return hashlib.sha256(path.name.encode() + b"\n" + entry).digest()

    with suppress(OSError):
        stored = path.read_bytes()
        if digest(stored[32:]) == stored[:32]:
            return stored[32:]
    made = make()
    _write(path, digest(made) + made)
    return made


def _write(path: Path, content: bytes) -> bool:
    """Keep a file, if the file system lets us."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, content)
    except OSError:
        return False
    return True
