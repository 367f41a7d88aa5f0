"""The report of a diagnosis as one HTML file that needs nothing else."""

from __future__ import annotations

from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final, Literal

from sharpmax._extras import require
from sharpmax.report._page import style as _style
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
from sharpmax.report.diagnosis import text
from sharpmax.report.diagnosis.critical import draw_critical_lengths
from sharpmax.report.diagnosis.entropy import draw_entropy
from sharpmax.report.diagnosis.slopes import draw_slopes
from sharpmax.report.diagnosis.tables import SHOWN, heads_table, verdicts_table

if TYPE_CHECKING:
    from sharpmax.models import Diagnosis

__all__ = ["draw_diagnosis", "write_diagnosis_page"]

_MANY: Final = 400
"""From so many heads on, pictures are of points: as lines and shapes they would be too large."""


def write_diagnosis_page(path: str | Path, diagnosis: Diagnosis) -> Path:
    """Write the report of a diagnosis: what one sees, the heads, the lemma, and what to do next.

    The file needs no other: pictures are inside it, and nothing is fetched.

    Args:
        path: Where to write.
        diagnosis: What was measured.

    Returns:
        The path that was written; folders on the way to it are made.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    pictures = _pictures(diagnosis)
    title = f"How the attention of {diagnosis.name} spreads"
    sections = [
        f"<h1>{escape(title)}</h1>\n",
        f'<p class="lead">{escape(text.what_one_sees(diagnosis))}</p>\n',
        f"<p>{escape(text.WHY)}</p>\n",
        section(
            "All heads at a glance",
            figure_html(pictures, "slopes", text.slopes_alt(diagnosis), text.SLOPES),
            table_html(verdicts_table(diagnosis)),
        ),
        section(
            "Entropy against length",
            figure_html(pictures, "entropy", text.entropy_alt(diagnosis), text.ENTROPY),
        ),
        _heads(diagnosis),
        _local(diagnosis),
        _critical(diagnosis, pictures),
        _next(diagnosis),
        section("What was measured", entries(text.facts(diagnosis))),
    ]
    return write_html(path, title, sections)


def draw_diagnosis(
    folder: Path, diagnosis: Diagnosis, suffix: Literal[".png", ".svg"] = ".png"
) -> dict[str, Path]:
    """Draw all pictures of a diagnosis.

    Args:
        folder: Where to write.
        diagnosis: What was measured.
        suffix: The kind of picture.

    Returns:
        The files by name: slopes, entropy and critical.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    matplotlib = require("matplotlib", extra="report", what="drawing a figure")
    drawn = {
        "slopes": draw_slopes(diagnosis),
        "entropy": draw_entropy(diagnosis),
        "critical": draw_critical_lengths(diagnosis),
    }
    with matplotlib.rc_context(_style.SETTINGS):
        return {
            name: _style.save(figure, folder / f"{name}{suffix}") for name, figure in drawn.items()
        }


def _pictures(diagnosis: Diagnosis) -> dict[str, str]:
    with TemporaryDirectory() as folder:
        many = len(diagnosis.heads) >= _MANY
        files = draw_diagnosis(Path(folder), diagnosis, ".png" if many else ".svg")
        return {name: picture(file) for name, file in files.items()}


def _heads(diagnosis: Diagnosis) -> str:
    ordered = [head for head in diagnosis.worst() if head.verdict not in ("local", None)]
    if not ordered:
        return ""
    first = [head for head in ordered if head.verdict == "dispersing"] or ordered
    parts = [table_html(heads_table(diagnosis, first[:SHOWN]))]
    if len(ordered) > SHOWN:
        table = heads_table(diagnosis, ordered)
        parts.append(folded(f"All {len(ordered):,} heads that see everything", table_html(table)))
    heading = "Heads that disperse most"
    if ordered[0].verdict != "dispersing":
        heading = "Heads whose entropy grows most"
    return section(heading, *parts)


def _local(diagnosis: Diagnosis) -> str:
    """Heads with a window stand apart: their slope means something else."""
    heads = [head for head in diagnosis.worst() if head.verdict == "local"]
    if not heads:
        return ""
    layers = sorted({head.layer for head in heads})
    seen = [diagnosis.record(head).visible for head in heads]
    largest = max(number for number in seen if number is not None)
    where = f"layers {', '.join(map(str, layers))}" if len(layers) > 1 else f"layer {layers[0]}"
    paragraph = (
        f"{len(heads):,} heads in {where} see a window of at most {largest:,.0f} tokens, however"
        " long the input is. They need no sharpening for its length, and cannot look anything up"
        " beyond it."
    )
    table = table_html(heads_table(diagnosis, heads[:SHOWN]))
    return section(
        "Heads with a window",
        f"<p>{escape(paragraph)}</p>\n",
        folded(f"{min(len(heads), SHOWN)} of them", table),
    )


def _critical(diagnosis: Diagnosis, pictures: dict[str, str]) -> str:
    paragraph = text.critical(diagnosis)
    if not paragraph:
        return ""
    return section(
        "What the lemma guarantees",
        f"<p>{escape(paragraph)}</p>\n",
        figure_html(pictures, "critical", text.critical_alt(diagnosis), text.CRITICAL),
    )


def _next(diagnosis: Diagnosis) -> str:
    return section(
        "What to do next",
        "<p>Sharpening every head of a model that was trained without it mostly does harm, so let"
        " held-out text decide. Calibrate: fit a number or two to each head, keep what helps on"
        " text that it was not fitted on, and leave the model alone if nothing does. Evaluate: see"
        " what long inputs gain by it, and whether controls that sharpen nothing gain as much.</p>"
        "\n",
        code(text.next_commands(diagnosis)),
        "<p>To try it at once on the worst heads:</p>\n",
        code(text.next_code(diagnosis)),
    )
