"""The report of max retrieval as one HTML file that needs nothing else."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

from sharpmax.report import _page_text as text
from sharpmax.report._cells import WEIGHTS
from sharpmax.report._selection import weights_kinds
from sharpmax.report.max_retrieval import (
    beyond_table,
    further_table,
    inference_table,
    paper_table,
    trained_table,
    training_table,
)
from sharpmax.report.max_retrieval_figures import draw_all
from sharpmax.report.tables import Table

if TYPE_CHECKING:
    from sharpmax.lab.max_retrieval.records import Table as Results

__all__ = ["write_page"]

_KINDS: Final = {".svg": "image/svg+xml", ".png": "image/png"}

_STYLE: Final = """
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


def write_page(
    path: str | Path,
    table: Results,
    figures: dict[str, Any] | None = None,
    *,
    title: str = "Attention that stays sharp as sets grow",
) -> Path:
    """Write the report of max retrieval: figures, tables, how it works, and what ran.

    The file needs no other: pictures are inside it, and nothing is fetched. What the data lack is
    left out.

    Args:
        path: Where to write.
        table: The results; one recipe, one seed and a few methods at inference are enough.
        figures: Data of the figures; None leaves out the attention maps and the fit.
        title: Of the page.

    Returns:
        The path that was written; folders on the way to it are made.

    Raises:
        MissingExtra: matplotlib is not installed.
        LookupError: The results have no method at inference.
    """
    facts = text.facts(table, figures)
    with TemporaryDirectory() as folder:
        drawn = {each.name: each for each in draw_all(table, figures, folder)}
        pictures = {name: _picture(each) for name, each in drawn.items()}
    sections = [
        _opening(title, facts),
        _accuracy(table, facts, pictures),
        _attention(facts, pictures),
        _fit(facts, pictures),
        _mechanism(facts, pictures),
        *_others(table, pictures),
        _next(facts),
        _ran(facts),
    ]
    page = f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{_STYLE}</style>
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


def _opening(title: str, facts: text.Facts) -> str:
    return (
        f"<h1>{escape(title)}</h1>\n"
        f'<p class="lead">{escape(facts.what_one_sees)}</p>\n<p>{escape(text.WHY)}</p>\n'
    )


def _accuracy(table: Results, facts: text.Facts, pictures: dict[str, str]) -> str:
    first, *others = weights_kinds(table, "inference")
    parts = [
        _figure(pictures, "accuracy-inference.svg", facts.accuracy_alt, ""),
        _table(inference_table(table, first)),
    ]
    parts += [
        _folded(f"The same: {WEIGHTS[kind]}", _table(inference_table(table, kind)))
        for kind in others
    ]
    parts += _optional("The paper's table next to this one", paper_table, table)
    parts += _optional("Sets larger still", further_table, table)
    return _section("Accuracy against the number of items", *parts)


def _attention(facts: text.Facts, pictures: dict[str, str]) -> str:
    parts = [
        _figure(pictures, name, alt, caption)
        for name, alt, caption in (
            ("attention-compared.png", facts.attention_alt, text.ATTENTION_COMPARED),
            ("attention-softmax.png", facts.softmax_alt, text.ATTENTION_SOFTMAX),
        )
    ]
    return _section("Where the weight goes", *parts)


def _fit(facts: text.Facts, pictures: dict[str, str]) -> str:
    figure = _figure(pictures, "fit.svg", facts.fit_alt, text.FIT)
    return _section("The temperature that a row needs", figure)


def _mechanism(facts: text.Facts, pictures: dict[str, str]) -> str:
    formula = f"<pre><code>{escape(text.FORMULA)}</code></pre>\n"
    paragraph = f"<p>{escape(facts.how_it_works)}</p>\n"
    plane = _figure(pictures, "entropy-plane.png", text.PLANE_ALT, text.PLANE)
    return _section("How it works", formula, paragraph, plane)


def _others(table: Results, pictures: dict[str, str]) -> Iterator[str]:
    """Parts that a large experiment has and a small one has not."""
    for group, make, heading, alt in (
        ("trained", trained_table, "Trained with the method", text.TRAINED_ALT),
        ("training", training_table, "Details of the training", ""),
    ):
        kinds = weights_kinds(table, group)  # type: ignore[arg-type]
        if kinds:
            figure = _figure(pictures, f"accuracy-{group}.svg", alt, "")
            yield _section(heading, figure, _table(make(table, kinds[0])))
    if any(True for _ in table.select(group="beyond")):
        figure = _figure(pictures, "accuracy-beyond.svg", text.BEYOND_ALT, "")
        yield _section("Beyond the paper's set-up", figure, _table(beyond_table(table)))


def _next(facts: text.Facts) -> str:
    code = f"<pre><code>{escape(facts.code)}</code></pre>\n"
    commands = "\n".join(facts.commands)
    return _section(
        "What to do next",
        "<p>Sharpen rows, or attention, of your own:</p>\n",
        code,
        "<p>Run this again, and see from which length on a head must disperse:</p>\n",
        f"<pre><code>{escape(commands)}</code></pre>\n",
    )


def _ran(facts: text.Facts) -> str:
    entries = "".join(
        f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>\n" for name, value in facts.ran.items()
    )
    return _section("What ran", f"<dl>\n{entries}</dl>\n")


def _section(heading: str, *parts: str) -> str:
    """A section; nothing if it has no content."""
    content = "".join(parts)
    return f"<section>\n<h2>{escape(heading)}</h2>\n{content}</section>\n" if content else ""


def _optional(summary: str, make: Callable[[Results], Table], table: Results) -> list[str]:
    try:
        return [_folded(summary, _table(make(table)))]
    except LookupError:
        return []


def _folded(summary: str, content: str) -> str:
    return f"<details>\n<summary>{escape(summary)}</summary>\n{content}</details>\n"


def _figure(pictures: dict[str, str], name: str, alt: str, caption: str) -> str:
    if name not in pictures:
        return ""
    below = f"<figcaption>{escape(caption)}</figcaption>\n" if caption else ""
    image = f'<img src="{pictures[name]}" alt="{escape(alt)}">'
    return f"<figure>\n{image}\n{below}</figure>\n"


def _picture(path: Path) -> str:
    data = base64.b64encode(path.read_bytes()).decode("ascii")
    return f"data:{_KINDS[path.suffix]};base64,{data}"


def _table(table: Table) -> str:
    def cell(tag: str, column: int, content: str) -> str:
        kind = ' class="word"' if column < max(table.words, 1) else ""
        return f"<{tag}{kind}>{_inline(content)}</{tag}>"

    def line(tag: str, cells: Any) -> str:
        return (
            "<tr>" + "".join(cell(tag, place, each) for place, each in enumerate(cells)) + "</tr>"
        )

    rows = "\n".join(line("td", row) for row in table.rows)
    below = f'<p class="below">{_inline(table.caption)}</p>\n' if table.caption else ""
    return (
        f'<div class="wide">\n<table>\n<thead>{line("th", table.header)}</thead>\n'
        f"<tbody>\n{rows}\n</tbody>\n</table>\n</div>\n{below}"
    )


def _inline(content: str) -> str:
    """Bold and code of Markdown, which is what tables use."""
    content = re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", escape(content))
    return re.sub(r"`(.+?)`", r"<code>\1</code>", content)
