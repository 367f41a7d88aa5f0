"""How methods are called and drawn, in one place: the same everywhere, whatever shows them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from sharpmax.report._page import style as _style

__all__ = ["METHODS", "ORACLE", "Look", "look"]

Dash = tuple[float, ...]

_SOLID: Final[Dash] = ()
_DASHED: Final[Dash] = (5.0, 1.8)
_DOTTED: Final[Dash] = (1.2, 1.6)
_DASH_DOT: Final[Dash] = (5.0, 1.6, 1.2, 1.6)

ORACLE: Final = "oracle"
"""The method that peeks at the label: a bound on what any temperature can do, no competitor."""


@dataclass(frozen=True)
class Look:
    """How a method is called and drawn.

    Attributes:
        label: What readers see.
        color: Of its line.
        dash: Lengths of dashes and gaps in points, by turns; none for a solid line.
        marker: Of its points.
        note: What has to be said of it wherever it is compared, or nothing.

    Example:
        >>> Look("mine", "#000000").line_style
        'solid'
    """

    label: str
    color: str
    dash: Dash = _SOLID
    marker: str = "o"
    note: str = ""

    @property
    def line_style(self) -> Any:
        """The dash as matplotlib takes it."""
        return (0, self.dash) if self.dash else "solid"

    @property
    def text_color(self) -> str:
        """The colour for letters, which are thin and need more contrast."""
        return _style.darkened(self.color)


METHODS: Final[Mapping[str, Look]] = MappingProxyType(
    {
        "softmax": Look("softmax", _style.BLACK),
        # Drawn with gaps, because for long rows it is the same as plain softmax.
        "paper": Look("paper's rule", _style.VERMILION, _DASHED, "s"),
        "exponential": Look("exponential law", _style.BLUE, marker="D"),
        "entropy-target": Look("entropy target", _style.GREEN, _DASHED, "^"),
        "log-length": Look("log length", _style.ORANGE, _SOLID, "v"),
        "fitted": Look("fitted curve", _style.PURPLE, _SOLID, "P"),
        "hard": Look("hard", _style.GREY, _DOTTED, "X"),
        ORACLE: Look(
            "oracle",
            _style.PURPLE,
            _DASH_DOT,
            "*",
            note="an upper bound: it peeks at the label to choose the temperature of each set",
        ),
        "sparsemax": Look("sparsemax", _style.SKY_BLUE, _DASHED, "<"),
        "entmax": Look("1.5-entmax", _style.SKY_BLUE, _SOLID, ">"),
        "asentmax": Look("ASEntmax", _style.GREEN, _SOLID, "^"),
        "ssmax": Look("SSMax", _style.ORANGE, _DASHED, "v"),
        "log-n": Look("log n", _style.ORANGE, _DASH_DOT, "d"),
        "sigmoid": Look("sigmoid", _style.PURPLE, _DASHED, "p"),
        "linear": Look("linear", _style.PURPLE, _DOTTED, "h"),
        "linear-normalised": Look("linear, normalised", _style.SKY_BLUE, _DOTTED, "H"),
        "stick-breaking": Look("stick-breaking", _style.GREEN, _DOTTED, "8"),
        "selective": Look("selective", _style.BLUE, _DASHED, "s"),
        "differential": Look("differential", _style.VERMILION, _DOTTED, "P"),
        "top-k": Look("top-k", _style.BLUE, _DOTTED, "<"),
        "local": Look("local", _style.GREY, _SOLID, ">"),
        "off-by-one": Look("off by one", _style.BLACK, _DASH_DOT, "X"),
        "discontinuous": Look("discontinuous", _style.VERMILION, _DASH_DOT, "d"),
    }
)
"""Looks by the names that results use."""

_FAMILIES: Final = (
    (re.compile(r"fixed-(?P<value>[\d.]+)"), "fixed, β = {value}", _style.SKY_BLUE, _DOTTED),
    (re.compile(r"top-(?P<value>\d+)"), "top-{value}", _style.BLUE, _DOTTED),
)

_OTHERS: Final = (_style.ORANGE, _style.SKY_BLUE, _style.GREEN, _style.PURPLE)


def look(name: str) -> Look:
    """How a method is called and drawn.

    Args:
        name: The name in the results. An unknown one is shown as it is, always in the same colour.

    Returns:
        Its look.

    Example:
        >>> look("fixed-16").label
        'fixed, β = 16'
        >>> look("mine").label
        'mine'
    """
    if name in METHODS:
        return METHODS[name]
    for pattern, label, color, dash in _FAMILIES:
        if found := pattern.fullmatch(name):
            return Look(label.format(**found.groupdict()), color, dash)
    # Not `hash`, which differs from run to run.
    return Look(name, _OTHERS[sum(name.encode()) % len(_OTHERS)], _DASH_DOT)
