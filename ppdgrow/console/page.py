"""A page of headings, paragraphs, tables, lists and pictures, as one self-contained HTML file or as Markdown.

All text is taken as it is: nothing in it is markup. Each block brings its Jinja template, which escapes what it shows.
"""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ppdgrow.console.terminal import clean

PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ title }}</title>
<style>
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
</style>
</head>
<body>
<h1>{{ title }}</h1>
{% for block in blocks %}
{{ block }}
{% endfor %}
</body>
</html>
"""
# What begins markup: a bracket only where it could end the text of a link, some signs only at the start of a line.
_MARKDOWN = re.compile(r"([\\`*_<|~$&]|\](?=[(:\[]))")
_AT_START = re.compile(r"^([#>+-]|\d+(?=[.)]))")


@dataclass(frozen=True)
class Heading:
    """A heading below the title."""

    text: str
    template = "<h2>{{ block.text }}</h2>"

    def markdown(self) -> str:
        return f"## {plain(self.text)}"


@dataclass(frozen=True)
class Paragraph:
    """Running text."""

    text: str
    template = "<p>{{ block.text }}</p>"

    def markdown(self) -> str:
        return _AT_START.sub(r"\\\1", plain(self.text))


@dataclass(frozen=True)
class Table:
    """Rows of cells under a header; the columns of `left` hold text, the others figures, aligned to the right."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: Sequence[int] = (0,)
    template = """\
<div class="wide"><table>
<thead>
<tr>{% for cell in block.header %}
<th{% if loop.first %} style="min-width: {{ block.name_width }}ch"{% endif %}
{% if loop.index0 not in block.left %} class=right{% endif %}>{{ cell }}</th>
{%- endfor %}</tr>
</thead>
<tbody>
{% for row in block.rows %}
<tr>{% for cell in row %}<td{% if loop.index0 not in block.left %} class=right{% endif %}>{{ cell }}</td>
{%- endfor %}</tr>
{% endfor %}
</tbody>
</table></div>"""

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
    template = """\
<ul>
{% for item in block.items %}
<li>{{ item }}</li>
{% endfor %}
</ul>"""

    def markdown(self) -> str:
        return "\n".join(f"- {plain(item)}" for item in self.items)


@dataclass(frozen=True)
class Lines:
    """Text in fixed width, such as commands, folded away under a summary."""

    summary: str
    lines: tuple[str, ...]
    template = "<details><summary>{{ block.summary }}</summary>\n<pre>{{ block.text }}</pre></details>"

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def markdown(self) -> str:
        summary, text = (html.escape(clean(text)) for text in (self.summary, self.text))
        return f"<details><summary>{summary}</summary>\n\n<pre>\n{text}\n</pre>\n\n</details>"


@dataclass(frozen=True)
class Picture:
    """An SVG, which HTML holds, with the text that stands for it. Markdown names `file` instead, if there is one."""

    svg: bytes | None
    text: str
    file: str | None = None
    template = """\
{% if block.svg %}
<p><img alt="{{ block.text }}" src="data:image/svg+xml;base64,{{ block.data }}"></p>
{%- endif %}"""

    @property
    def data(self) -> str:
        return base64.b64encode(self.svg or b"").decode("ascii")

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
        from markupsafe import Markup

        def cleaned(value: Any) -> Any:
            return clean(value) if isinstance(value, str) and not isinstance(value, Markup) else value

        environment = jinja2.Environment(
            autoescape=True, finalize=cleaned, trim_blocks=True, keep_trailing_newline=True
        )
        shown = [Markup(environment.from_string(block.template).render(block=block)) for block in self.blocks]
        return environment.from_string(PAGE).render(title=self.title, blocks=shown)

    def markdown(self) -> str:
        """Markdown as code hosts show it."""
        blocks = [f"# {plain(self.title)}", *(block.markdown() for block in self.blocks)]
        return "\n\n".join(block for block in blocks if block) + "\n"


def plain(text: str) -> str:
    """Text in which nothing is markup, on one line."""
    return _MARKDOWN.sub(r"\\\1", clean(text).replace("\n", " "))
