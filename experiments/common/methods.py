"""Name and draw each method in the same way in every table and figure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from sharpmax.report._page import style
from sharpmax.report._page.style import Series

__all__ = ["METHODS", "ORACLE", "Look", "look"]

_SOLID: Final = "solid"
_DASHED: Final = (0, (5.0, 1.8))
_DOTTED: Final = (0, (1.2, 1.6))
_DASH_DOT: Final = (0, (5.0, 1.6, 1.2, 1.6))

ORACLE: Final = "oracle"
"""The method that uses the label: a bound on what any temperature can reach, not a competitor."""


@dataclass(frozen=True)
class Look(Series):
    """How a method is named and drawn. `meaning` has to be said wherever it is compared."""

    @property
    def text_color(self) -> str:
        """The colour for letters, which are thin and need more contrast."""
        return style.darkened(self.color)


METHODS: Final[Mapping[str, Look]] = MappingProxyType(
    {
        "softmax": Look("softmax", style.BLACK),
        # Drawn with gaps, because for long rows it is the same as plain softmax.
        "paper": Look("paper's rule", style.VERMILION, "s", _DASHED),
        "exponential": Look("exponential law", style.BLUE, marker="D"),
        "by-row": Look("exponential law by kind of row", style.GREEN, "D", _DASH_DOT),
        "entropy-target": Look("entropy target", style.GREEN, "^", _DASHED),
        "log-length": Look("log length", style.ORANGE, "v", _SOLID),
        "fitted": Look("fitted curve", style.PURPLE, "P", _SOLID),
        "hard": Look("hard", style.GREY, "X", _DOTTED),
        ORACLE: Look(
            "oracle",
            style.PURPLE,
            "*",
            _DASH_DOT,
            "an upper bound: it uses the label to choose the temperature of each set",
        ),
        "sparsemax": Look("sparsemax", style.SKY_BLUE, "<", _DASHED),
        "entmax": Look("1.5-entmax", style.SKY_BLUE, ">", _SOLID),
        "asentmax": Look("ASEntmax", style.GREEN, "^", _SOLID),
        "ssmax": Look("SSMax", style.ORANGE, "v", _DASHED),
        "log-n": Look("log n", style.ORANGE, "d", _DASH_DOT),
        "sigmoid": Look("sigmoid", style.PURPLE, "p", _DASHED),
        "linear": Look("linear", style.PURPLE, "h", _DOTTED),
        "linear-normalised": Look("linear, normalised", style.SKY_BLUE, "H", _DOTTED),
        "stick-breaking": Look("stick-breaking", style.GREEN, "8", _DOTTED),
        "selective": Look("selective", style.BLUE, "s", _DASHED),
        "differential": Look("differential", style.VERMILION, "P", _DOTTED),
        "top-k": Look("top-k", style.BLUE, "<", _DOTTED),
        "local": Look("local", style.GREY, ">", _SOLID),
        "off-by-one": Look("off by one", style.BLACK, "X", _DASH_DOT),
        "discontinuous": Look("discontinuous", style.VERMILION, "d", _DASH_DOT),
    }
)
"""Looks by the names that results use."""

_FAMILIES: Final = (
    (re.compile(r"fixed-(?P<value>[\d.]+)"), "constant, β = {value}", style.SKY_BLUE, _DOTTED),
    (re.compile(r"top-(?P<value>\d+)"), "top-{value}", style.BLUE, _DOTTED),
)

_OTHERS: Final = (style.ORANGE, style.SKY_BLUE, style.GREEN, style.PURPLE)


def look(name: str) -> Look:
    """Return how a method is named and drawn.

    Args:
        name: The name in the results. An unknown one is shown as it is, always in the same colour.

    Returns:
        Its look.

    Example:
        >>> look("fixed-16").label
        'constant, β = 16'
        >>> look("mine").label
        'mine'
    """
    if name in METHODS:
        return METHODS[name]
    for pattern, label, color, dash in _FAMILIES:
        if found := pattern.fullmatch(name):
            return Look(label.format(**found.groupdict()), color, line_style=dash)
    # Not `hash`, which differs from run to run.
    return Look(name, _OTHERS[sum(name.encode()) % len(_OTHERS)], line_style=_DASH_DOT)
