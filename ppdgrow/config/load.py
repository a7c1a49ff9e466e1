"""From files, `-o key=value` and flags to one validated recipe that knows where each value came from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ppdgrow.atomic import is_lfs_pointer
from ppdgrow.config.explain import explain, shorten, unknown_key
from ppdgrow.config.schema import Recipe, flatten, nest, recipe_keys
from ppdgrow.config.yaml12 import format_value, parse_value, parse_yaml
from ppdgrow.errors import ConfigError

MAX_RECIPE_BYTES = 2**20
# What runs did that were recorded before these keys existed, where that is not today's default.
_BEFORE = {"data.augment": False}
HEADER = "# After each value: where it came from.\n"


@dataclass(frozen=True)
class Layer:
    """Recipe values by dotted key, from one source such as `recipe small.yaml`, `-o` or `--lr`."""

    source: str
    values: Mapping[str, Any]


@dataclass(frozen=True)
class Resolved:
    """A validated recipe, and for each dotted key the source of its value (`default` if nobody gave one)."""

    recipe: Recipe
    sources: dict[str, str]

    def replace(self, values: Mapping[str, Any], source: str) -> Resolved:
        """The recipe with some values changed, for those filled in from the data or measured."""
        return resolve([Layer(source, values)], self)


def read_yaml(path: Path | str) -> dict[str, Any]:
    """A recipe file as `{"train.lr": 3e-4, ...}`, not yet validated: what is no key is for `resolve` to name.

    Raises:
        ConfigError: the file is missing, unreadable, not UTF-8, not YAML, or holds anything but sections of keys.
    """
    where = f"recipe {str(path)!r}"
    document = parse_yaml(_read_text(Path(path), where), where)
    if document is not None and not isinstance(document, dict):
        raise ConfigError(
            f"{where}: found {shorten(document)}, expected sections such as 'train:' with keys below them"
        )
    return flat_keys(document or {}, where)


def flat_keys(document: Mapping[str, Any], where: str) -> dict[str, Any]:
    """A recipe's sections, or dotted keys among them, as flat dotted keys.

    Raises:
        ConfigError: a key is given in both ways; the message calls the recipe `where`.
    """
    flat: dict[str, Any] = {}
    for section, content in document.items():
        if section in Recipe.model_fields and content is None:
            continue
        for key, value in flatten({section: content}).items():
            if key in flat:
                raise ConfigError(f"{where}: {key!r} is given twice, with a dot and in its section: leave one out")
            flat[key] = value
    return flat


def read_run_recipe(path: Path) -> dict[str, Any]:
    """As `read_yaml`, of a run folder: a key that is younger than the run has the value that it acted by."""
    return _BEFORE | read_yaml(path)


def _read_text(path: Path, where: str) -> str:
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_RECIPE_BYTES + 1)
        if len(raw) > MAX_RECIPE_BYTES:
            problem = f" is larger than {MAX_RECIPE_BYTES} bytes, expected a short YAML file: is it the right one?"
        elif is_lfs_pointer(raw):
            problem = " is a git-lfs pointer, not the file itself: run git lfs pull in its repository"
        elif not raw.strip():
            problem = " is empty, expected sections such as 'train:' with keys below them"
        else:
            return raw.decode("utf-8-sig")
    except FileNotFoundError:
        problem = " does not exist: give the path of a YAML file, or leave --recipe out"
    except IsADirectoryError:
        problem = " is a folder, expected a YAML file, such as the recipe.yaml of a run"
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        problem = f", line {line}: not UTF-8 text (byte 0x{raw[error.start]:02x}): save it as UTF-8"
    except (OSError, ValueError) as error:
        problem = f" cannot be read: {getattr(error, 'strerror', None) or error}"
    raise ConfigError(f"{where}{problem}")


def parse_override(text: str) -> tuple[str, Any]:
    """Split `train.lr=3e-4` at its first `=`, and read the value by `parse_value`.

    Raises:
        ConfigError: there is no `=` or no key, or the value has an open quote or bracket.
    """
    key, equals, value = text.partition("=")
    key = key.strip()
    if not equals or not key:
        raise ConfigError(f"-o {shorten(text)}: expected key=value, such as -o train.lr=3e-4")
    return key, parse_value(value, f"-o {shorten(key)}")


def resolve(layers: Sequence[Layer], start: Resolved | None = None) -> Resolved:
    """Lay values over the defaults, or over another recipe, later layers over earlier ones, and validate the whole.

    Raises:
        ConfigError: an unknown key (with the nearest valid one), a bad value (with key, found, expected and
            source), or values that contradict each other.
    """
    start = start or Resolved(Recipe(), dict.fromkeys(recipe_keys(), "default"))
    merged, origin = flatten(start.recipe.model_dump()), dict(start.sources)
    for layer in layers:
        for key, value in layer.values.items():
            if key not in merged:
                raise ConfigError(unknown_key(str(key), layer.source))
            merged[key], origin[key] = value, layer.source
    try:
        return Resolved(Recipe.model_validate(nest(merged)), origin)
    except ValidationError as error:
        raise ConfigError(explain(error, merged, origin)) from None


def dump(resolved: Resolved) -> str:
    """The whole recipe as YAML in the order of the schema, each value with its source behind it; see `read_yaml`."""
    lines = []
    for section, keys in resolved.recipe.model_dump(exclude={"growth"}).items():
        lines.append(f"{section}:")
        entries = {name: f"  {name}: {format_value(value)}" for name, value in keys.items()}
        width = min(max(map(len, entries.values())), 40)
        for name, entry in entries.items():
            lines.append(f"{entry:<{width}}  # {_one_line(resolved.sources[f'{section}.{name}'])}")
    growth = resolved.recipe.growth
    lines.append(f"growth:{'' if growth else ' []'}  # {_one_line(resolved.sources['growth'])}")
    lines += [f"  - {format_value(entry.as_written())}" for entry in growth]
    return HEADER + "\n".join(lines) + "\n"


def _one_line(text: str) -> str:
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)


def recipe_hash(recipe: Recipe) -> str:
    """12 hexadecimal digits of the sha256 of all values: equal recipes have equal ones, whatever their sources."""
    text = json.dumps(flatten(recipe.model_dump()), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
