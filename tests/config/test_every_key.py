"""Every recipe key with every kind of wrong value: one line that names the key, what was found and what is expected."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest

from ppdgrow.config.load import Layer, parse_override, read_yaml, resolve
from ppdgrow.config.schema import Recipe, recipe_keys
from ppdgrow.config.yaml12 import format_value
from ppdgrow.errors import ConfigError

KEYS = [key for key in recipe_keys() if key != "growth"]
# As they stand in a recipe; the last ones are what a YAML 1.1 reader would take for something else.
VALUES = [
    *("[1, 2, 3]", "[]", "{a: 1}", "{}", "text", "''", "'1'", "true", "null", "-1", "0", "1.5", "1e400", "-0.0"),
    *(".nan", ".inf", "-.inf", "nan", "inf", "99999999999999999999999", "1e-320", "1_000", "0x10", "0o7", "12e"),
    *("no", "on", "off", "yes", "1:30", "2026-11-30", "~", "=", "<<"),
]


def annotation(key: str) -> Any:
    section, _, name = key.partition(".")
    return Recipe.model_fields[section].annotation.model_fields[name].annotation  # type: ignore[union-attr]


def kinds(key: str) -> set[Any]:
    """The plain types that a key takes."""
    found: set[Any] = set()
    pending = [annotation(key)]
    while pending:
        part = pending.pop()
        if get_origin(part) is Literal:
            found.add("word")
        elif get_args(part) and get_origin(part) is not tuple:
            pending += [p for p in get_args(part) if not (isinstance(p, object) and p is Ellipsis)]
        elif get_origin(part) is tuple:
            found.add(tuple)
        elif isinstance(part, type):
            found.add(part)
    return found


def may_be_right(key: str, value: Any) -> bool:
    """Whether the type of a value is one that the key takes: what is in range is then another question."""
    types = kinds(key)
    if value is None:
        return type(None) in types
    if isinstance(value, bool):
        return bool in types
    if isinstance(value, int):
        return bool(types & {int, float})
    if isinstance(value, float):
        return float in types and math.isfinite(value)
    if isinstance(value, str):
        return bool(types & {str, "word"})
    return isinstance(value, list) and tuple in types


@pytest.mark.parametrize("key", KEYS)
def test_a_value_is_taken_as_it_is_or_refused_in_one_line(key: str, tmp_path: Path) -> None:
    section, _, name = key.partition(".")
    file = tmp_path / "a recipe.yaml"
    for text in VALUES:
        file.write_text(f"{section}:\n  {name}: {text}\n")
        layers: dict[str, Callable[[], Layer]] = {
            "a recipe.yaml": lambda: Layer(f"recipe {file}", read_yaml(file)),
            "-o": partial(lambda text: Layer("-o", dict([parse_override(f"{key}={text}")])), text),
        }
        for source, layer in layers.items():
            try:
                recipe = resolve([layer()]).recipe
            except ConfigError as error:
                message = str(error)
                assert "\n" not in message
                assert len(message) < 400 + len(str(file))
                assert key in message or name in message or "line 2" in message, (text, message)
                assert source in message or "line 2" in message or name in message
                continue
            found = getattr(getattr(recipe, section), name)
            assert may_be_right(key, list(found) if isinstance(found, tuple) else found), (key, text, found)
            assert not isinstance(found, float) or math.isfinite(found)
            assert format_value(found)


@pytest.mark.parametrize("key", KEYS)
def test_a_value_of_another_type_is_never_taken(key: str) -> None:
    """Control of the test above: what the schema must refuse, it refuses."""
    for value in ([1, 2, 3], {"a": 1}, math.nan, math.inf, -math.inf, b"bytes", object()):
        with pytest.raises(ConfigError, match=name_of(key)):
            resolve([Layer("test", {key: value})])
    wrong: list[Any] = [value for value in (None, True, "word", 1, 1.5) if not may_be_right(key, value)]
    assert wrong
    for value in wrong:
        with pytest.raises(ConfigError, match=name_of(key)):
            resolve([Layer("test", {key: value})])


def name_of(key: str) -> str:
    return key.partition(".")[2]


BOMB = "a: &a [x, x]\n" + "".join(
    f"{chr(98 + n)}: &{chr(98 + n)} [*{chr(97 + n)}, *{chr(97 + n)}]\n" for n in range(24)
)
DOCUMENTS = {
    "anchor": "train: &x {lr: 1}\n",
    "alias": "train: {lr: 1}\nmodel: *x\n",
    "alias bomb": BOMB,
    "merge": "train:\n  <<: {lr: 1}\n",
    "tag": "train: !!python/object:os.system {}\n",
    "tagged number": "train: {lr: !!float 1}\n",
    "two documents": "train: {lr: 1}\n---\ntrain: {lr: 2}\n",
    "duplicate": "train: {lr: 1e-3, lr: 2e-3}\n",
    "deep": "train: {lr: " + "[" * 500 + "]" * 500 + "}\n",
    "tab": "train:\n\tlr: 1\n",
    "list": "- train\n",
    "word": "train\n",
    "open": "train: {lr: 1\n",
    "control": "train: {lr: \x07}\n",
    "numeric key": "train: {1: 2}\n",
    "section as value": "train: 5\n",
    "no space": "train:\n  lr:1\n",
}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_documents_that_are_no_recipe(name: str, tmp_path: Path) -> None:
    file = tmp_path / "r [bold].yaml"
    file.write_text(DOCUMENTS[name])
    with pytest.raises(ConfigError, match=r"r \[bold\]\.yaml") as info:
        resolve([Layer(f"recipe {file}", read_yaml(file))])
    assert "\n" not in str(info.value)
    assert len(str(info.value)) < 400 + len(str(file))
