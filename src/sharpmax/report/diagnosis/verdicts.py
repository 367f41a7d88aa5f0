"""How the verdicts of a diagnosis look and read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from sharpmax._extras import require
from sharpmax.report._page import style as _style

if TYPE_CHECKING:
    from sharpmax.models import Head


@dataclass(frozen=True)
class Verdict:
    """A verdict, for a reader.

    Attributes:
        label: Its name.
        color: Of its lines and points.
        marker: Of its points.
        meaning: What it says, in a sentence.
    """

    label: str
    color: str
    marker: str
    meaning: str


VERDICTS: Final[dict[str | None, Verdict]] = {
    "dispersing": Verdict(
        "dispersing",
        _style.VERMILION,
        "o",
        "The entropy grows by at least half of log n: the weight spreads over ever more tokens.",
    ),
    "growing": Verdict(
        "growing",
        _style.ORANGE,
        "s",
        "The entropy grows, by a tenth to a half of log n: the head spreads, but slowly.",
    ),
    "flat": Verdict(
        "flat",
        _style.BLUE,
        "^",
        "The entropy hardly grows: the head is as sharp in long inputs as in short ones.",
    ),
    "sink": Verdict(
        "sink",
        _style.PURPLE,
        "D",
        "At least half of the weight rests on the first token or a learned sink: the head is idle"
        " in most rows.",
    ),
    "local": Verdict(
        "local",
        _style.GREY,
        "v",
        "A window hides all but the nearest tokens: the number of keys does not grow, so nothing"
        " follows for long inputs.",
    ),
    None: Verdict(
        "unknown", _style.BLACK, "x", "Nothing could be measured at two lengths or more."
    ),
}
"""From the worst to that which says least."""


def counts(heads: Iterable[Head]) -> dict[str | None, int]:
    """How many heads have each verdict that occurs, the worst first."""
    found = [head.verdict for head in heads]
    return {verdict: found.count(verdict) for verdict in VERDICTS if verdict in found}


def handles(heads: Iterable[Head], *, points: bool) -> list[Any]:
    """Entries of a legend: the verdicts that occur, with the number of their heads.

    Args:
        heads: Whose verdicts.
        points: Whether heads are points; otherwise they are lines.
    """
    lines = require("matplotlib.lines", extra="report", what="drawing a figure")
    made = []
    for verdict, number in counts(heads).items():
        look = VERDICTS[verdict]
        style: dict[str, Any] = {"color": look.color, "linewidth": 2.4}
        if points:
            style = {"color": look.color, "marker": look.marker, "linestyle": "", "markersize": 6}
        made.append(lines.Line2D([], [], label=f"{look.label} ({number})", **style))
    return made
