"""Parts of pages that need no other file: what all reports are put together from."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Final

from sharpmax.report._page.tables import Table

_KINDS: Final = {".svg": "image/svg+xml", ".png": "image/png"}

STYLE: Final = """
:root { color-scheme: light dark; --text: #1c1c1c; --soft: #555; --ground: #fff; --line: #d8d8d8;
  --code: #f3f3f3; --link: #0072b2; }
@media (prefers-color-scheme: dark) { :root { --text: #e8e8e8; --soft: #aaa; --ground: #161616;
  --line: #3a3a3a; --code: #242424; --link: #56b4e9; } }
body { margin: 0; background: var(--ground); color: var(--text);
  font: 16px/1.55 system-ui, sans-serif; }
main { max-width: 62rem; margin: 0 auto; padding: 1.5rem 1.25rem 4rem; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: .6rem 0 1rem; }
h2 { font-size: 1.25rem; margin: 2.6rem 0 .6rem; }
.lead { font-size: 1.15rem; }
p, dd { max-width: 48rem; }
.soft, figcaption, .below { color: var(--soft); font-size: .9rem; }
figure { margin: 1rem 0; }
/* Figures are drawn on white, so they keep a white ground in the dark. */
figure img { display: block; width: 100%; height: auto; background: #fff; border-radius: 6px; }
.wide { overflow-x: auto; }
/* On a telephone a picture is as wide as it takes to read it, and scrolls. */
@media (max-width: 44rem) { figure img { width: 44rem; max-width: none; } }
table { border-collapse: collapse; font-size: .8rem; font-variant-numeric: tabular-nums; }
th, td { padding: .28rem .38rem; border-bottom: 1px solid var(--line); text-align: right;
  white-space: nowrap; }
th.word, td.word { text-align: left; white-space: normal; }
pre, code { font-family: ui-monospace, monospace; background: var(--code); border-radius: 4px; }
code { padding: .1em .3em; font-size: .92em; }
pre { padding: .8rem 1rem; overflow-x: auto; }
pre code { padding: 0; }
dt { font-weight: 600; margin-top: .5rem; }
dd { margin: 0; overflow-wrap: anywhere; }
summary { cursor: pointer; margin: .8rem 0; }
"""
"""Of every report: light or dark as the reader's system is."""


def write_html(path: str | Path, title: str, sections: Iterable[str]) -> Path:
    """Write a page.

    Args:
        path: Where to write.
        title: Of the page.
        sections: What is on it, as HTML.

    Returns:
        The path that was written; folders on the way to it are made.
    """
    page = f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{STYLE}</style>
</head>
<body>
<main>
{"".join(sections)}</main>
</body>
</html>
"""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8")
    return path


def section(heading: str, *parts: str) -> str:
    """A section; nothing if it has no content."""
    content = "".join(parts)
    return f"<section>\n<h2>{escape(heading)}</h2>\n{content}</section>\n" if content else ""


def folded(summary: str, content: str) -> str:
    """Content that a click shows."""
    return f"<details>\n<summary>{escape(summary)}</summary>\n{content}</details>\n"


def code(text: str) -> str:
    """Lines to type."""
    return f"<pre><code>{escape(text)}</code></pre>\n"


def entries(facts: Mapping[str, str]) -> str:
    """Names and what they stand for."""
    each = (f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>\n" for name, value in facts.items())
    return f"<dl>\n{''.join(each)}</dl>\n"


def figure_html(pictures: Mapping[str, str], name: str, alt: str, caption: str) -> str:
    """A picture with a text for those who do not see it; nothing if there is no such picture."""
    if name not in pictures:
        return ""
    below = f"<figcaption>{escape(caption)}</figcaption>\n" if caption else ""
    image = f'<img src="{pictures[name]}" alt="{escape(alt)}">'
    return f'<figure>\n<div class="wide">{image}</div>\n{below}</figure>\n'


def picture(path: Path) -> str:
    """The content of a file as an address, so that the page needs no file beside it."""
    data = base64.b64encode(path.read_bytes()).decode("ascii")
    return f"data:{_KINDS[path.suffix]};base64,{data}"


def table_html(table: Table) -> str:
    """A table, which scrolls by itself where the window is narrower."""

    def cell(tag: str, column: int, content: str) -> str:
        kind = ' class="word"' if column < max(table.words, 1) else ""
        return f"<{tag}{kind}>{inline(content)}</{tag}>"

    def line(tag: str, cells: Sequence[str]) -> str:
        return (
            "<tr>" + "".join(cell(tag, place, each) for place, each in enumerate(cells)) + "</tr>"
        )

    rows = "\n".join(line("td", row) for row in table.rows)
    below = f'<p class="below">{inline(table.caption)}</p>\n' if table.caption else ""
    return (
        f'<div class="wide">\n<table>\n<thead>{line("th", table.header)}</thead>\n'
        f"<tbody>\n{rows}\n</tbody>\n</table>\n</div>\n{below}"
    )


def inline(content: str) -> str:
    """Bold and code of Markdown, which is what tables use."""
    content = re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", escape(content))
    return re.sub(r"`(.+?)`", r"<code>\1</code>", content)
