"""Which columns of tables hold text, images and labels: named by the recipe, else guessed from names and types."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ppdgrow.config.schema import DataConfig
from ppdgrow.data.local.files import IMAGES
from ppdgrow.data.local.splits import few
from ppdgrow.data.local.tables import Tables
from ppdgrow.errors import ConfigError

TEXT_NAMES = ("text", "content", "document", "article", "story", "sentence", "code")
IMAGE_NAMES = ("image", "img", "picture", "photo")
PATH_NAMES = (*IMAGE_NAMES, "file_name", "filename", "image_path", "path", "file")
LABEL_NAMES = ("label", "labels", "class", "target", "fine_label", "category")
_STRINGS = ("string", "large_string")
_BINARIES = ("binary", "large_binary")
_LABELS = (*_STRINGS, "bool", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)))


def image_columns(tables: Tables, config: DataConfig) -> tuple[str, str] | None:
    """The columns of images and labels, if the tables have both.

    Raises:
        ConfigError: a named column is not there, or is not of the type; or there are no labels.
    """
    given = config.image_column
    if config.text_column is not None and given is None:
        return None
    fits = _holds_images if given is None else _may_hold_images
    image = _choose(tables, "image", given, IMAGE_NAMES, fits, lambda names: _only(names) or _path_column(tables))
    if image is None:
        return None
    label = _choose(
        tables, "label", config.label_column, LABEL_NAMES, lambda field: _type(field) in _LABELS, lambda names: None
    )
    if label is None:
        raise ConfigError(
            f"data {tables.where!r}: found images in {image!r} and no labels among {_columns(tables)}, expected a "
            "column of whole numbers or names: name it with -o data.label_column=NAME, or cast it, or name a column "
            "of text with -o data.text_column=NAME"
        )
    return image, label


def text_column(tables: Tables, config: DataConfig) -> str:
    """The column of the text.

    Raises:
        ConfigError: it is not there, or there are several that could be meant.
    """
    fits = _holds_text if config.text_column is None else _may_hold_text
    column = _choose(tables, "text", config.text_column, TEXT_NAMES, fits, _only)
    if column is None:
        other = "rename it to .txt to read all of it" if "encoding" in tables.keys else "use other data"
        raise ConfigError(
            f"data {tables.where!r}: found {_columns(tables)}, of which none is clearly the text, expected one "
            f"of strings: name it with -o data.text_column=NAME, or {other}"
        )
    return column


def _choose(
    tables: Tables,
    kind: str,
    given: str | None,
    usual: tuple[str, ...],
    fits: Callable[[Any], bool],
    otherwise: Callable[[list[str]], str | None],
) -> str | None:
    """The given column, else the first of the usual names, else what `otherwise` takes, of those whose type fits.

    A guess is noted where another column could be meant, or where it is not called as usual.
    """
    schema = tables.schema
    fitting = [field.name for field in schema if fits(field)]
    if given in fitting:
        return given
    if given is not None:
        what = f"is of type {schema.field(given).type}" if given in schema.names else "is not there"
        choice = f"one of {few(fitting)}" if fitting else f"other data: it has no column of {kind}s"
        raise ConfigError(f"data.{kind}_column is {given!r}, which {what} in {tables.where!r}: expected {choice}")
    lowered = {name.lower(): name for name in fitting}
    taken = next((lowered[name] for name in usual if name in lowered), None) or otherwise(fitting)
    if taken is None:
        return None
    others = [name for name in fitting if name != taken]
    if kind == "label":  # any whole number or string could be one: only those that are called so are meant
        others = [name for name in others if {name.lower(), name.lower().rpartition("_")[2]} & set(usual)]
    if others or taken.lower() not in usual:
        instead = f", not from {few(others)}" if others else ""
        tables.notes.append(f"{kind} taken from the column {taken!r}{instead} (set data.{kind}_column to choose)")
    return taken


def _only(names: list[str]) -> str | None:
    return names[0] if len(names) == 1 else None


def _path_column(tables: Tables) -> str | None:
    """A column of strings that begins with the path of an image, where no column is called like text."""
    if any(field.name.lower() in TEXT_NAMES for field in tables.schema):
        return None
    names = {field.name.lower(): field.name for field in tables.schema if _type(field) in _STRINGS}
    for column in (names[name] for name in PATH_NAMES if name in names):
        values = tables.column(tables.names[0], column)
        if len(values) and Path(values[0].as_py() or "").suffix.lower() in IMAGES:
            return column
    return None


def _columns(tables: Tables) -> str:
    return f"the columns {few([f'{field.name} ({_type(field)})' for field in tables.schema])}"


def _type(field: Any) -> str:
    """What values of a column are, whether or not each is stored once (as categories of pandas are)."""
    import pyarrow.types

    return str(field.type.value_type if pyarrow.types.is_dictionary(field.type) else field.type)


def _may_hold_text(field: Any) -> bool:
    return _type(field) in (*_STRINGS, *_BINARIES)


def _holds_text(field: Any) -> bool:
    """Strings; bytes only where the name says that they are text."""
    return _type(field) in _STRINGS or (_may_hold_text(field) and field.name.lower() in TEXT_NAMES)


def _holds_images(field: Any) -> bool:
    """Bytes, alone or in a struct as of the `datasets` library; a path without bytes where the name says so."""
    inner = _inner(field)
    if inner is None:
        return str(field.type) in _BINARIES and field.name.lower() not in TEXT_NAMES
    return inner.get("bytes") in _BINARIES or (inner.get("path") in _STRINGS and field.name.lower() in IMAGE_NAMES)


def _may_hold_images(field: Any) -> bool:
    return "path" in (_inner(field) or {}) or _holds_images(field) or _may_hold_text(field)


def _inner(field: Any) -> dict[str, str] | None:
    """The types within a struct, by name."""
    import pyarrow.types

    return {part.name: _type(part) for part in field.type} if pyarrow.types.is_struct(field.type) else None
