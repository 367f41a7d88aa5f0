"""Names, colours and explanations of the arms of an evaluation: calibrations and controls."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import cycle
from typing import Final

from sharpmax._settings import is_control
from sharpmax.report._page import style
from sharpmax.report._page.style import Series

_DASHED: Final = (0, (5, 1.8))
_DOTTED: Final = (0, (1.2, 1.6))

_KNOWN: Final = {series.label: series for series in (
    Series("plain", style.BLACK, "o", meaning="The model without changes."),
    Series("constant", style.BLUE, "s", meaning="One temperature per head."),
    Series("entropy", style.SKY_BLUE, "p", _DASHED,
           "Per head, an inverse temperature that grows with the entropy of the row."),
    Series("gain", style.ORANGE, "D",
           meaning="Control: one factor per head output; no temperature changes."),
    Series("constant+gain", style.GREEN, "^",
           meaning="One temperature and one output factor per head."),
    Series("entropy+gain", style.GREEN, "^", _DASHED,
           "Per head, an inverse temperature that grows with the entropy, and one output factor."),
    Series("paper in all heads", style.VERMILION, "v", _DOTTED,
           "Control: the paper's adaptive temperature in every head."),
)}  # fmt: skip

_CONTROLS: Final = (
    Series("uniform beta ", style.PURPLE, "P", _DOTTED,
           "Control: the same temperature in every head."),
    Series("shuffled ", style.GREY, "X", _DOTTED,
           "Control: the numbers of that calibration, assigned to other heads at random."),
)  # fmt: skip
"""Controls whose names begin so."""

_OTHERS: Final = ((style.BLUE, "s"), (style.ORANGE, "D"), (style.GREEN, "^"), (style.SKY_BLUE, "p"))


def in_order(arms: Iterable[str]) -> list[str]:
    """Sort arms as tables show them: the plain model, calibrations, controls.

    Example:
        >>> in_order(["gain", "uniform beta 1.1", "plain", "mine", "constant"])
        ['plain', 'constant', 'gain', 'mine', 'uniform beta 1.1']
    """
    known = list(_KNOWN)

    def place(arm: str) -> tuple[bool, bool, int]:
        return arm != "plain", is_control(arm), known.index(arm) if arm in known else len(known)

    return sorted(arms, key=place)


def series_of(arms: Iterable[str]) -> dict[str, Series]:
    """Return the series of some arms, in order; unknown arms take turns with a few colours."""
    found: dict[str, Series] = {}
    others = cycle(_OTHERS)
    for arm in in_order(arms):
        controls = (series for series in _CONTROLS if arm.startswith(series.label))
        known = _KNOWN.get(arm) or next(controls, None)
        known = known or Series(arm, *next(others), meaning="A calibration.")
        found[arm] = replace(known, label=arm)
    return found
