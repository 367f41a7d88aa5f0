"""Names, colours and explanations of the verdicts of a diagnosis."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from sharpmax.report._page import style
from sharpmax.report._page.style import Series

if TYPE_CHECKING:
    from sharpmax.models import Head

VERDICTS: Final[dict[str | None, Series]] = {
    "dispersing": Series("dispersing", style.VERMILION, "o", meaning=(
        "Entropy grows at least half as fast as log n: attention spreads over more and more"
        " tokens.")),
    "growing": Series("growing", style.ORANGE, "s", meaning=(
        "Entropy grows 0.1 to 0.5 times as fast as log n: attention spreads slowly.")),
    "flat": Series("flat", style.BLUE, "^", meaning=(
        "Entropy hardly grows: the head is as sharp on long inputs as on short ones.")),
    "sink": Series("sink", style.PURPLE, "D", meaning=(
        "At least half of the weight is on the first token or a learned sink: the head is inactive"
        " in most rows.")),
    "local": Series("local", style.GREY, "v", meaning=(
        "A sliding window hides all but the nearest tokens: the number of visible keys does not"
        " grow with the input.")),
    None: Series("unknown", style.BLACK, "x", meaning=(
        "Fewer than two lengths could be measured.")),
}  # fmt: skip
"""From the most to the least serious verdict."""


def counts(heads: Iterable[Head]) -> dict[str | None, int]:
    """Count the heads per verdict, the most serious first; verdicts without heads are left out."""
    found = [head.verdict for head in heads]
    return {verdict: found.count(verdict) for verdict in VERDICTS if verdict in found}


def legend_handles(heads: Iterable[Head], *, points: bool) -> list[Any]:
    """Return one entry per verdict, with its number of heads, for a figure of points or lines."""
    handles = []
    for verdict, number in counts(heads).items():
        series = VERDICTS[verdict]
        point = {"marker": series.marker, "linestyle": "", "markersize": 6}
        look: dict[str, Any] = point if points else {"linewidth": 2.4}
        handles.append(series.handle(f"{series.label} ({number})", **look))
    return handles
