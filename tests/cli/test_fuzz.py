"""Hostile recipes, configurations and data: never a traceback, never a changed input, never a started run.

Small by default; `pytest -m slow` draws far more.
"""

from __future__ import annotations

import contextlib
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_line import TINY, Command, snapshot
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from local_images import write_classes
from tampering import seal

from ppdgrow.checkpoint import RunFolder, read_checkpoint, write_checkpoint
from ppdgrow.cli import build_app
from ppdgrow.cli.app import run
from ppdgrow.config.schema import recipe_keys
from ppdgrow.data import DATASETS
from ppdgrow.errors import PPDGrowError

BUDGETS = [pytest.param(20, id="small"), pytest.param(3000, id="large", marks=pytest.mark.slow)]
EXPECTED = {0, 2, 4, 6, 7}
DRY = ["--dry-run", "--out", "o"]


def fuzz(budget: int, strategy: st.SearchStrategy[Any], check: Callable[[Any], None]) -> None:
    """Try a check on many draws: always the same ones within the small budget."""
    settings(
        max_examples=budget,
        deadline=None,
        derandomize=budget < 1000,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )(given(strategy)(check))()


def judged(*arguments: str) -> int:
    """Run a command: it ends with an expected code and at most one error line, and leaves every file as it was."""
    before = snapshot()
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(build_app(), list(arguments))
    told = err.getvalue()
    assert code in EXPECTED, told
    assert "Traceback" not in told, told
    errors = [line for line in told.splitlines() if line.startswith("error: ")]
    assert len(errors) == (0 if code in (0, 7) else 1), told
    assert not errors or told.splitlines()[-1] == errors[0], told
    assert len(told) < 4000, told
    assert snapshot() == before
    return code


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 70),
    st.sampled_from([2**31, 2**63, -(2**63), 10**30, 4096, 65536]),
    st.floats(),
    st.text(max_size=12),
    st.sampled_from(
        ["no", "on", "1:30", "~", "null", "auto", "byte", "bpe:300", "word", "cp1252", "utf-16", "hex", "../x"]
    ),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=5,
)
CHOICES = st.sampled_from(["transformer", "mlp", "sequence", "coupled", "residual", "lm", "mlm", "classify"]) | (
    st.sampled_from(["rms", "cosine", "all", "pairs", "bf16"])
)
GROWTH = st.lists(
    st.dictionaries(
        st.sampled_from(
            ["at", "patience", "pair", "pairs", "position", "source", "scale", "method", "trial", "candidates"]
        ),
        SCALARS | st.sampled_from(["plateau", "ffn", "attention", "end", "copy", "zero"]) | VALUES,
        max_size=4,
    ),
    max_size=2,
)


@st.composite
def recipes(draw: st.DrawFn) -> str:
    """Recipes of real keys with values of any kind, as YAML that is well formed or damaged."""
    nested: dict[str, Any] = {}
    for key in draw(st.lists(st.sampled_from(list(recipe_keys())), max_size=6)):
        section, _, name = key.partition(".")
        # Sizes that nobody could compute on are in tests/experiment/test_dry_run.py.
        value = GROWTH if key == "growth" else SCALARS | VALUES | CHOICES
        if name:
            nested.setdefault(section, {})[name] = draw(value)
        else:
            nested[section] = draw(value)
    text = json.dumps(nested)
    if draw(st.booleans()):
        place = draw(st.integers(0, len(text)))
        text = text[:place] + draw(st.text(alphabet="{}[]:,&*!|>-?#%@`'\"\n\t \\xa0\0", max_size=4)) + text[place:]
    return text


@pytest.mark.parametrize("budget", BUDGETS)
def test_recipes(ppdgrow: Command, budget: int) -> None:
    Path("words.txt").write_text("some words\n" * 400)
    ended = []

    def check(text: str) -> None:
        Path("r.yaml").write_text(text, encoding="utf-8", errors="surrogatepass")
        line = ["train", "--recipe", "r.yaml", "--data", "words.txt", "--layers", "1", "--steps", "3", *DRY]
        ended.append(judged(*line))

    fuzz(budget, recipes(), check)
    assert {0, 2} <= set(ended), "some are taken and some are refused"


def places(document: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    return [path, *(place for key, value in inner for place in places(value, (*path, key)))]


@st.composite
def changed(draw: st.DrawFn, document: Any) -> Any:
    """A JSON document with one place replaced, removed, or with something added there."""
    copy = json.loads(json.dumps(document))
    place = draw(st.sampled_from(places(copy)))
    if not place:
        return draw(VALUES)
    parent = copy
    for key in place[:-1]:
        parent = parent[key]
    what = draw(st.sampled_from(["replace", "remove", "add"]))
    if what == "remove":
        del parent[place[-1]]
    elif what == "add" and isinstance(parent, dict):
        parent[draw(st.text(max_size=8))] = draw(VALUES)
    else:
        parent[place[-1]] = draw(VALUES)
    return copy


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("name", ["config.json", "trainer_state.json"])
def test_what_a_checkpoint_says_of_itself(ppdgrow: Command, shallow: Path, name: str, budget: int) -> None:
    ppdgrow("grow shallow --pair attention --out g --quiet")
    shutil.rmtree("shallow")
    (folder,) = Path("g/checkpoints").iterdir()
    original = json.loads((folder / name).read_text())
    commands = [
        ["probe", "g"],
        ["train", "g", "--steps", "1", *DRY],
        ["compare", "g", "g"],
        ["grow", "g", "--out", "g"],
    ]

    def check(drawn: tuple[Any, list[str]]) -> None:
        document, command = drawn
        (folder / name).write_text(json.dumps(document), encoding="utf-8")
        seal(folder)
        judged(*command)

    fuzz(budget // 2, st.tuples(changed(original), st.sampled_from(commands)), check)


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
    """Bytes with some cut off, flipped, or put in."""
    data = bytearray(content)
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.integers(0, max(0, len(data) - 1)))
        what = draw(st.sampled_from(["cut", "flip", "put", "zero"]))
        if what == "cut":
            del data[place:]
        elif what == "flip" and data:
            data[place] ^= draw(st.integers(1, 255))
        elif what == "zero":
            data[place : place + 8] = bytes(8)
        else:
            data[place:place] = draw(st.binary(max_size=6))
    return bytes(data)


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("name", ["manifest.json", "model.safetensors.index.json", "headers"])
def test_manifest_index_and_headers(ppdgrow: Command, shallow: Path, name: str, budget: int) -> None:
    *older, folder = RunFolder(shallow).checkpoints()
    for other in older:
        shutil.rmtree(other)
    write_checkpoint(folder, read_checkpoint(folder), shard_bytes=10_000)
    file = folder / ("model-00001.safetensors" if name == "headers" else name)
    good = file.read_bytes()
    if name == "headers":
        length = 8 + int.from_bytes(good[:8], "little")
        contents = damaged(good[:length]).map(lambda head: head + good[length:])
    else:
        contents = changed(json.loads(good)).map(lambda document: json.dumps(document).encode())

    def check(drawn: tuple[bytes, list[str]]) -> None:
        content, command = drawn
        file.write_bytes(content)
        if name != "manifest.json":
            seal(folder)
        judged(*command)

    commands = [["probe", "shallow"], ["compare", "shallow", "shallow"], ["train", "shallow", "--steps", "1", *DRY]]
    fuzz(budget // 2, st.tuples(contents, st.sampled_from(commands)), check)


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("name", ["metrics.jsonl", "growth.jsonl"])
def test_logs(ppdgrow: Command, shallow: Path, name: str, budget: int) -> None:
    ppdgrow("grow shallow --out g --quiet")
    file = Path("g", name)
    good = file.read_bytes().splitlines(keepends=True)
    lines = st.sampled_from(good).flatmap(
        lambda line: changed(json.loads(line)).map(lambda found: json.dumps(found).encode() + b"\n") | damaged(line)
    )
    commands = [["compare", "g", "shallow"], ["probe", "g"], ["train", "g", "--steps", "1", *DRY]]

    def check(drawn: tuple[bytes, int, list[str]]) -> None:
        line, place, command = drawn
        file.write_bytes(b"".join([*good[:place], line, *good[place + 1 :]]))
        judged(*command)

    fuzz(budget // 2, st.tuples(lines, st.integers(0, len(good)), st.sampled_from(commands)), check)


def try_data(path: str, *more: str) -> int:
    return judged("train", "--data", path, "--steps", "2", "--layers", "1", *TINY, *more, *DRY)


@pytest.mark.parametrize("budget", BUDGETS)
def test_text_files(ppdgrow: Command, budget: int) -> None:
    Path("t").mkdir()
    text = st.text(max_size=300).map(lambda t: (t * 30).encode("utf-8", "surrogatepass"))
    utf_16 = st.text(st.characters(codec="utf-8"), max_size=100).map(lambda t: (t * 60).encode("utf-16"))
    encodings = ["utf-8", "utf-16", "utf-32", "cp1252", "latin-1", "ascii", "shift_jis", "utf-7", "idna", "punycode"]

    def check(drawn: tuple[bytes, bytes, str, bool, str]) -> None:
        first, second, encoding, skip, tokenizer = drawn
        Path("t/a.txt").write_bytes(first)
        Path("t/b b.txt").write_bytes(second)
        options = [f"data.encoding={encoding}", f"data.skip_broken={str(skip).lower()}", f"data.tokenizer={tokenizer}"]
        try_data("t", *(part for option in options for part in ("-o", option)))

    content = st.one_of(text, utf_16, st.binary(max_size=400))
    tokenizers = st.sampled_from(["byte", "byte", "word", "bpe:300"])
    fuzz(budget, st.tuples(content, content, st.sampled_from(encodings), st.booleans(), tokenizers), check)


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("kind", ["text", "images"])
def test_parquet_files(ppdgrow: Command, kind: str, budget: int) -> None:
    if kind == "text":
        table = pa.table({"text": ["some words of text"] * 200, "id": range(200)})
    else:
        files = sorted(write_classes(Path("pets")).rglob("*.png"))
        table = pa.table({"image": [file.read_bytes() for file in files], "label": [0, 1] * 20})
    pq.write_table(table, "good.parquet")
    good = Path("good.parquet").read_bytes()

    def check(content: bytes) -> None:
        Path("x.parquet").write_bytes(content)
        try_data("x.parquet")

    fuzz(budget, damaged(good), check)


@pytest.mark.parametrize("budget", BUDGETS)
def test_image_files(ppdgrow: Command, budget: int) -> None:
    write_classes(Path("pets"), count=12)
    file = Path("pets/cat/3.png")
    good = file.read_bytes()
    ended = []

    def check(drawn: tuple[bytes, bool]) -> None:
        content, skip = drawn
        file.write_bytes(content)
        ended.append(try_data("pets", "-o", f"data.skip_broken={str(skip).lower()}"))

    fuzz(budget, st.tuples(damaged(good) | st.binary(max_size=50), st.booleans()), check)
    assert {0, 4} <= set(ended)


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("name", ["state.json", "dataset_info.json"])
def test_saved_data_sets(ppdgrow: Command, name: str, budget: int) -> None:
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    datasets.Dataset.from_dict({"text": ["some words of text"] * 200}).save_to_disk("saved")
    original = json.loads(Path("saved", name).read_text())

    def check(document: Any) -> None:
        Path("saved", name).write_text(json.dumps(document))
        try_data("saved")

    fuzz(budget // 2, changed(original), check)


def test_control_the_judge_sees_a_bug_and_a_changed_input(ppdgrow: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("words.txt").write_text("some words\n" * 400)

    def faulty(*arguments: Any) -> None:
        raise ZeroDivisionError("a bug")

    def meddling(*arguments: Any) -> None:
        Path("words.txt").write_text("")
        raise PPDGrowError("an error")

    for stand_in in (faulty, meddling):
        monkeypatch.setitem(DATASETS, "stdlib", stand_in)
        with pytest.raises(AssertionError):
            try_data("stdlib")
