"""The report of max retrieval as one HTML file that needs nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from experiments.max_retrieval import page_text as text
from experiments.max_retrieval.cells import WEIGHTS
from experiments.max_retrieval.figures import draw_all
from experiments.max_retrieval.selection import weights_kinds
from experiments.max_retrieval.tables import (
    beyond_table,
    further_table,
    inference_table,
    paper_table,
    trained_table,
    training_table,
)
from sharpmax.report._page.html import (
    code,
    entries,
    figure_html,
    folded,
    picture,
    section,
    table_html,
    write_html,
)
from sharpmax.report._page.tables import Table

if TYPE_CHECKING:
    from experiments.max_retrieval.records import Table as Results

__all__ = ["write_page"]


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
        MissingExtraError: matplotlib is not installed.
        LookupError: The results have no method at inference.
    """
    facts = text.facts(table, figures)
    with TemporaryDirectory() as folder:
        drawn = {each.name: each for each in draw_all(table, figures, folder)}
        pictures = {name: picture(each) for name, each in drawn.items()}
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
    return write_html(path, title, sections)


def _opening(title: str, facts: text.Facts) -> str:
    return (
        f"<h1>{escape(title)}</h1>\n"
        f'<p class="lead">{escape(facts.what_one_sees)}</p>\n<p>{escape(text.WHY)}</p>\n'
    )


def _accuracy(table: Results, facts: text.Facts, pictures: dict[str, str]) -> str:
    first, *others = weights_kinds(table, "inference")
    parts = [
        figure_html(pictures, "accuracy-inference.svg", facts.accuracy_alt, ""),
        table_html(inference_table(table, first)),
    ]
    parts += [
        folded(f"The same: {WEIGHTS[kind]}", table_html(inference_table(table, kind)))
        for kind in others
    ]
    parts += _optional("The paper's table next to this one", paper_table, table)
    parts += _optional("Sets larger still", further_table, table)
    return section("Accuracy against the number of items", *parts)


def _attention(facts: text.Facts, pictures: dict[str, str]) -> str:
    parts = [
        figure_html(pictures, name, alt, caption)
        for name, alt, caption in (
            ("attention-compared.png", facts.attention_alt, text.ATTENTION_COMPARED),
            ("attention-softmax.png", facts.softmax_alt, text.ATTENTION_SOFTMAX),
        )
    ]
    return section("Where the weight goes", *parts)


def _fit(facts: text.Facts, pictures: dict[str, str]) -> str:
    figure = figure_html(pictures, "fit.svg", facts.fit_alt, text.FIT)
    return section("The temperature that a row needs", figure)


def _mechanism(facts: text.Facts, pictures: dict[str, str]) -> str:
    paragraph = f"<p>{escape(facts.how_it_works)}</p>\n"
    plane = figure_html(pictures, "entropy-plane.png", text.PLANE_ALT, text.PLANE)
    return section("How it works", code(text.FORMULA), paragraph, plane)


def _others(table: Results, pictures: dict[str, str]) -> Iterator[str]:
    """Parts that a large experiment has and a small one has not."""
    for group, make, heading, alt in (
        ("trained", trained_table, "Trained with the method", text.TRAINED_ALT),
        ("training", training_table, "Details of the training", ""),
    ):
        kinds = weights_kinds(table, group)  # type: ignore[arg-type]
        if kinds:
            figure = figure_html(pictures, f"accuracy-{group}.svg", alt, "")
            yield section(heading, figure, table_html(make(table, kinds[0])))
    if any(True for _ in table.select(group="beyond")):
        figure = figure_html(pictures, "accuracy-beyond.svg", text.BEYOND_ALT, "")
        yield section("Beyond the paper's set-up", figure, table_html(beyond_table(table)))


def _next(facts: text.Facts) -> str:
    return section(
        "What to do next",
        "<p>Sharpen rows, or attention, of your own:</p>\n",
        code(facts.code),
        "<p>Run this again, and see from which length on a head must disperse:</p>\n",
        code("\n".join(facts.commands)),
    )


def _ran(facts: text.Facts) -> str:
    return section("What ran", entries(facts.ran))


def _optional(summary: str, make: Callable[[Results], Table], table: Results) -> list[str]:
    try:
        return [folded(summary, table_html(make(table)))]
    except LookupError:
        return []
