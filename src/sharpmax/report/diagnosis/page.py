"""Report of a diagnosis as one self-contained HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from sharpmax.report._page import html, style
from sharpmax.report.diagnosis import text
from sharpmax.report.diagnosis.critical import draw_critical_lengths
from sharpmax.report.diagnosis.entropy import draw_entropy
from sharpmax.report.diagnosis.slopes import draw_slopes
from sharpmax.report.diagnosis.tables import SHOWN, heads_table, verdicts_table

if TYPE_CHECKING:
    from sharpmax.models import Diagnosis

__all__ = ["draw_diagnosis", "write_diagnosis_page"]

_MANY: Final = 400
"""From this number of heads on, pictures are PNG: as SVG they would be too large."""


def write_diagnosis_page(path: str | Path, diagnosis: Diagnosis) -> Path:
    """Write the report of a diagnosis: the conclusion, the heads, the bound, and next steps.

    The file needs no other: pictures are embedded, and nothing is fetched.

    Args:
        path: The file; missing folders are created.
        diagnosis: The diagnosis.

    Returns:
        The path.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    suffix = ".png" if len(diagnosis.heads) >= _MANY else ".svg"
    pictures = {
        name: html.data_uri(style.render(figure, suffix), suffix)
        for name, figure in _figures(diagnosis).items()
    }
    title = f"Attention dispersion in {diagnosis.name}"
    sections = [
        html.opening(title, text.conclusion(diagnosis), text.WHY),
        html.section(
            "All heads",
            html.figure_html(pictures, "slopes", text.slopes_alt(diagnosis), text.SLOPES),
            html.table_html(verdicts_table(diagnosis)),
        ),
        html.section(
            "Entropy and length",
            html.figure_html(pictures, "entropy", text.entropy_alt(diagnosis), text.ENTROPY),
        ),
        _heads(diagnosis),
        _local(diagnosis),
        _critical(diagnosis, pictures),
        html.section(
            "Next steps",
            html.paragraphs(text.NEXT),
            html.code(text.next_commands(diagnosis)),
            html.paragraphs("To try it at once on the heads that disperse most:"),
            html.code(text.next_code(diagnosis)),
        ),
        html.section("Settings and environment", html.entries(text.facts(diagnosis))),
    ]
    return html.write_html(path, title, sections)


def draw_diagnosis(
    folder: Path, diagnosis: Diagnosis, suffix: Literal[".png", ".svg"] = ".png"
) -> dict[str, Path]:
    """Draw all figures of a diagnosis.

    Args:
        folder: Folder for the files.
        diagnosis: The diagnosis.
        suffix: Format of the figures.

    Returns:
        The files by name: slopes, entropy and critical.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    return {
        name: style.save(figure, folder / f"{name}{suffix}")
        for name, figure in _figures(diagnosis).items()
    }


def _figures(diagnosis: Diagnosis) -> dict[str, Any]:
    return {
        "slopes": draw_slopes(diagnosis),
        "entropy": draw_entropy(diagnosis),
        "critical": draw_critical_lengths(diagnosis),
    }


def _heads(diagnosis: Diagnosis) -> str:
    ordered = [head for head in diagnosis.worst() if head.verdict not in ("local", None)]
    if not ordered:
        return ""
    first = [head for head in ordered if head.verdict == "dispersing"] or ordered
    parts = [html.table_html(heads_table(diagnosis, first[:SHOWN]))]
    if len(ordered) > SHOWN:
        table = heads_table(diagnosis, ordered)
        parts.append(
            html.folded(f"All {len(ordered):,} heads with full attention", html.table_html(table))
        )
    disperse = ordered[0].verdict == "dispersing"
    return html.section(
        "Heads that disperse most" if disperse else "Heads whose entropy grows most", *parts
    )


def _local(diagnosis: Diagnosis) -> str:
    """Show heads with a sliding window apart: their slope means something else."""
    heads = [head for head in diagnosis.worst() if head.verdict == "local"]
    if not heads:
        return ""
    table = html.table_html(heads_table(diagnosis, heads[:SHOWN]))
    shown = f"Measurements of {min(len(heads), SHOWN)} of them"
    return html.section(
        "Sliding-window heads",
        html.paragraphs(text.local(diagnosis, heads)),
        html.folded(shown, table),
    )


def _critical(diagnosis: Diagnosis, pictures: dict[str, str]) -> str:
    paragraph = text.critical(diagnosis)
    if not paragraph:
        return ""
    return html.section(
        "Theoretical bound",
        html.paragraphs(paragraph),
        html.figure_html(pictures, "critical", text.critical_alt(diagnosis), text.CRITICAL),
    )
