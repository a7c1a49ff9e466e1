"""A page of headings, paragraphs, tables, lists and pictures, as one self-contained HTML file or as Markdown.

All text is taken as it is: nothing in it is markup.
"""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Sequence
from dataclasses import dataclass

from ppdgrow.console.terminal import clean

STYLE = """
:root { color-scheme: light dark; --ink: #222; --paper: #fff; --line: #ccc; --soft: #f4f4f4; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e4e4; --paper: #161616; --line: #444; --soft: #222; } }
body { color: var(--ink); background: var(--paper); font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto;
       max-width: 92rem; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
div.wide { overflow-x: auto; margin-bottom: 1.2rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 0.87rem; }
th, td { border-bottom: 1px solid var(--line); padding: 0.2rem 0.8rem 0.2rem 0; text-align: left; vertical-align: top; }
td.right, th.right { text-align: right; } td.right { white-space: nowrap; } td { background: var(--paper); }
th { font-weight: 600; vertical-align: bottom; background: var(--paper); }
tr:nth-child(even) td { background: var(--soft); }
th:first-child, td:first-child { position: sticky; left: 0; overflow-wrap: break-word; }
img { max-width: 100%; background: #fff; border-radius: 4px; }
pre, code { font: 0.82rem/1.45 ui-monospace, monospace; } pre { background: var(--soft); padding: 0.6rem;
       overflow-x: auto; } summary { cursor: pointer; margin: 0.3rem 0; }
@media print { :root { --ink: #000; --paper: #fff; --line: #999; --soft: #fff; } @page { size: landscape; margin: 8mm; }
       body { max-width: none; } div.wide { overflow: visible; } table { font-size: 6.5pt; }
       th, td, td.right { white-space: normal; padding-right: 0.3rem; } }
"""
# What begins markup: a bracket only where it could end the text of a link, some signs only at the start of a line.
_MARKDOWN = re.compile(r"([\\`*_<|~$&]|\](?=[(:\[]))")
_AT_START = re.compile(r"^([#>+-]|\d+(?=[.)]))")


@dataclass(frozen=True)
class Heading:
    """A heading below the title."""

    text: str


@dataclass(frozen=True)
class Paragraph:
    """Running text."""

    text: str


@dataclass(frozen=True)
class Table:
    """Rows of cells under a header; columns of `right` are aligned to the right."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Items:
    """A list."""

    items: tuple[str, ...]


@dataclass(frozen=True)
class Lines:
    """Text in fixed width, such as commands, folded away under a summary."""

    summary: str
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Picture:
    """An SVG, which HTML holds, with the text that stands for it. Markdown names `file` instead, if there is one."""

    svg: bytes | None
    text: str
    file: str | None = None


Block = Heading | Paragraph | Table | Items | Lines | Picture


@dataclass(frozen=True)
class Page:
    """A title and blocks below it."""

    title: str
    blocks: tuple[Block, ...]

    def html(self) -> str:
        """One file that needs no other; a script or a link to another place is nowhere in it."""
        body = "\n".join(_html(block) for block in self.blocks)
        title = _escape(self.title)
        return (
            f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>{title}</title>\n'
            f"<style>{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n{body}\n</body>\n</html>\n"
        )

    def markdown(self) -> str:
        """Markdown as code hosts show it."""
        blocks = [f"# {plain(self.title)}", *(_markdown(block) for block in self.blocks)]
        return "\n\n".join(block for block in blocks if block) + "\n"


def _html(block: Block) -> str:
    match block:
        case Heading(text):
            return f"<h2>{_escape(text)}</h2>"
        case Paragraph(text):
            return f"<p>{_escape(text)}</p>"
        case Items(items):
            return "<ul>\n" + "\n".join(f"<li>{_escape(item)}</li>" for item in items) + "\n</ul>"
        case Lines(summary, lines):
            text = _escape("\n".join(lines))
            return f"<details><summary>{_escape(summary)}</summary>\n<pre>{text}</pre></details>"
        case Picture(svg, text, _):
            if svg is None:
                return ""
            data = base64.b64encode(svg).decode("ascii")
            return f'<p><img alt="{_escape(text)}" src="data:image/svg+xml;base64,{data}"></p>'
        case Table(header, rows, right):
            # The names of the first column stay in view; long ones are wrapped rather than pushing all else out of it.
            width = min(24, max(len(row[0]) for row in (header, *rows)))
            head = _html_row(header, right, "th").replace("<th", f'<th style="min-width: {width}ch"', 1)
            body = "\n".join(_html_row(row, right, "td") for row in rows)
            return f'<div class="wide"><table>\n<thead>\n{head}\n</thead>\n<tbody>\n{body}\n</tbody>\n</table></div>'


def _html_row(cells: Sequence[str], right: frozenset[int], tag: str) -> str:
    columns = "".join(
        f"<{tag}{' class=right' if place in right else ''}>{_escape(cell)}</{tag}>" for place, cell in enumerate(cells)
    )
    return f"<tr>{columns}</tr>"


def _markdown(block: Block) -> str:
    match block:
        case Heading(text):
            return f"## {plain(text)}"
        case Paragraph(text):
            return _AT_START.sub(r"\\\1", plain(text))
        case Items(items):
            return "\n".join(f"- {plain(item)}" for item in items)
        case Lines(summary, lines):
            text = _escape("\n".join(lines))
            return f"<details><summary>{_escape(summary)}</summary>\n\n<pre>\n{text}\n</pre>\n\n</details>"
        case Picture(_, text, file):
            return "" if file is None else f"![{plain(text)}](<{file}>)"
        case Table(header, rows, right):
            rule = ["---:" if place in right else "---" for place in range(len(header))]
            cells = [tuple(plain(cell) for cell in row) for row in (header, *rows)]
            return "\n".join(f"| {' | '.join(row)} |" for row in (cells[0], tuple(rule), *cells[1:]))


def _escape(text: str) -> str:
    return html.escape(clean(text), quote=True)


def plain(text: str) -> str:
    """Text in which nothing is markup, on one line."""
    return _MARKDOWN.sub(r"\\\1", clean(text).replace("\n", " "))
