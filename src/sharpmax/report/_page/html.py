"""Build self-contained HTML pages."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Any, Final

from sharpmax.report._page import style
from sharpmax.report._page.tables import Table, pieces

_KINDS: Final = {".svg": "image/svg+xml", ".png": "image/png"}

_FRAME: Final = Path(__file__).with_name("page.html")
"""The frame of all pages; its style follows the light or dark mode of the reader's system."""


def write_html(path: str | Path, title: str, sections: Iterable[str]) -> Path:
    """Write a page that needs no other file; missing folders are created."""
    frame = Template(_FRAME.read_text(encoding="utf-8"))
    page = frame.substitute(title=escape(title), content="".join(sections))
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8")
    return path


def opening(title: str, lead: str, *texts: str) -> str:
    """Return the heading of a page, its conclusion in larger letters, and further paragraphs."""
    start = f'<h1>{escape(title)}</h1>\n<p class="lead">{escape(lead)}</p>\n'
    return start + paragraphs(*texts)


def paragraphs(*texts: str) -> str:
    """Return one paragraph per text; empty texts are left out."""
    return "".join(f"<p>{escape(text)}</p>\n" for text in texts if text)


def section(heading: str, *parts: str) -> str:
    """Return a section, or "" if it has no content."""
    content = "".join(parts)
    return f"<section>\n<h2>{escape(heading)}</h2>\n{content}</section>\n" if content else ""


def folded(summary: str, content: str) -> str:
    """Return content that a click opens."""
    return f"<details>\n<summary>{escape(summary)}</summary>\n{content}</details>\n"


def code(text: str) -> str:
    """Return a block of code."""
    return f"<pre><code>{escape(text)}</code></pre>\n"


def entries(facts: Mapping[str, str]) -> str:
    """Return a list of names and values."""
    each = (f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>\n" for name, value in facts.items())
    return f"<dl>\n{''.join(each)}</dl>\n"


def figure_html(pictures: Mapping[str, str], name: str, alt: str, caption: str) -> str:
    """Return a picture with its alternative text, or "" if there is no picture of that name."""
    if name not in pictures:
        return ""
    below = f"<figcaption>{escape(caption)}</figcaption>\n" if caption else ""
    image = f'<img src="{pictures[name]}" alt="{escape(alt)}">'
    return f'<figure>\n<div class="wide">{image}</div>\n{below}</figure>\n'


def data_uri(content: bytes, suffix: str) -> str:
    """Return the content of an image file (".svg" or ".png") as a data URI."""
    return f"data:{_KINDS[suffix]};base64,{base64.b64encode(content).decode('ascii')}"


def embedded(figures: Mapping[str, Any], suffix: str) -> dict[str, str]:
    """Return figures of matplotlib as data URIs, by name."""
    return {name: data_uri(style.render(each, suffix), suffix) for name, each in figures.items()}


def table_html(table: Table) -> str:
    """Return a table, which scrolls if the window is too narrow."""

    def line(tag: str, cells: Sequence[str]) -> str:
        found = []
        for place, cell in enumerate(cells):
            word = ' class="word"' if place < max(table.words, 1) else ""
            found.append(f"<{tag}{word}>{inline(cell)}</{tag}>")
        return f"<tr>{''.join(found)}</tr>"

    rows = "\n".join(line("td", row) for row in table.rows)
    below = f'<p class="below">{inline(table.caption)}</p>\n' if table.caption else ""
    return (
        f'<div class="wide">\n<table>\n<thead>{line("th", table.header)}</thead>\n'
        f"<tbody>\n{rows}\n</tbody>\n</table>\n</div>\n{below}"
    )


def inline(content: str) -> str:
    """Convert the Markdown that tables use: bold and code."""
    tags = {"bold": "<strong>{}</strong>", "code": "<code>{}</code>"}
    return "".join(tags.get(style, "{}").format(escape(part)) for style, part in pieces(content))
