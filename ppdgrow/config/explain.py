"""What the schema expects, in words, and what is wrong with a value, in one line.

Types, bounds and descriptions are those of pydantic's JSON schema of the recipe.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from pydantic import ValidationError

from ppdgrow.config.growth import GrowthConfig
from ppdgrow.config.schema import Recipe, recipe_keys
from ppdgrow.config.yaml12 import format_value

_LONGEST_VALUE = 60
_QUOTED = " (in quotes if it looks like a number or null)"
_ASTRONOMIC = 2**40
_BOUNDS = {
    "exclusiveMinimum": "greater than",
    "minimum": "of at least",
    "exclusiveMaximum": "less than",
    "maximum": "at most",
}
Schema = Mapping[str, Any]


def unknown_key(key: str, source: str) -> str:
    """`unknown recipe key 'trian.lr' (did you mean 'train.lr'?)`."""
    keys = list(recipe_keys())
    where = "" if source == "-o" else f" in {source}"
    if key in Recipe.model_fields:
        example = next(known for known in keys if known.startswith(f"{key}."))
        return f"{key!r}{where} is a section of the recipe, expected keys below it, such as {example!r}"
    return f"unknown recipe key {shorten(key)}{where} (did you mean {_nearest_key(key, keys)!r}?)"


def _nearest_key(key: str, keys: list[str]) -> str:
    """What a mistyped, bare or wrongly sectioned key most likely means."""
    wanted = key.lower().replace("-", "_")[:200]
    leaf = wanted.rpartition(".")[2]
    by_leaf = {known.rpartition(".")[2]: known for known in keys}
    if leaf in by_leaf:
        return by_leaf[leaf]
    whole = difflib.get_close_matches(wanted, keys, n=1, cutoff=0.75)
    found = whole or [by_leaf[one] for one in difflib.get_close_matches(leaf, by_leaf, n=1, cutoff=0.6)]
    return (found or difflib.get_close_matches(wanted, keys, n=1, cutoff=0.0))[0]


def setting_of_flag(flag: str) -> str | None:
    """What `-o` sets in place of a flag that is the last part of a recipe key, such as `train.clip_norm=VALUE`."""
    name = flag.lstrip("-").replace("-", "_")
    for leaf, value in ((name, "true"), (name.removeprefix("no_"), "false")):
        for key, default in recipe_keys().items():
            if key.partition(".")[2] == leaf and (isinstance(default, bool) or leaf == name):
                return f"{key}={value if isinstance(default, bool) else 'VALUE'}"
    return None


def key_table() -> Iterator[tuple[str, str, str, str]]:
    """Every recipe key, those of a `growth:` entry among them: name, default, expected values, meaning."""
    yield from _rows(_schema(), "", {})


def _rows(section: Schema, prefix: str, defaults: Schema) -> Iterator[tuple[str, str, str, str]]:
    for name, field in section["properties"].items():
        key, default = f"{prefix}{name}", defaults.get(name, field.get("default"))
        inner = _resolve(field)
        if "properties" in inner:
            yield from _rows(inner, f"{key}.", default)
            continue
        words = "a list" if default == [] else _describe(field, every_bound=False).replace(_QUOTED, "")
        shown = "required" if name in section.get("required", ()) else format_value(default)
        yield key, shown, words, field.get("description", "")
        if key == "growth":
            yield from _rows(_resolve(field["items"]), "growth[].", {})


def explain(error: ValidationError, values: Mapping[str, Any], sources: Mapping[str, str]) -> str:
    """The first thing that is wrong with the flat `values` of a recipe: key, found, expected, source, a way out."""
    first = error.errors(include_url=False)[0]
    own = first["ctx"]["error"] if first["type"] == "value_error" else None
    in_growth = first["loc"][:1] == ("growth",)
    place = first["loc"] if in_growth else first["loc"][:2]
    key = "growth" if in_growth else ".".join(map(str, place))
    if key not in values:  # several keys of a section, or of the whole recipe, contradict each other
        return str(own or first["msg"])
    where, schema, source = "", _schema(), sources[key]
    for part in place:
        keys = _resolve(schema).get("properties", {})
        if isinstance(part, int):
            where, schema = f"{where}[{part}]", schema["items"]
        elif part in keys:
            options = keys[part].get("anyOf", ())
            where = f"{where}.{part}" if where else part
            schema = next((option for option in options if "items" in option), keys[part])
        elif first["type"] == "extra_forbidden":
            if part in GrowthConfig.model_fields:
                return f"{where}.{part} in {source}: {part} belongs to the growth entry, not to a part of it"
            nearest = difflib.get_close_matches(part, keys, n=1, cutoff=0.0)[0]
            return f"unknown recipe key {shorten(f'{where}.{part}')} in {source} (did you mean {nearest!r}?)"
    expected = _describe(schema, every_bound=first["type"].startswith("less_than"))
    if in_growth and first["type"] == "missing":
        return f"{where} is missing in {source}: expected {expected}"
    problem = own or f"found {shorten(values.get(where, first['input']))}, expected {expected}"
    default = "" if in_growth else f"; the default is {format_value(recipe_keys()[key])}"
    return f"{where}: {problem} (from {source}{default})"


def shorten(value: Any) -> str:
    """`repr`, cut if it is long; None, true and false as in the file."""
    text = format_value(value) if value is None or isinstance(value, bool) else repr(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 3]}..."


@cache
def _schema() -> Schema:
    return Recipe.model_json_schema()


def _resolve(schema: Schema) -> Schema:
    return _schema()["$defs"][schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema


def _describe(schema: Schema, every_bound: bool) -> str:
    """Such as `a number greater than 0`; with `every_bound` also upper bounds that nobody meets in practice."""
    schema = _resolve(schema)
    if "anyOf" in schema:
        return " or ".join(_describe(option, every_bound) for option in schema["anyOf"])
    if "enum" in schema:
        return f"one of {', '.join(map(str, schema['enum']))}"
    if "const" in schema:
        return str(schema["const"])
    if "properties" in schema:
        return f"keys such as {', '.join(list(schema['properties'])[:3])}, each with its value"
    if "prefixItems" in schema:
        values = schema["prefixItems"]
        return f"a list of {len(values)} values, each {_describe(values[0], every_bound)}"
    if "items" in schema:
        return f"a list with, for each entry, {_describe(schema['items'], every_bound)}"
    bounds = [
        f"{phrase} {f'{limit:g}' if isinstance(limit, float) else limit}"
        for limit, phrase in ((schema.get(name), phrase) for name, phrase in _BOUNDS.items())
        if limit is not None and (every_bound or limit < _ASTRONOMIC)
    ]
    words = {"boolean": "true or false", "string": f"text{_QUOTED}", "integer": "a whole number", "null": "null"}
    return f"{words.get(schema['type'], 'a number')} {' and '.join(bounds)}".rstrip()
