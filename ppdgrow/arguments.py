"""What a caller from Python may pass, checked: a wrong type is a `ConfigError` that names the argument."""

from __future__ import annotations

import os
from collections.abc import Mapping
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from ppdgrow.errors import ConfigError

AnyPath = str | os.PathLike[str]
Device = Literal["auto", "cpu", "cuda"]
AskedPrecision = Literal["auto", "fp32", "bf16"]


def path_of(name: str, value: AnyPath) -> Path:
    """A path; an empty one (a variable that was never set) is not the current folder.

    Raises:
        ConfigError: it is empty, or no path.
    """
    text = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not isinstance(text, str) or not text.strip() or "\0" in text:
        raise ConfigError(f"{name} is {value!r}, expected the path of a file or folder, as text or pathlib.Path")
    return Path(text)


def optional_path(name: str, value: AnyPath | None) -> Path | None:
    """As `path_of`, or None.

    Raises:
        ConfigError: as `path_of`.
    """
    return None if value is None else path_of(name, value)


def switch(name: str, value: Any) -> bool:
    """True or False, and nothing that only counts as one.

    Raises:
        ConfigError: it is neither.
    """
    if not isinstance(value, bool):
        raise ConfigError(f"{name} is {value!r}, expected True or False")
    return value


def optional_number(name: str, value: Any) -> float | None:
    """A real number, or None.

    Raises:
        ConfigError: it is neither.
    """
    if value is not None and (isinstance(value, bool) or not isinstance(value, Real)):
        raise ConfigError(f"{name} is {value!r}, expected a number")
    return None if value is None else float(value)


def optional_whole(name: str, value: Any) -> int | None:
    """A whole number, or None.

    Raises:
        ConfigError: it is anything else.
    """
    value = plain(value)
    if value is None or type(value) is int:
        return value
    raise ConfigError(f"{name} is {value!r}, expected a whole number or None")


def mapping(name: str, value: Any) -> dict[str, Any]:
    """Plain values by key.

    Raises:
        ConfigError: it is no mapping.
    """
    if not isinstance(value, Mapping):
        raise ConfigError(f"{name} is {value!r}, expected a mapping of keys, such as {{'train.lr': 3e-4}}")
    return {key: plain(inner) for key, inner in value.items()}


def plain(value: Any) -> Any:
    """Numbers of other libraries, such as NumPy's, and paths as what a recipe file could hold."""
    if isinstance(value, Mapping):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, bool):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    return str(value) if isinstance(value, os.PathLike) else value


def one_of(name: str, value: Any, choice: Any) -> Any:
    """The value, if it is one of a `Literal`; a `torch.device` counts as its name.

    Raises:
        ConfigError: it is not.
    """
    value = str(value) if isinstance(value, torch.device) else value
    if value not in get_args(choice):
        raise ConfigError(f"{name} is {value!r}, expected one of {', '.join(map(str, get_args(choice)))}")
    return value


def optional_one_of(name: str, value: Any, choice: Any) -> Any:
    """As `one_of`, or None.

    Raises:
        ConfigError: as `one_of`.
    """
    return None if value is None else one_of(name, value, choice)
