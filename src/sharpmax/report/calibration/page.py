"""Report of calibrations as one self-contained HTML file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sharpmax.report._page import html, style
from sharpmax.report.calibration import text
from sharpmax.report.calibration.accuracy import draw_accuracy
from sharpmax.report.calibration.tables import (
    arms_table,
    changes_table,
    heads_table,
    means_table,
    summary_table,
)
from sharpmax.report.calibration.trade import draw_trade

if TYPE_CHECKING:
    from sharpmax.models import Calibration, Evaluation, Verdict

__all__ = ["draw_calibration", "write_calibration_page", "write_calibration_report"]

_FEW: Final = 40
"""Tables of up to this many heads are shown open; longer ones are folded."""


def write_calibration_report(
    folder: Path, evaluation: Evaluation, calibrations: Mapping[str, Calibration]
) -> list[Path]:
    """Write the page, the tables as Markdown, and the figures as files.

    Args:
        folder: Folder for the files.
        evaluation: The results.
        calibrations: Calibrations by the names of their arms.

    Returns:
        The files: report.html, table.md, accuracy.png, and trade.png if the calibrations have
        notes about the selection of heads.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    figures = _figures(evaluation, calibrations)
    page = _write_page(folder / "report.html", evaluation, calibrations, figures)
    table = folder / "table.md"
    table.write_text(_markdown(evaluation, calibrations), encoding="utf-8")
    drawn = [style.save(figure, folder / f"{name}.png") for name, figure in figures.items()]
    return [page, table, *drawn]


def write_calibration_page(
    path: str | Path, evaluation: Evaluation, calibrations: Mapping[str, Calibration]
) -> Path:
    """Write the report of calibrations: the verdict, the controls, the heads, the assumptions.

    The file needs no other: pictures are embedded, and nothing is fetched.

    Args:
        path: The file; missing folders are created.
        evaluation: The results.
        calibrations: Calibrations by the names of their arms.

    Returns:
        The path.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    return _write_page(path, evaluation, calibrations, _figures(evaluation, calibrations))


def _write_page(
    path: str | Path,
    evaluation: Evaluation,
    calibrations: Mapping[str, Calibration],
    figures: Mapping[str, Any],
) -> Path:
    from sharpmax.models._evaluation.verdict import judge

    verdict = judge(evaluation, calibrations)
    pictures = {
        name: html.data_uri(style.render(figure, ".svg"), ".svg")
        for name, figure in figures.items()
    }
    title = f"Calibration of {evaluation.settings.model}"
    fitted = f"{text.fitted_sentence(calibrations)} {text.choice_sentence(calibrations)}".strip()
    sections = [
        html.opening(
            title,
            text.verdict_sentence(verdict),
            text.guard_sentence(evaluation, verdict, _tolerance(calibrations)),
            text.wording_sentence(evaluation, verdict),
            text.controls_sentence(evaluation, verdict),
            fitted,
        ),
        html.section(
            "Results for all arms",
            html.table_html(summary_table(evaluation, calibrations, verdict)),
            html.table_html(arms_table(evaluation)),
        ),
        html.section(
            "Accuracy and prompt length",
            html.figure_html(pictures, "accuracy", text.accuracy_alt(evaluation), text.ACCURACY),
            html.table_html(means_table(evaluation)),
            html.folded(
                "Differences from the plain model", html.table_html(changes_table(evaluation))
            ),
        ),
        html.section(
            "Trade-off between answers and ordinary text",
            html.figure_html(pictures, "trade", text.trade_alt(calibrations), text.TRADE),
        ),
        _heads(calibrations, verdict),
        html.section("Method and assumptions", html.paragraphs(text.RULE, text.ASSUMES)),
        html.section(
            "Settings and environment", html.entries(text.facts(evaluation, calibrations))
        ),
        html.section("Commands", html.code(evaluation.command)),
    ]
    return html.write_html(path, title, sections)


def draw_calibration(
    folder: Path, evaluation: Evaluation, calibrations: Mapping[str, Calibration]
) -> dict[str, Path]:
    """Draw all figures of calibrations as PNG files.

    Args:
        folder: Folder for the files.
        evaluation: The results.
        calibrations: Calibrations by the names of their arms.

    Returns:
        The files by name: accuracy and, if the calibrations have notes about it, trade.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    return {
        name: style.save(figure, folder / f"{name}.png")
        for name, figure in _figures(evaluation, calibrations).items()
    }


def _markdown(evaluation: Evaluation, calibrations: Mapping[str, Calibration]) -> str:
    from sharpmax.models._evaluation.verdict import judge

    verdict = judge(evaluation, calibrations)
    parts = [text.verdict_sentence(verdict)]
    for table in (
        summary_table(evaluation, calibrations, verdict),
        means_table(evaluation),
        changes_table(evaluation),
    ):
        if table.rows:
            parts += [f"## {table.title}", table.to_markdown()]
    return "\n\n".join(parts) + "\n"


def _figures(evaluation: Evaluation, calibrations: Mapping[str, Calibration]) -> dict[str, Any]:
    """Draw the figures by name; one without data is left out."""
    from sharpmax.models._evaluation.verdict import fitted_tasks

    lengths = {length for each in calibrations.values() for length in each.lengths}
    tasks = fitted_tasks(evaluation, calibrations)
    found = {"accuracy": draw_accuracy(evaluation, _tolerance(calibrations), lengths, tasks)}
    try:
        found["trade"] = draw_trade(calibrations)
    except LookupError:
        return found
    return found


def _tolerance(calibrations: Mapping[str, Calibration]) -> float | None:
    found = (calibration.notes.get("tolerance") for calibration in calibrations.values())
    return next((tolerance for tolerance in found if tolerance is not None), None)


def _heads(calibrations: Mapping[str, Calibration], verdict: Verdict) -> str:
    """Show the changed heads; those of the verdict's subject come first."""
    parts = []
    for name in sorted(calibrations, key=lambda name: name != verdict.subject):
        table = heads_table(calibrations[name])
        number = "1 head" if len(table.rows) == 1 else f"{len(table.rows):,} heads"
        if not table.rows:
            parts.append(html.paragraphs(f"{name}: no heads; no change passed the selection."))
        elif name == verdict.subject and len(table.rows) <= _FEW:
            parts += [html.paragraphs(f"{name}: {number}"), html.table_html(table)]
        else:
            parts.append(html.folded(f"{name}: {number}", html.table_html(table)))
    return html.section("Changed heads", *parts)
