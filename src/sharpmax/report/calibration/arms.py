"""How the arms of an evaluation look and read: calibrations and their controls."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from sharpmax.report._page import style as _style


@dataclass(frozen=True)
class ArmLook:
    """An arm, for a reader.

    Attributes:
        color: Of its lines and points.
        marker: Of its points.
        line_style: Of its lines.
        meaning: What it does, in a sentence.
    """

    color: str
    marker: str
    line_style: Any = "solid"
    meaning: str = ""


_KNOWN: Final = {
    "plain": ArmLook(_style.BLACK, "o", meaning="The model as it is."),
    "constant": ArmLook(
        _style.BLUE, "s", meaning="A temperature for each head, the same in all rows."
    ),
    "entropy": ArmLook(
        _style.SKY_BLUE,
        "p",
        (0, (5, 1.8)),
        "A temperature for each head that grows with the entropy of the row.",
    ),
    "gain": ArmLook(
        _style.ORANGE,
        "D",
        meaning="Control: a factor of each head's output, which touches no temperature.",
    ),
    "constant+gain": ArmLook(
        _style.GREEN, "^", meaning="A temperature and a factor of the output for each head."
    ),
    "entropy+gain": ArmLook(
        _style.GREEN,
        "^",
        (0, (5, 1.8)),
        "A temperature that grows with the entropy, and a factor of the output.",
    ),
    "paper in all heads": ArmLook(
        _style.VERMILION,
        "v",
        (0, (1.2, 1.6)),
        "Control: the paper's adaptive temperature in every head.",
    ),
}
_BEGINNINGS: Final = {
    "uniform beta ": ArmLook(
        _style.PURPLE, "P", (0, (1.2, 1.6)), "Control: the same temperature in every head."
    ),
    "shuffled ": ArmLook(
        _style.GREY,
        "X",
        (0, (1.2, 1.6)),
        "Control: the numbers of that calibration, dealt out to other heads.",
    ),
}
_OTHERS: Final = tuple(
    ArmLook(color, marker, meaning="A calibration.")
    for color, marker in (
        (_style.BLUE, "s"),
        (_style.ORANGE, "D"),
        (_style.GREEN, "^"),
        (_style.SKY_BLUE, "p"),
    )
)


def in_order(arms: Iterable[str]) -> list[str]:
    """Arms in the order of tables: the model as it is, calibrations, controls.

    Example:
        >>> in_order(["gain", "uniform beta 1.1", "plain", "mine", "constant"])
        ['plain', 'constant', 'gain', 'mine', 'uniform beta 1.1']
    """
    known = list(_KNOWN)

    def place(arm: str) -> tuple[bool, int]:
        return is_control(arm), known.index(arm) if arm in known else len(known)

    return sorted(arms, key=lambda arm: (arm != "plain", *place(arm)))


def looks(arms: Iterable[str]) -> dict[str, ArmLook]:
    """The looks of some arms, in order; those with names of their own take colours in turn."""
    found: dict[str, ArmLook] = {}
    turn = 0
    for arm in in_order(arms):
        known = _KNOWN.get(arm) or _beginning(arm)
        if known is None:
            known = _OTHERS[turn % len(_OTHERS)]
            turn += 1
        found[arm] = known
    return found


def is_control(arm: str) -> bool:
    """Whether an arm was not fitted: the model as it is, or a control that needs no fit."""
    return arm in ("plain", "paper in all heads") or _beginning(arm) is not None


def _beginning(arm: str) -> ArmLook | None:
    return next((look for name, look in _BEGINNINGS.items() if arm.startswith(name)), None)
