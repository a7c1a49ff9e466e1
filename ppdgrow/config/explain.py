"""What the schema expects, in words, and what is wrong with a value, in one line."""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from ppdgrow.config.growth import GrowthConfig
from ppdgrow.config.schema import Recipe, recipe_keys
from ppdgrow.config.yaml12 import format_value

_LONGEST_VALUE = 60
_QUOTED = " (in quotes if it looks like a number or null)"
_ASTRONOMIC = 2**40
_BOUNDS = (
    (annotated_types.Gt, "gt", "greater than"),
    (annotated_types.Ge, "ge", "of at least"),
    (annotated_types.Lt, "lt", "less than"),
    (annotated_types.Le, "le", "at most"),
)


def unknown_key(key: str, source: str) -> str:
    """`unknown recipe key 'trian.lr' (did you mean 'train.lr'?)`."""
    keys = list(recipe_keys())
    where = "" if source == "-o" else f" in {source}"
    if key in Recipe.model_fields:
        example = next(known for known in keys if known.startswith(f"{key}."))
        return f"{key!r}{where} is a section of the recipe, expected keys below it, such as {example!r}"
    return f"unknown recipe key {shorten(key)}{where} (did you mean {nearest_key(key, keys)!r}?)"


def nearest_key(key: str, keys: list[str]) -> str:
    """The known dotted key that a mistyped, bare or wrongly sectioned one most likely means."""
    wanted = key.lower().replace("-", "_")[:200]
    leaf = wanted.rpartition(".")[2]
    by_leaf: dict[str, list[str]] = {}
    for known in keys:
        by_leaf.setdefault(known.partition(".")[2] or known, []).append(known)
    if leaf in by_leaf:
        return difflib.get_close_matches(wanted, by_leaf[leaf], n=1, cutoff=0.0)[0]
    whole = difflib.get_close_matches(wanted, keys, n=1, cutoff=0.75)
    if whole:
        return whole[0]
    leaves = difflib.get_close_matches(leaf, by_leaf, n=1, cutoff=0.6)
    return by_leaf[leaves[0]][0] if leaves else difflib.get_close_matches(wanted, keys, n=1, cutoff=0.0)[0]


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
    yield from _rows(Recipe, "", Recipe())


def _rows(section: type[BaseModel], prefix: str, defaults: BaseModel | None) -> Iterator[tuple[str, str, str, str]]:
    for name, field in section.model_fields.items():
        key, annotation = f"{prefix}{name}", field.annotation
        default = field.default if defaults is None else getattr(defaults, name)
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            yield from _rows(annotation, f"{key}.", default)
            continue
        words = "a list" if default == () else _describe(annotation, list(field.metadata), every_bound=False)
        shown = "required" if default is PydanticUndefined else format_value(default)
        yield key, shown, words.replace(_QUOTED, ""), field.description or ""
        if key == "growth":
            yield from _rows(GrowthConfig, "growth[].", None)


def explain(error: ValidationError, values: Mapping[str, Any], sources: Mapping[str, str]) -> str:
    """The first thing that is wrong with a recipe: key, found, expected, source and a way out.

    Args:
        error: what pydantic says about the nested recipe.
        values: the flat values that were validated.
        sources: where each of them came from.
    """
    first = error.errors(include_url=False)[0]
    if first["loc"][:1] == ("growth",):
        return explain_growth(first, sources["growth"])
    key = ".".join(str(part) for part in first["loc"][:2])
    own = first.get("ctx", {}).get("error") if first["type"] == "value_error" else None
    if key not in values:
        return str(own or first["msg"])
    source = sources[key]
    way_out = f"from {source}; the default is {format_value(recipe_keys()[key])}"
    if own is not None:
        return f"{key}: {own} ({way_out})"
    words = expected(key, every_bound=first["type"].startswith("less_than"))
    return f"{key}: found {shorten(values[key])}, expected {words} ({way_out})"


def explain_growth(first: Mapping[str, Any], source: str) -> str:
    """The first thing that is wrong within `growth:`, with the place of it, such as `growth[0].trial.steps`."""
    where, metadata = "growth", list[Any]()
    annotation: Any = Recipe.model_fields["growth"].annotation
    for part in first["loc"][1:]:
        fields = getattr(annotation, "model_fields", {})
        if isinstance(part, int):
            where, annotation, metadata = f"{where}[{part}]", get_args(annotation)[0], []
            annotation = get_args(annotation)[0] if get_origin(annotation) is tuple else annotation
        elif part in fields:
            where, annotation, metadata = f"{where}.{part}", fields[part].annotation, list(fields[part].metadata)
            options = [option for option in get_args(annotation) if get_origin(option) is tuple]
            annotation = options[0] if options else annotation
        elif first["type"] == "extra_forbidden":
            if part in GrowthConfig.model_fields:
                return f"{where}.{part} in {source}: {part} belongs to the growth entry, not to a part of it"
            nearest = difflib.get_close_matches(part, fields, n=1, cutoff=0.0)[0]
            return f"unknown recipe key {shorten(f'{where}.{part}')} in {source} (did you mean {nearest!r}?)"
    if first["type"] == "missing":
        return f"{where} is missing in {source}: expected {_describe(annotation, metadata, False)}"
    own = first.get("ctx", {}).get("error") if first["type"] == "value_error" else None
    if own is not None:
        return f"{where}: {own} (from {source})"
    words = _describe(annotation, metadata, first["type"].startswith("less_than"))
    return f"{where}: found {shorten(first['input'])}, expected {words} (from {source})"


def shorten(value: Any) -> str:
    """`repr`, cut if it is long; None, true and false as in the file."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    text = repr(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 3]}..."


def expected(key: str, *, every_bound: bool = True) -> str:
    """The range of a dotted key in words, such as `a number greater than 0`.

    Args:
        key: a valid recipe key.
        every_bound: also name upper bounds that nobody meets in practice.
    """
    section, _, name = key.partition(".")
    section_type = Recipe.model_fields[section].annotation
    field: FieldInfo = section_type.model_fields[name]  # type: ignore[union-attr]
    return _describe(field.annotation, list(field.metadata), every_bound)


def _describe(annotation: Any, metadata: list[Any], every_bound: bool) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        inner = [item for extra in arguments[1:] for item in getattr(extra, "metadata", [extra])]
        return _describe(arguments[0], [*metadata, *inner], every_bound)
    if origin in (Union, types.UnionType):
        options = [_describe(item, metadata, every_bound) for item in arguments if item is not type(None)]
        return " or ".join([*options, "null"] if type(None) in arguments else options)
    if origin is Literal:
        words = ", ".join(str(argument) for argument in arguments)
        return words if len(arguments) == 1 else f"one of {words}"
    if origin is tuple and arguments[-1] is Ellipsis:
        return f"a list with, for each entry, {_describe(arguments[0], [], every_bound)}"
    if origin is tuple:
        return f"a list of {len(arguments)} values, each {_describe(arguments[0], [], every_bound)}"
    if hasattr(annotation, "model_fields"):
        return f"keys such as {', '.join(list(annotation.model_fields)[:3])}, each with its value"
    if annotation is bool:
        return "true or false"
    if annotation is str:
        return f"text{_QUOTED}"
    return f"a {'whole number' if annotation is int else 'number'}{_range(metadata, every_bound)}"


def _range(metadata: list[Any], every_bound: bool) -> str:
    words = []
    for bound in metadata:
        for kind, attribute, phrase in _BOUNDS:
            limit = getattr(bound, attribute) if isinstance(bound, kind) else None
            if limit is not None and (every_bound or limit < _ASTRONOMIC):
                words.append(f"{phrase} {_number(limit)}")
    return f" {' and '.join(words)}" if words else ""


def _number(bound: Any) -> str:
    return f"{bound:g}" if isinstance(bound, float) else str(bound)
