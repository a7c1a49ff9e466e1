"""The part of YAML 1.2 that recipes use: `3e-4` is a number, `no` is a word, nothing is repeated or shared.

PyYAML speaks YAML 1.1, in which `3e-4` is text, `no` is false, `1:30` is 90 and the last of two equal keys wins.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar

import yaml
from yaml.constructor import ConstructorError
from yaml.reader import ReaderError

from ppdgrow.errors import ConfigError

_PREFIX = "tag:yaml.org,2002:"
_SCALARS = (
    ("null", re.compile(r"^(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""]),
    ("bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")),
    ("int", re.compile(r"^[-+]?[0-9]+$"), list("-+0123456789")),
    (
        "float",
        re.compile(
            r"^(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
        ),
        list("-+.0123456789"),
    ),
)
# Bare words that a YAML 1.1 reader would take for something else.
_WORDS_OF_1_1 = frozenset({"y", "yes", "n", "no", "on", "off", "true", "false", "null"})
_BARE = re.compile(r"^[A-Za-z_/](?:[A-Za-z0-9_./+:-]*[A-Za-z0-9_./+-])?$")
_DEEPEST = 20


class _RecipeLoader(yaml.SafeLoader):
    """Plain mappings, lists and scalars; no tags, anchors, aliases or duplicate keys."""

    # Emptied, so that nothing of YAML 1.1 is inherited.
    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}  # type: ignore[misc]
    yaml_constructors: ClassVar[dict[str | None, Any]] = {}

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self.depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
            problem = "anchors (&) and aliases (*) are not allowed: write each value out, or quote it"
            raise ConstructorError(None, None, problem, event.start_mark)
        if getattr(event, "tag", None) is not None:
            problem = "tags (!) are not allowed: write a plain value, or quote it"
            raise ConstructorError(None, None, problem, event.start_mark)
        self.depth += 1
        if self.depth > _DEEPEST:
            raise ConstructorError(None, None, "nested too deeply, expected sections of plain values", event.start_mark)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def recipe_mapping(self, node: yaml.MappingNode) -> dict[str, Any]:
        """Keys are words, and each comes once."""
        mapping: dict[str, Any] = {}
        lines: dict[str, int] = {}
        for key_node, value_node in node.value:
            key = self.construct_object(key_node, deep=True)
            if key == "<<":
                raise ConstructorError(
                    None, None, "merge keys (<<) are not allowed: write each value out", key_node.start_mark
                )
            if not isinstance(key, str):
                raise ConstructorError(None, None, f"a key must be a name, found {key!r}", key_node.start_mark)
            if key in mapping:
                raise ConstructorError(
                    None,
                    None,
                    f"duplicate key {key!r}, first given on line {lines[key]}: leave one out",
                    key_node.start_mark,
                )
            mapping[key] = self.construct_object(value_node, deep=True)
            lines[key] = key_node.start_mark.line + 1
        return mapping

    def recipe_int(self, node: yaml.ScalarNode) -> int:
        """Whole number of a sane length."""
        try:
            return int(node.value)
        except ValueError:
            raise ConstructorError(None, None, "a number with too many digits", node.start_mark) from None

    def recipe_float(self, node: yaml.ScalarNode) -> float:
        """Decimal number, infinity or not-a-number (the schema refuses the last two)."""
        return float(node.value.lower().replace(".inf", "inf").replace(".nan", "nan"))

    def recipe_list(self, node: yaml.SequenceNode) -> list[Any]:
        """List of values."""
        return [self.construct_object(item, deep=True) for item in node.value]


for _name, _pattern, _first in _SCALARS:
    _RecipeLoader.add_implicit_resolver(_PREFIX + _name, _pattern, _first)
_RecipeLoader.add_constructor(_PREFIX + "null", lambda loader, node: None)
_RecipeLoader.add_constructor(_PREFIX + "bool", lambda loader, node: node.value.lower() == "true")
_RecipeLoader.add_constructor(_PREFIX + "str", lambda loader, node: node.value)
_RecipeLoader.add_constructor(_PREFIX + "int", _RecipeLoader.recipe_int)
_RecipeLoader.add_constructor(_PREFIX + "float", _RecipeLoader.recipe_float)
_RecipeLoader.add_constructor(_PREFIX + "seq", _RecipeLoader.recipe_list)
_RecipeLoader.add_constructor(_PREFIX + "map", _RecipeLoader.recipe_mapping)


def parse_yaml(text: str, where: str) -> Any:
    """The value of a YAML document, or None for an empty one.

    Args:
        text: the document.
        where: what to call it in an error, such as `recipe 'a.yaml'`.

    Raises:
        ConfigError: it is not YAML, or uses what recipes may not; the message has the line number.
    """
    try:
        return _RecipeLoader(text).get_single_data()
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise ConfigError(
            f"{where}, line {line}: a control character (code {ord(text[error.position])}), expected plain text: "
            "remove it, or write it as an escape in double quotes"
        ) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line_text = "" if mark is None else f", line {mark.line + 1}"
        problem = error.problem or error.context or "not valid YAML"
        if problem.startswith("but"):
            problem = f"{error.context}, {problem}"
        raise ConfigError(f"{where}{line_text}: {problem}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{where}: not valid YAML ({' '.join(str(error).split())})") from None
    except RecursionError:
        raise ConfigError(f"{where}: nested too deeply, expected sections of plain values") from None


def parse_value(text: str, where: str) -> Any:
    """The value of one `key=value`: quoted text, `[lists]` and `{mappings}` are YAML, else one whole scalar.

    Unlike in a file, `#`, `: `, `*` and the like have no meaning here, so that paths need no quotes.

    Raises:
        ConfigError: a quote or bracket is not closed, or the number has too many digits.
    """
    text = text.strip()
    if text[:1] in ("'", '"', "[", "{") or any(pattern.match(text) for _, pattern, _ in _SCALARS):
        return parse_yaml(text, where)
    return text


def format_value(value: Any) -> str:
    """One value as YAML on one line, which `parse_yaml` (and a YAML 1.1 reader) reads back as the same."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        text = repr(value)
        return text if "." in text or "e" not in text else text.replace("e", ".0e")
    if isinstance(value, int):
        return str(value)
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(format_value(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{format_value(key)}: {format_value(item)}" for key, item in value.items()) + "}"
    if _BARE.match(value) and value.lower() not in _WORDS_OF_1_1:
        return str(value)
    quoted: str = yaml.dump(value, Dumper=yaml.SafeDumper, default_style='"', allow_unicode=True, width=2**31)
    return quoted.rstrip("\n")
