"""Report of calibrations as one self-contained HTML file."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sharpmax.report._page import html, style
from sharpmax.report._page.tables import numbered, plain
from sharpmax.report.calibration import tables, text
from sharpmax.report.calibration.figures import draw_accuracy, draw_trade, tolerance_of

if TYPE_CHECKING:
    from sharpmax.models import Calibration, Evaluation, Verdict

__all__ = ["draw_calibration", "write_calibration_report"]

_FEW: Final = 40
"""Tables of up to this many heads are shown open; longer ones are folded."""


def write_calibration_report(
    folder: Path, evaluation: Evaluation, calibrations: Mapping[str, Calibration]
) -> list[Path]:
    """Write report.html, table.md and the figures, and return the files.

    The page needs no other file: the verdict, the controls, the heads and the assumptions.
    """
    verdict = evaluation.verdict(calibrations)
    figures = _figures(evaluation, calibrations)
    pictures = html.embedded(figures, ".svg")
    arms = html.table_html(tables.arms_table(evaluation))
    facts = html.entries(text.facts(evaluation, calibrations))
    results = [
        tables.summary_table(evaluation, calibrations, verdict),
        tables.means_table(evaluation),
        tables.changes_table(evaluation),
    ]
    summary, means, changes = map(html.table_html, results)
    title = f"Calibration of {evaluation.settings.model}"
    sections = [
        html.opening(
            title,
            text.verdict_sentence(verdict),
            text.guard_sentence(evaluation, verdict, tolerance_of(calibrations)),
            text.wording_sentence(evaluation, verdict),
            text.controls_sentence(evaluation, verdict),
            f"{text.fitted_sentence(calibrations)} {text.choice_sentence(calibrations)}".strip(),
        ),
        html.section("Results for all arms", summary, arms),
        html.section(
            "Accuracy and prompt length",
            html.figure_html(pictures, "accuracy", text.accuracy_alt(evaluation), text.ACCURACY),
            means,
            html.folded("Differences from the plain model", changes),
        ),
        html.section(
            "Trade-off between answers and ordinary text",
            html.figure_html(pictures, "trade", text.trade_alt(calibrations), text.TRADE),
        ),
        _heads(calibrations, verdict),
        html.section("Method and assumptions", html.paragraphs(text.RULE, text.ASSUMES)),
        html.section("Settings and environment", facts),
        html.section("Commands", html.code(evaluation.command)),
    ]
    page = html.write_html(folder / "report.html", title, sections)
    parts = [f"## {table.title}\n\n{table.to_markdown()}" for table in results if table.rows]
    markdown = folder / "table.md"
    content = "\n\n".join([plain(text.verdict_sentence(verdict)), *parts])
    markdown.write_text(f"{content}\n", encoding="utf-8")
    return [page, markdown, *style.save_all(figures, folder).values()]


def draw_calibration(
    folder: Path, evaluation: Evaluation, calibrations: Mapping[str, Calibration]
) -> dict[str, Path]:
    """Draw all figures of calibrations as PNG files, and return the files by name."""
    return style.save_all(_figures(evaluation, calibrations), folder)


def _figures(evaluation: Evaluation, calibrations: Mapping[str, Calibration]) -> dict[str, Any]:
    """Draw the figures by name; one without data is left out."""
    found = {"accuracy": draw_accuracy(evaluation, calibrations)}
    with suppress(LookupError):
        found["trade"] = draw_trade(calibrations)
    return found


def _heads(calibrations: Mapping[str, Calibration], verdict: Verdict) -> str:
    """Show the changed heads; those of the verdict's subject come first."""
    parts = []
    for name in sorted(calibrations, key=lambda name: name != verdict.subject):
        table = tables.heads_table(calibrations[name])
        told = f"{name}: {numbered(len(table.rows), 'head')}"
        if not table.rows:
            parts.append(html.paragraphs(f"{name}: no heads; no change passed the selection."))
        elif name == verdict.subject and len(table.rows) <= _FEW:
            parts += [html.paragraphs(told), html.table_html(table)]
        else:
            parts.append(html.folded(told, html.table_html(table)))
    return html.section("Changed heads", *parts)
