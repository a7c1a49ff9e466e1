"""Recipes: what is read, what wins, where it came from, and how bad input is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from ppdgrow.config.explain import key_table, setting_of_flag
from ppdgrow.config.load import Layer, dump, parse_override, read_yaml, recipe_hash, resolve
from ppdgrow.config.schema import Recipe, recipe_keys
from ppdgrow.config.yaml12 import format_value
from ppdgrow.errors import ConfigError

AWKWARD_STRINGS = [
    "a [b] {c} #d: e",
    "été 中文 \U0001f600",
    "two\nlines\tand a tab",
    "null",
    "no",
    "1:30",
    "3e-4",
    "007",
    "",
    " padded ",
    'it\'s "quoted"',
    "*alias &anchor !tag |",
    "\x00\x1b\x7f\x85\u2028\ufeff",
    "C:\\data\\new",
    "\udcff",
    "bpe:4096",
    "trailing:",
    "word " * 60,
]


def written(folder: Path, content: str | bytes) -> Path:
    path = folder / "recipe.yaml"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3e-4", 3e-4),
        ("1E3", 1000.0),
        ("-.5", -0.5),
        ("12", 12),
        ("007", 7),
        ("true", True),
        ("False", False),
        ("no", "no"),
        ("on", "on"),
        ("1:30", "1:30"),
        ("1_000", "1_000"),
        ("2026-01-02", "2026-01-02"),
        ("0x10", "0x10"),
        ("~", None),
        ("", None),
        ("'3e-4'", "3e-4"),
        ("[0.9, 1]", [0.9, 1]),
    ],
)
def test_scalars_are_those_of_yaml_1_2(tmp_path: Path, text: str, value: Any) -> None:
    from_file = read_yaml(written(tmp_path, f"train:\n  lr: {text}\n"))["train.lr"]
    key, from_override = parse_override(f"train.lr={text}")
    assert key == "train.lr"
    for found in (from_file, from_override):
        assert found == value
        assert type(found) is type(value)


def test_the_ordinary_loader_would_read_these_otherwise() -> None:
    # The control: why there is a loader of our own at all.
    assert yaml.safe_load("[3e-4, no, 1:30]") == ["3e-4", False, 90]
    assert yaml.safe_load("{a: 1, a: 2}") == {"a": 2}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=b=c", ("a", "b=c")),
        (" data.name = x ", ("data.name", "x")),
        ("data.name=/a b/#1: *x", ("data.name", "/a b/#1: *x")),
        ('data.name="a # b"', ("data.name", "a # b")),
        ("data.name='null'", ("data.name", "null")),
    ],
)
def test_an_override_splits_at_the_first_equals_sign(text: str, expected: tuple[str, Any]) -> None:
    assert parse_override(text) == expected


@pytest.mark.parametrize(
    "text", ["train.lr", "=3", "", "train.betas=[0.9", "data.name='x", "train.steps=" + "9" * 5000]
)
def test_a_bad_override_is_one_line(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^-o ") as caught:
        parse_override(text)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("train:\n  lr: 1\n  lr: 2\n", ["line 3", "duplicate key 'lr'", "line 2"]),
        ("train: {lr: 1}\nmodel: {}\ntrain: {steps: 1}", ["line 3", "duplicate key 'train'"]),
        ("train.lr: 1\ntrain: {lr: 2}", ["'train.lr'", "twice"]),
        ("model: &a {width: 8}\ntrain: *a", ["line 1", "anchors"]),
        ("train: {lr: *a}", ["aliases"]),
        ("train: {lr: !!python/name:os.system }", ["line 1", "tags"]),
        ("train: {lr: !!int 3}", ["tags"]),
        ("train: {lr: 1", ["line 1"]),
        ("train:\n\tlr: 1\n", ["line 2"]),
        ("a: 1\n---\nb: 2", ["single document", "another document"]),
        ("a\0b: 1", ["line 1", "control character (code 0)"]),
        ("x: 1\ny: \x1b", ["line 2", "control character (code 27)"]),
        (b"x: 1\ny: \xff", ["line 2", "not UTF-8", "0xff"]),
        ("train: {}".encode("utf-16"), ["not UTF-8"]),
        ("[1, 2]", ["found [1, 2]", "sections"]),
        ("just words", ["found 'just words'"]),
        ("1: 2", ["a key must be a name", "found 1"]),
        ("train: {? [1] : 2}", ["a key must be a name"]),
        ("train: {steps: " + "9" * 5000 + "}", ["too many digits"]),
        ("[" * 5000, ["nested too deeply"]),
        ("", ["is empty"]),
        (b"x: " + b"a" * 2**21, ["larger than"]),
    ],
)
def test_a_bad_file_is_one_line_that_says_where(tmp_path: Path, content: str | bytes, words: list[str]) -> None:
    path = written(tmp_path, content)
    with pytest.raises(ConfigError) as caught:
        read_yaml(path)
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message
    assert not [word for word in words if word not in message]


def test_a_missing_file_or_a_folder_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        read_yaml(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="is a folder"):
        read_yaml(tmp_path)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_yaml("a\0b")


def test_a_git_lfs_pointer_is_named_as_what_it_is(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12\n")
    with pytest.raises(ConfigError, match=r"is a git-lfs pointer, not the file itself: run git lfs pull"):
        read_yaml(path)


def test_comments_a_byte_order_mark_and_empty_sections_are_fine(tmp_path: Path) -> None:
    assert read_yaml(written(tmp_path, "# nothing yet\n")) == {}
    assert read_yaml(written(tmp_path, "\ufefftrain:\nmodel: {width: 8}\n")) == {"model.width": 8}


def test_later_layers_win_and_sources_are_kept() -> None:
    layers = [
        Layer("checkpoint", {"train.lr": 1.0, "model.layers": 3}),
        Layer("recipe a.yaml", {"train.lr": 2.0}),
        Layer("-o", {"train.lr": 3.0}),
        Layer("--layers", {"model.layers": 4}),
    ]
    resolved = resolve(layers)
    assert (resolved.recipe.train.lr, resolved.recipe.model.layers) == (3.0, 4)
    assert resolved.sources["train.lr"] == "-o"
    assert resolved.sources["model.layers"] == "--layers"
    assert resolved.sources["train.seed"] == "default"
    assert list(resolved.sources) == list(recipe_keys())
    assert resolve(layers[::-1]).recipe.train.lr == 1.0


def test_replace_fills_in_without_touching_the_rest() -> None:
    before = resolve([Layer("-o", {"train.lr": 1.0})])
    after = before.replace({"data.tokenizer": "byte"}, "from the data")
    assert after.recipe.data.tokenizer == "byte"
    assert after.sources == before.sources | {"data.tokenizer": "from the data"}
    assert before.recipe.data.tokenizer is None
    with pytest.raises(ConfigError, match="from the data"):
        before.replace({"data.tokenizer": "letters"}, "from the data")


@pytest.mark.parametrize(
    ("key", "suggestion"),
    [
        ("trian.lr", "train.lr"),
        ("lr", "train.lr"),
        ("optim.lr", "train.lr"),
        ("Train.LR", "train.lr"),
        ("train.stepz", "train.steps"),
        ("train.pair-lr", "train.pair_lr"),
        ("data.dir", "data.directory"),
        ("modle.width", "model.width"),
    ],
)
def test_an_unknown_key_names_the_nearest_one(key: str, suggestion: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve([Layer("-o", {key: 1})])
    assert str(caught.value) == f"unknown recipe key {key!r} (did you mean {suggestion!r}?)"


@pytest.mark.parametrize("key", ["", ".", "train.", "x" * 10_000, "\x1b[31m", "growht"])
def test_a_hopeless_key_is_still_one_short_line(key: str) -> None:
    with pytest.raises(ConfigError, match=r"^unknown recipe key") as caught:
        resolve([Layer("recipe a.yaml", {key: 1})])
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 200


def test_a_section_is_no_key() -> None:
    with pytest.raises(ConfigError, match=r"'train' is a section .* 'train.steps'"):
        resolve([Layer("-o", {"train": 5})])


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("train.lr", -1, ["found -1", "a number greater than 0 and at most 100", "0.002"]),
        ("train.lr", "fast", ["found 'fast'", "a number"]),
        ("train.lr", float("nan"), ["found nan", "a number"]),
        ("train.lr", float("inf"), ["found inf", "a number"]),
        ("train.steps", 1000.0, ["found 1000.0", "a whole number of at least 1 ("]),
        ("train.steps", 2**41, ["at most 1099511627776"]),
        ("train.steps", True, ["found true", "a whole number"]),
        ("train.steps", "1:30", ["found '1:30'", "a whole number"]),
        ("train.decay", "no", ["found 'no'", "true or false"]),
        ("train.decay", 1, ["found 1", "true or false"]),
        ("train.schedule", "linear", ["found 'linear'", "one of wsd, cosine"]),
        ("train.betas", [0.9], ["found [0.9]", "a list of 2 values, each a number of at least 0 and less than 1"]),
        ("train.betas", [0.9, 2], ["found [0.9, 2]", "the default is [0.9, 0.95]"]),
        ("train.pair_weight_decay", "x", ["found 'x'", "or null", "the default is null"]),
        ("train.horizon", 0, ["found 0", "a whole number of at least 1 or null"]),
        ("model.task", "lmm", ["one of lm, mlm, classify or null"]),
        ("data.name", 5, ["found 5", "text"]),
        ("data.name", None, ["found null", "text"]),
        ("data.name", {"a": [1] * 100}, ["..."]),
        ("data.tokenizer", "bpe:3", ["bpe:4096"]),
    ],
)
def test_a_bad_value_says_key_found_expected_and_source(key: str, value: Any, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve([Layer("recipe a.yaml", {key: value})])
    message = str(caught.value)
    assert message.startswith(f"{key}: ")
    assert "from recipe a.yaml" in message
    assert "\n" not in message
    assert len(message) < 300
    assert not [word for word in words if word not in message]


def test_contradictions_between_keys_are_told_in_the_words_of_the_schema() -> None:
    with pytest.raises(ConfigError, match=r"^model.width is 255, but .* such as 256$"):
        resolve([Layer("-o", {"model.width": 255})])
    with pytest.raises(ConfigError, match=r"^model.heads is 7"):
        resolve([Layer("-o", {"model.heads": 7})])


@pytest.mark.parametrize("key", list(recipe_keys()))
def test_every_key_can_be_explained_and_set(key: str) -> None:
    default = recipe_keys()[key]
    resolved = resolve([Layer("-o", {key: list(default) if isinstance(default, tuple) else default})])
    assert resolved.recipe == Recipe()
    assert resolved.sources[key] == "-o"
    with pytest.raises(ConfigError, match="expected"):
        resolve([Layer("-o", {key: {"never": "valid"}})])


@pytest.mark.parametrize("text", AWKWARD_STRINGS)
@pytest.mark.parametrize("source", ["-o", "recipe a\nb #c.yaml", "recipe \x00\udcff.yaml"])
def test_dump_reads_back_as_the_same_recipe(tmp_path: Path, text: str, source: str) -> None:
    values = {
        "data.name": text,
        "data.directory": text,
        "train.lr": 1e-05,
        "train.seed": 2**62,
        "train.betas": [0, 0.5],
    }
    resolved = resolve([Layer(source, values)])
    content = dump(resolved)
    again = resolve([Layer("again", read_yaml(written(tmp_path, content)))])
    assert again.recipe == resolved.recipe
    assert recipe_hash(again.recipe) == recipe_hash(resolved.recipe)
    # Readers that speak YAML 1.1 find the same values.
    assert yaml.safe_load(content)["data"]["name"] == text
    assert yaml.safe_load(content)["train"]["lr"] == 1e-05


def test_dump_has_every_key_in_order_with_its_source() -> None:
    resolved = resolve([Layer("-o", {"train.lr": 3e-4})]).replace({"train.precision": "bf16"}, "measured 1.9x fp32")
    lines = [line.split() for line in dump(resolved).splitlines() if line.startswith("  ")]
    assert [line[0].rstrip(":") for line in lines] == [key.partition(".")[2] for key in recipe_keys() if "." in key]
    assert ["lr:", "0.0003", "#", "-o"] in lines
    assert ["precision:", "bf16", "#", "measured", "1.9x", "fp32"] in lines
    assert ["seed:", "0", "#", "default"] in lines


def test_the_hash_depends_on_values_alone() -> None:
    base = recipe_hash(Recipe())
    assert base == recipe_hash(resolve([Layer("-o", {"train.lr": 2e-3, "model.layers": 6})]).recipe)
    assert base != recipe_hash(resolve([Layer("-o", {"train.lr": 2.0000001e-3})]).recipe)
    assert recipe_hash(resolve([Layer("-o", {"train.lr": 1})]).recipe) == recipe_hash(
        resolve([Layer("-o", {"train.lr": 1.0})]).recipe
    )
    assert len(base) == 12


def test_the_table_of_keys_has_every_key_with_default_range_and_meaning() -> None:
    rows = {key: rest for key, *rest in key_table()}
    assert [key for key in rows if not key.startswith("growth[]")] == list(recipe_keys())
    assert rows["train.clip_norm"][:2] == ["1.0", "a number greater than 0"]
    assert rows["growth[].at"][0] == "required"
    assert rows["growth[].on_reject.remove"][0] == "true"
    for key, default in recipe_keys().items():
        assert rows[key][0] == format_value(default), key
    assert not [key for key, (_, words, meaning) in rows.items() if not words or not meaning]


def test_a_flag_that_is_the_last_part_of_a_key_is_answered_with_it() -> None:
    for key, default in recipe_keys().items():
        flag = f"--{key.partition('.')[2].replace('_', '-')}"
        if flag != "--":
            assert setting_of_flag(flag) == f"{key}={'true' if isinstance(default, bool) else 'VALUE'}"
    assert setting_of_flag("--no-skip-broken") == "data.skip_broken=false"
    assert setting_of_flag("--no-clip-norm") is setting_of_flag("--bogus") is setting_of_flag("--growth") is None
