"""Report of a diagnosis as one self-contained HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sharpmax.report._page import html, style
from sharpmax.report.diagnosis import text
from sharpmax.report.diagnosis.figures import draw_critical_lengths, draw_entropy, draw_slopes
from sharpmax.report.diagnosis.tables import SHOWN, heads_table, verdicts_table

if TYPE_CHECKING:
    from sharpmax.models import Diagnosis

__all__ = ["draw_diagnosis", "write_diagnosis_page"]

_MANY: Final = 400
"""From this number of heads on, pictures are PNG: as SVG they would be too large."""


def write_diagnosis_page(path: str | Path, diagnosis: Diagnosis) -> Path:
    """Write the report of a diagnosis: the conclusion, the heads, the bound, and next steps."""
    suffix = ".png" if len(diagnosis.heads) >= _MANY else ".svg"
    pictures = html.embedded(_figures(diagnosis), suffix)
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
    ]
    if bound := text.critical(diagnosis):
        alt = text.critical_alt(diagnosis)
        figure = html.figure_html(pictures, "critical", alt, text.CRITICAL)
        sections.append(html.section("Theoretical bound", html.paragraphs(bound), figure))
    sections += [
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


def draw_diagnosis(folder: Path, diagnosis: Diagnosis) -> dict[str, Path]:
    """Draw all figures of a diagnosis as PNG files, and return the files by name."""
    return style.save_all(_figures(diagnosis), folder)


def _figures(diagnosis: Diagnosis) -> dict[str, Any]:
    drawn = {"slopes": draw_slopes, "entropy": draw_entropy, "critical": draw_critical_lengths}
    return {name: draw(diagnosis) for name, draw in drawn.items()}


def _heads(diagnosis: Diagnosis) -> str:
    ordered = [head for head in diagnosis.worst() if head.verdict not in ("local", None)]
    dispersing = [head for head in ordered if head.verdict == "dispersing"]
    if not ordered:
        return ""
    parts = [html.table_html(heads_table(diagnosis, (dispersing or ordered)[:SHOWN]))]
    if len(ordered) > SHOWN:
        summary = f"All {len(ordered):,} heads with full attention"
        parts.append(html.folded(summary, html.table_html(heads_table(diagnosis, ordered))))
    heading = "Heads that disperse most" if dispersing else "Heads whose entropy grows most"
    return html.section(heading, *parts)


def _local(diagnosis: Diagnosis) -> str:
    """Show heads with a sliding window apart: their slope means something else."""
    heads = [head for head in diagnosis.worst() if head.verdict == "local"]
    if not heads:
        return ""
    table = html.table_html(heads_table(diagnosis, heads[:SHOWN]))
    shown = html.folded(f"Measurements of {min(len(heads), SHOWN)} of them", table)
    described = html.paragraphs(text.local(diagnosis, heads))
    return html.section("Sliding-window heads", described, shown)
