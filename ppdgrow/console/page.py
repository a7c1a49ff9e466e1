"""A page of headings, paragraphs, tables, lists and pictures, as one self-contained HTML file or as Markdown.

All text is taken as it is: nothing in it is markup. What a block is in HTML stands in `page.html`.
"""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ppdgrow.console.terminal import clean

# What begins markup: a bracket only where it could end the text of a link, some signs only at the start of a line.
_MARKDOWN = re.compile(r"([\\`*_<|~$&]|\](?=[(:\[]))")
_AT_START = re.compile(r"^([#>+-]|\d+(?=[.)]))")


@dataclass(frozen=True)
class Heading:
    """A heading below the title."""

    text: str

    def markdown(self) -> str:
        return f"## {plain(self.text)}"


@dataclass(frozen=True)
class Paragraph:
    """Running text."""

    text: str

    def markdown(self) -> str:
        return _AT_START.sub(r"\\\1", plain(self.text))


@dataclass(frozen=True)
class Table:
    """Rows of cells under a header; the columns of `left` hold text, the others figures, aligned to the right."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: Sequence[int] = (0,)

    @property
    def name_width(self) -> int:
        """The names of the first column stay in view; long ones are wrapped rather than pushing all else out of it."""
        return min(24, max(len(row[0]) for row in (self.header, *self.rows)))

    def markdown(self) -> str:
        rule = tuple("---" if place in self.left else "---:" for place in range(len(self.header)))
        header, *rows = (tuple(map(plain, row)) for row in (self.header, *self.rows))
        return "\n".join(f"| {' | '.join(row)} |" for row in (header, rule, *rows))


@dataclass(frozen=True)
class Items:
    """A list."""

    items: tuple[str, ...]

    def markdown(self) -> str:
        return "\n".join(f"- {plain(item)}" for item in self.items)


@dataclass(frozen=True)
class Lines:
    """Text in fixed width, such as commands, folded away under a summary."""

    summary: str
    lines: tuple[str, ...]

    def markdown(self) -> str:
        summary, text = (html.escape(clean(text)) for text in (self.summary, "\n".join(self.lines)))
        return f"<details><summary>{summary}</summary>\n\n<pre>\n{text}\n</pre>\n\n</details>"


@dataclass(frozen=True)
class Picture:
    """An SVG, which HTML holds, with the text that stands for it. Markdown names `file` instead, if there is one."""

    svg: bytes | None
    text: str
    file: str | None = None

    def markdown(self) -> str:
        return "" if self.file is None else f"![{plain(self.text)}](<{self.file}>)"


Block = Heading | Paragraph | Table | Items | Lines | Picture


@dataclass(frozen=True)
class Page:
    """A title and blocks below it."""

    title: str
    blocks: tuple[Block, ...]

    def html(self) -> str:
        """One file that needs no other; a script or a link to another place is nowhere in it."""
        import jinja2

        environment = jinja2.Environment(
            loader=jinja2.PackageLoader("ppdgrow.console", ""),
            autoescape=True,
            finalize=_cleaned,
            trim_blocks=True,
            keep_trailing_newline=True,
        )
        environment.filters["base64"] = lambda data: base64.b64encode(data).decode("ascii")
        return environment.get_template("page.html").render(title=self.title, blocks=self.blocks)

    def markdown(self) -> str:
        """Markdown as code hosts show it."""
        blocks = [f"# {plain(self.title)}", *(block.markdown() for block in self.blocks)]
        return "\n\n".join(block for block in blocks if block) + "\n"


def _cleaned(value: Any) -> Any:
    return clean(value) if isinstance(value, str) else value


def plain(text: str) -> str:
    """Text in which nothing is markup, on one line."""
    return _MARKDOWN.sub(r"\\\1", clean(text).replace("\n", " "))
