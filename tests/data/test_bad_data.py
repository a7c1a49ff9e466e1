"""Bad data through the command line: one line with what was found and a way out; nothing written or changed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_line import TINY, Command, snapshot
from local_images import write_classes, write_image

TEXT = "line of some text\n" * 300
BINARY = bytes(range(256)) * 9
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"


def text(name: str, content: str | bytes = TEXT) -> Callable[[], None]:
    def write() -> None:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(content if isinstance(content, bytes) else content.encode())

    return write


def table(**columns: object) -> Callable[[], None]:
    return lambda: pq.write_table(pa.table(columns), "t.parquet")


def images(classes: tuple[str, ...] = ("cat", "dog"), count: int = 20) -> Callable[[], object]:
    return lambda: write_classes(Path("pets"), classes, count)


def broken() -> None:
    images()()
    file = Path("pets/cat/7.png")
    file.write_bytes(file.read_bytes()[:60])


def several(*steps: Callable[[], object]) -> Callable[[], None]:
    def do() -> None:
        for step in steps:
            step()

    return do


def cut() -> None:
    table(text=["x"] * 90)()
    Path("t.parquet").write_bytes(Path("t.parquet").read_bytes()[:150])


CASES: dict[str, tuple[Callable[[], object], str, int, str]] = {
    "missing": (lambda: None, "gone/x", 4, "'gone/x' does not exist: expected the path of text"),
    "mistyped": (lambda: None, "cifar1O", 2, "did you mean 'cifar10'?"),
    "empty file": (text("e.txt", ""), "e.txt", 4, "no file could be read: 'e.txt' is empty"),
    "pointer as text": (text("p.txt", POINTER), "p.txt", 4, "'p.txt' is a git-lfs pointer, not the file itself: fetch"),
    "pointer as parquet": (text("p.parquet", POINTER), "p.parquet", 4, "'p.parquet' is a git-lfs pointer"),
    "pointer as an image": (
        several(images(), text("pets/cat/7.png", POINTER)),
        "pets",
        4,
        "the image 'cat/7.png' cannot be read (it is a git-lfs pointer, not the file itself: fetch it with",
    ),
    "no image at all": (
        several(images(), text("pets/cat/7.png", BINARY)),
        "pets",
        4,
        "the image 'cat/7.png' cannot be read (cannot identify image file): replace it",
    ),
    "a split beside classes": (
        images(("cat", "dog", "test")),
        "pets",
        4,
        "found 'cat/0.png', 'cat/1.png', 'cat/10.png' and 37 more beside what is named for test: name each",
    ),
    "no training image": (
        images(("train/cat", "train/dog", "val/cat", "val/fox")),
        "pets",
        4,
        "the class 'fox' has no image in the training split (found 'val/fox/0.png', ",
    ),
    "rows of another length": (text("t.csv", "id,text\n1,a\n2\n"), "t.csv", 4, "Row #3: Expected 2 columns, got 1"),
    "too short": (text("s.txt", "hi"), "s.txt", 4, "found 2 tokens, expected at least 17 for one sequence"),
    "short validation": (
        text("s.txt", "x\n" * 60),
        "s.txt",
        4,
        "s.txt validation: found 6 tokens, expected at least 17",
    ),
    "binary": (text("b.bin", BINARY), "b.bin", 4, "'b.bin' is binary, expected text"),
    "another encoding": (text("l.txt", "caf\u00e9\n".encode("latin-1")), "l.txt", 4, "such as -o data.encoding=cp1252"),
    "two-byte encoding": (text("w.txt", TEXT.encode("utf-16")), "w.txt", 4, "such as -o data.encoding=utf-16"),
    "binary among text": (
        several(text("m/a.txt"), text("m/logo [1].ico", BINARY)),
        "m",
        4,
        "'m/logo [1].ico' is binary, expected text: convert it, or leave it out, or set data.skip_broken",
    ),
    "empty folder": (lambda: Path("h").mkdir(), "h", 4, "'h' holds no files"),
    "in no split": (
        several(text("p/train.txt"), text("p/valid.txt"), text("p/more.txt")),
        "p",
        4,
        "found 'more.txt' beside what is named for train, validation: name each for its split",
    ),
    "a pipe": (lambda: os.mkfifo("pipe"), "pipe", 4, "neither a file nor a folder"),
    "a line end in the name": (text("a\nb", BINARY), "a\nb", 4, "is binary"),
    "fewer images than a batch": (images(count=2), "pets", 4, "found 3 images, expected at least one batch of 4"),
    "one class": (images(("cat",)), "pets", 4, "found the one class 'cat', expected at least two"),
    "no class": (lambda: write_image(Path("f/x.png")), "f", 4, "expected CLASS/IMAGE or train/CLASS/IMAGE"),
    "broken image": (broken, "pets", 4, "the image 'cat/7.png' cannot be read (image file is truncated): replace it"),
    "another size": (
        lambda: [write_image(Path(f"nine/{c}/{n}.png"), (9, 9)) for c in "ab" for n in range(9)],
        "nine",
        2,
        "model.patch_size is 4, which does not divide the 9x9 images",
    ),
    "several texts": (
        table(verse=["x"] * 50, prose=["y"] * 50),
        "t.parquet",
        2,
        "found the columns 'verse (string)', 'prose (string)', of which none is clearly the text",
    ),
    "no text": (table(n=range(9)), "t.parquet", 2, "found the columns 'n (int64)'"),
    "cut parquet": (cut, "t.parquet", 4, "cannot read 't.parquet'"),
    "empty parquet": (
        table(text=pa.array([], pa.string())),
        "t.parquet",
        4,
        "found 0 rows and no text in the column 'text'",
    ),
    "no saved set": (
        several(text("s/state.json", "{"), text("s/dataset_info.json", "{}")),
        "s",
        4,
        "the saved data set cannot be read",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_bad_data(ppdgrow: Command, name: str) -> None:
    prepare, path, code, says = CASES[name]
    prepare()
    before = snapshot() if name != "a pipe" else {}
    failed = ppdgrow("train --steps 3 --layers 1 --out o --data", path, *TINY, code=code)
    assert failed.stderr.startswith("error: ")
    assert failed.stderr.count("\n") == 1, failed.stderr
    assert says in failed.stderr
    assert failed.stdout == ""
    assert name == "a pipe" or snapshot() == before
    assert not Path("o").exists()


def test_when_all_files_are_skipped_each_is_named(ppdgrow: Command) -> None:
    several(text("d/a.bin", BINARY), text("d/b.txt", ""), text("d/c.txt", "caf\u00e9\n".encode("latin-1")))()
    failed = ppdgrow("train --steps 3 --layers 1 --out o --data d -o data.skip_broken=true", *TINY, code=4)
    assert failed.stderr.count("\n") == 1
    assert "no file could be read: " in failed.stderr
    assert all(part in failed.stderr for part in ("'d/a.bin' is binary", "'b.txt' is empty", "'d/c.txt' is not utf-8"))
    assert "sequence_length" not in failed.stderr


def test_read_only_data_is_read(ppdgrow: Command) -> None:
    text("d/a.txt")()
    Path("d/a.txt").chmod(0o444)
    Path("d").chmod(0o555)
    try:
        ppdgrow("train --steps 2 --layers 1 --out o --quiet --data d -o data.tokenizer=bpe:300", *TINY)
        assert [entry.name for entry in Path("d").iterdir()] == ["a.txt"]
    finally:
        Path("d").chmod(0o755)
