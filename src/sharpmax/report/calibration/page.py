"""The report of a calibration as one HTML file that needs nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

from sharpmax._extras import require
from sharpmax.report._page import style as _style
from sharpmax.report._page.html import (
    entries,
    figure_html,
    folded,
    picture,
    section,
    table_html,
    write_html,
)
from sharpmax.report.calibration import text
from sharpmax.report.calibration.accuracy import draw_answers
from sharpmax.report.calibration.tables import (
    changes_table,
    heads_table,
    means_table,
    summary_table,
)
from sharpmax.report.calibration.trade import draw_trade

if TYPE_CHECKING:
    from sharpmax.models import Calibration
    from sharpmax.models._evaluation.evaluation import Evaluation
    from sharpmax.models._evaluation.verdict import Verdict

__all__ = ["write_calibration_page", "write_calibration_report"]

_FEW: Final = 40
"""So many heads are shown at once; more are folded."""


def write_calibration_report(
    folder: Path, evaluation: Evaluation, calibrations: Mapping[str, Calibration]
) -> list[Path]:
    """Write all that a reader needs: the page, the tables, and the figures by themselves.

    Args:
        folder: Where to write.
        evaluation: The results.
        calibrations: By the names of their arms.

    Returns:
        What was written: report.html, table.md, answers.png, and trade.png where the choice of
        heads is known.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    from sharpmax.models._evaluation.verdict import judge

    verdict = judge(evaluation, calibrations)
    written = [write_calibration_page(folder / "report.html", evaluation, calibrations)]
    table = folder / "table.md"
    table.write_text(_markdown(evaluation, calibrations, verdict), encoding="utf-8")
    written.append(table)
    matplotlib = require("matplotlib", extra="report", what="drawing a figure")
    with matplotlib.rc_context(_style.SETTINGS):
        for name, figure in _figures(evaluation, calibrations).items():
            written.append(_style.save(figure, folder / f"{name}.png"))
    return written


def write_calibration_page(
    path: str | Path, evaluation: Evaluation, calibrations: Mapping[str, Calibration]
) -> Path:
    """Write the report of a calibration: the verdict, the controls, the heads, and what it assumes.

    The file needs no other: pictures are inside it, and nothing is fetched.

    Args:
        path: Where to write.
        evaluation: The results.
        calibrations: By the names of their arms.

    Returns:
        The path that was written; folders on the way to it are made.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    from sharpmax.models._evaluation.verdict import judge

    verdict = judge(evaluation, calibrations)
    pictures = _pictures(evaluation, calibrations)
    title = f"Does sharpening help {evaluation.settings.model}?"
    sections = [
        f"<h1>{escape(title)}</h1>\n",
        f'<p class="lead">{escape(text.verdict_sentence(verdict))}</p>\n',
        *_paragraphs(
            " ".join(
                [text.fitted_sentence(calibrations), text.choice_sentence(calibrations)]
            ).strip(),
            text.guard_sentence(evaluation, verdict, _tolerance(calibrations)),
            text.wording_sentence(evaluation, verdict),
            text.controls_sentence(evaluation, verdict),
        ),
        section(
            "Every arm at a glance",
            table_html(summary_table(evaluation, calibrations, verdict)),
            table_html(text.arms_table(evaluation)),
        ),
        section(
            "Answers against length",
            figure_html(pictures, "answers", text.accuracy_alt(evaluation), text.ACCURACY),
            table_html(means_table(evaluation)),
            folded("Changes against the model as it is", table_html(changes_table(evaluation))),
        ),
        section(
            "What answers gain and ordinary text loses",
            figure_html(pictures, "trade", text.trade_alt(calibrations), text.TRADE),
        ),
        _heads(calibrations, verdict),
        section("How the verdict is reached, and what it assumes",
                *_paragraphs(text.RULE, text.ASSUMES)),
        section("What was measured", entries(text.facts(evaluation, calibrations))),
    ]  # fmt: skip
    return write_html(path, title, sections)


def _markdown(
    evaluation: Evaluation, calibrations: Mapping[str, Calibration], verdict: Verdict
) -> str:
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
    """Figures by name; one that has nothing to show is not there."""
    from sharpmax.models._evaluation.verdict import fitted_tasks

    lengths = {length for each in calibrations.values() for length in each.lengths}
    tasks = fitted_tasks(evaluation, calibrations)
    found = {"answers": draw_answers(evaluation, _tolerance(calibrations), lengths, tasks)}
    try:
        found["trade"] = draw_trade(calibrations)
    except LookupError:
        return found
    return found


def _pictures(evaluation: Evaluation, calibrations: Mapping[str, Calibration]) -> dict[str, str]:
    matplotlib = require("matplotlib", extra="report", what="drawing a figure")
    with TemporaryDirectory() as folder, matplotlib.rc_context(_style.SETTINGS):
        return {
            name: picture(_style.save(figure, Path(folder) / f"{name}.svg"))
            for name, figure in _figures(evaluation, calibrations).items()
        }


def _tolerance(calibrations: Mapping[str, Calibration]) -> float | None:
    found = (calibration.notes.get("tolerance") for calibration in calibrations.values())
    return next((tolerance for tolerance in found if tolerance is not None), None)


def _paragraphs(*texts: str) -> list[str]:
    return [f"<p>{escape(each)}</p>\n" for each in texts if each]


def _heads(calibrations: Mapping[str, Calibration], verdict: Verdict) -> str:
    """The heads that change, those of the arm that the verdict is about first."""
    parts = []
    for name in sorted(calibrations, key=lambda name: name != verdict.subject):
        table = heads_table(calibrations[name])
        if table.rows:
            some = "one head" if len(table.rows) == 1 else f"{len(table.rows):,} heads"
            if name == verdict.subject and len(table.rows) <= _FEW:
                parts.append(f"<p>{escape(name)}: {some}</p>\n{table_html(table)}")
            else:
                parts.append(folded(f"{name}: {some}", table_html(table)))
        else:
            parts.append(f"<p>{escape(name)}: no head; nothing held.</p>\n")
    return section("The heads that change", *parts)
