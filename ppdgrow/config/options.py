"""Requests: pydantic models whose fields say how they look on the command line, and what is wrong with a value.

`ppdgrow.cli.command` makes Typer's options out of the fields, `ppdgrow.api` a signature and its documentation.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Self, Union, get_args, get_origin

from pydantic import ConfigDict, Field, ValidationError, ValidationInfo, field_validator
from pydantic.fields import FieldInfo

from ppdgrow.config.base import Frozen
from ppdgrow.config.schema import Recipe
from ppdgrow.errors import ConfigError

Heading = Literal["Recipe", "Model", "Data", "Training", "Growth", "Sample", "Decision", "Hardware", "Output"]
_HEADINGS: dict[str, Heading] = {"model": "Model", "data": "Data", "train": "Training"}


@dataclass(frozen=True)
class Option:
    """How a field looks on the command line; its description is the help."""

    heading: Heading | None = None  # of its group in the help
    metavar: str | None = None  # what stands for the value; left out, it is named by its type
    flag: str | None = None  # where it is not made of the field's name
    words: tuple[str, ...] = ()  # for completion, where the type does not name them
    argument: bool = False  # by place, not by a flag
    key: str | None = None  # the recipe key that it sets; Python callers give those in `values`
    in_python: bool = True  # whether Python callers have it
    help: str = ""
    doc: str | None = None  # what Python callers read in place of the help
    expected: str | None = None  # of a wrong value, where the type does not say it


def option(*look: Any, default: Any = None, help: str | None = None, least: int | None = None, **more: Any) -> Any:
    """A field with an `Option`; its help is the text below it, if none is given here."""
    most = None if least is None else 2**63 - 1
    extra: Any = {"option": Option(*look, **more)}
    return Field(default, description=help, ge=least, le=most, json_schema_extra=extra)


def recipe_key(key: str, help: str = "{}.", heading: Heading | None = None, **more: Any) -> Any:
    """A flag of the command line that sets a recipe key, whose type and description are those of the schema."""
    field = setting(key)
    (kind, *_), text = kinds(field.annotation), str(field.description)
    text = help.format(text[:1].upper() + text[1:] if help.startswith("{}") else text)
    words = get_args(kind) if get_origin(kind) is Literal else ()
    more = {"metavar": "|".join(words) or None, "words": words} | more
    return option(heading or _HEADINGS[key.partition(".")[0]], key=key, help=text, **more)


def setting(key: str) -> FieldInfo:
    """What the schema says about a recipe key."""
    section, _, name = key.partition(".")
    return Recipe.model_fields[section].annotation.model_fields[name]  # type: ignore[union-attr]


def kinds(annotation: Any) -> tuple[Any, ...]:
    """The types of which a value may be one, without None and bounds."""
    if get_origin(annotation) is Annotated:
        return kinds(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return tuple(kind for part in get_args(annotation) for kind in kinds(part) if kind is not NoneType)
    return (annotation,)


def plain(value: Any) -> Any:
    """Numbers of other libraries, such as NumPy's, paths and a `torch.device` as what a recipe file could hold."""
    if isinstance(value, Mapping):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, bool):
        return value
    if isinstance(value, Real):
        return int(value) if isinstance(value, Integral) else float(value)
    is_device = f"{type(value).__module__}.{type(value).__name__}" == "torch.device"
    return str(value) if is_device or isinstance(value, os.PathLike) else value


class Request(Frozen):
    """The options of one command. Paths are not yet looked at."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    @classmethod
    def parse(cls, values: Mapping[str, Any], *, flags: bool = False) -> Self:
        """Check the values of fields; those of the command line are called by their `flags` in messages.

        Raises:
            ConfigError: a value is of a wrong type or out of range, or would do nothing without another one.
        """
        source = "the command line" if flags else "the arguments"
        try:
            return cls.model_validate({name: plain(value) for name, value in values.items()}, context=source)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
        name = str(first["loc"][0])
        expected = _expected(cls.model_fields[name])
        if flags:
            name = str(dict(cls.options())[name].flag)
        elif name == "paths":
            name = "others" if first["loc"][1] else "baseline"
        raise ConfigError(f"{name} is {first['input']!r}, expected {expected}")

    @classmethod
    def options(cls) -> Iterator[tuple[str, Option]]:
        """Those of the command line, by field."""
        for name, field in cls.model_fields.items():
            if isinstance(field.json_schema_extra, dict):
                look: Any = field.json_schema_extra["option"]
                flag = look.flag or f"--{name.replace('_', '-')}"
                yield name, replace(look, flag=flag, help=" ".join((field.description or "").split()))

    def _refuse_without(self, needed: str, *names: str) -> None:
        """Refuse flags that would do nothing without another one."""
        flags = [f"--{name.replace('_', '-')}" for name in names if getattr(self, name) is not None]
        if flags:
            given = " and ".join(flags)
            raise ConfigError(
                f"found {given} without {needed}, where it would do nothing: add {needed}, or leave out {given}"
            )

    @field_validator("*", mode="before")
    @classmethod
    def _read_paths(cls, value: Any, info: ValidationInfo) -> Any:
        annotation = cls.model_fields[str(info.field_name)].annotation
        if get_origin(annotation) is tuple:
            value = () if value is None else tuple(value) if isinstance(value, list) else (value,)
            return tuple(map(_path, value)) if Path in get_args(annotation) else value
        return _path(value) if Path in kinds(annotation) else value


def _path(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if not value.strip() or "\0" in value:  # of a variable that was never set: it is not the current folder
        raise ValueError
    return Path(value)


def _expected(field: FieldInfo) -> str:
    if isinstance(field.json_schema_extra, dict):
        look: Any = field.json_schema_extra["option"]
        if look.expected is not None:
            return str(look.expected)
    kind = kinds(field.annotation)[0]
    if get_origin(kind) is Literal:
        return f"one of {', '.join(get_args(kind))}"
    least = next((f" of at least {bound.ge}" for bound in field.metadata if hasattr(bound, "ge")), "")
    words = {
        bool: "True or False",
        int: f"a whole number{least}",
        float: "a finite number of nats, such as 0.01",
        str: "text",
        Mapping[Any, Any]: "a mapping of keys, such as {'train.lr': 3e-4}",
    }
    return words.get(kind, "the path of a file or folder, as text or pathlib.Path")
