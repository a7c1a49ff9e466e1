"""The part of YAML 1.2 that recipes use: `3e-4` is a number, `no` is a word, nothing is repeated or shared.

PyYAML speaks YAML 1.1, in which `3e-4` is text, `no` is false, `1:30` is 90 and the last of two equal keys wins.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable
from typing import Any

import yaml
from yaml.constructor import ConstructorError
from yaml.reader import ReaderError

from ppdgrow.errors import ConfigError

# Of a plain scalar: its pattern, the characters that it may begin with, and its value; all else is text.
_SCALARS: dict[str, tuple[re.Pattern[str], str, Callable[[str], Any]]] = {
    "null": (re.compile(r"^(?:~|null|Null|NULL|)$"), "~nN", lambda text: None),
    "bool": (re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), "tTfF", lambda text: text.lower() == "true"),
    "int": (re.compile(r"^[-+]?[0-9]+$"), "-+0123456789", int),
    "float": (
        re.compile(
            r"^(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
        ),
        "-+.0123456789",
        lambda text: float(text.lower().replace(".inf", "inf").replace(".nan", "nan")),
    ),
}
# Bare words that a YAML 1.1 reader would take for something else.
_WORDS_OF_1_1 = frozenset({"y", "yes", "n", "no", "on", "off", "true", "false", "null"})
_BARE = re.compile(r"^[A-Za-z_/](?:[A-Za-z0-9_./+:-]*[A-Za-z0-9_./+-])?$")
_DEEPEST = 20
_TOO_DEEP = "nested too deeply, expected sections of plain values"


class _RecipeLoader(yaml.BaseLoader):
    """Plain mappings, lists and scalars; no tags, anchors, aliases or duplicate keys."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
            raise _refusal("anchors (&) and aliases (*) are not allowed: write each value out, or quote it", event)
        if getattr(event, "tag", None) is not None:
            raise _refusal("tags (!) are not allowed: write a plain value, or quote it", event)
        self.depth += 1
        if self.depth > _DEEPEST:
            raise _refusal(_TOO_DEEP, event)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """Keys are words, and each comes once."""
        mapping: dict[Hashable, Any] = {}
        lines: dict[str, int] = {}
        for key_node, value_node in node.value:
            key = self.construct_object(key_node, deep=True)
            if key == "<<":
                raise _refusal("merge keys (<<) are not allowed: write each value out", key_node)
            if not isinstance(key, str):
                raise _refusal(f"a key must be a name, found {key!r}", key_node)
            if key in mapping:
                raise _refusal(f"duplicate key {key!r}, first given on line {lines[key]}: leave one out", key_node)
            mapping[key] = self.construct_object(value_node, deep=True)
            lines[key] = key_node.start_mark.line + 1
        return mapping

    def construct_plain(self, node: yaml.ScalarNode) -> Any:
        try:
            return _SCALARS[node.tag][2](node.value)
        except ValueError:
            raise _refusal("a number with too many digits", node) from None


def _refusal(problem: str, at: Any) -> ConstructorError:
    return ConstructorError(None, None, problem, at.start_mark)


for _tag, (_pattern, _first, _) in _SCALARS.items():
    _RecipeLoader.add_implicit_resolver(_tag, _pattern, [*_first, *([""] if _pattern.match("") else [])])
    _RecipeLoader.add_constructor(_tag, _RecipeLoader.construct_plain)


def parse_yaml(text: str, where: str) -> Any:
    """The value of a YAML document, or None for an empty one.

    Raises:
        ConfigError: it is not YAML, or uses what recipes may not; the message begins with `where` and has the line.
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
        raise ConfigError(f"{where}: {_TOO_DEEP}") from None


def parse_value(text: str, where: str) -> Any:
    """The value of one `key=value`: quoted text, `[lists]` and `{mappings}` are YAML, else one whole scalar.

    Unlike in a file, `#`, `: `, `*` and the like have no meaning here, so that paths need no quotes. Raises as
    `parse_yaml`.
    """
    text = text.strip()
    if text[:1] in ("'", '"', "[", "{") or any(pattern.match(text) for pattern, *_ in _SCALARS.values()):
        return parse_yaml(text, where)
    return text


def format_value(value: Any) -> str:
    """One value as YAML on one line, which `parse_yaml` (and a YAML 1.1 reader) reads back as the same."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        text = repr(value)
        return text if "." in text else text.replace("e", ".0e")
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(format_value(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{format_value(key)}: {format_value(item)}" for key, item in value.items()) + "}"
    if _BARE.match(value) and value.lower() not in _WORDS_OF_1_1:
        return str(value)
    quoted: str = yaml.dump(value, Dumper=yaml.SafeDumper, default_style='"', allow_unicode=True, width=2**31)
    return quoted.rstrip("\n")
