"""What a calibration does to each head, and of which kind it is."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np

from sharpmax.models import Calibration, LayerCalibration
from sharpmax.models._rule import LEAST
from sharpmax.policies import Constant, Exponential

__all__ = ["HeadChange", "Kind", "certain_gain", "changed_heads", "kind"]

Kind = Literal["temperature", "gain", "both"]


class HeadChange(NamedTuple):
    """What a head gets.

    Attributes:
        layer: Index of the layer.
        head: Number of the query head.
        beta: Inverse temperature of every row; None where it depends on the row.
        strength: Of the exponential law, above 0; None without it.
        reference: Of the exponential law, in nats; None without it.
        gain: Factor of the output.
    """

    layer: int
    head: int
    beta: float | None = 1.0
    strength: float | None = None
    reference: float | None = None
    gain: float = 1.0

    @property
    def sharper(self) -> bool:
        """Whether rows are sharper than before, or may be."""
        return self.strength is not None if self.beta is None else self.beta > 1 + LEAST

    @property
    def flatter(self) -> bool:
        """Whether rows are less sharp than before."""
        return self.beta is not None and self.beta < 1 - LEAST

    @property
    def louder(self) -> bool:
        """Whether the output has a gain, above 1 or below."""
        return abs(self.gain - 1) > LEAST


def changed_heads(calibration: Calibration) -> list[HeadChange]:
    """The heads that a calibration changes, layer by layer.

    Raises:
        TypeError: A policy is neither `Constant` nor `Exponential`.
    """
    found = []
    for entry in calibration.layers:
        for head in range(calibration.head_counts[entry.index] or 0):
            change = _change(entry, head)
            if change.sharper or change.flatter or change.louder:
                found.append(change)
    return found


def kind(calibration: Calibration) -> Kind:
    """What a calibration may change: its family says so, and without one what it does change."""
    family = calibration.notes.get("family")
    if family is None:
        has_policy = any(entry.policy is not None for entry in calibration.layers)
        has_gain = any(entry.gain is not None for entry in calibration.layers)
        family = "+".join(["constant"] * has_policy + ["gain"] * has_gain)
    if family == "gain":
        return "gain"
    return "both" if family.endswith("+gain") else "temperature"


def certain_gain(calibration: Calibration) -> float | None:
    """What is certain of the gain on the second part of the data; None where nothing held."""
    chosen: dict[str, Any] | None = calibration.notes.get("select", {}).get("chosen")
    return None if chosen is None else chosen["certain"]


def _change(entry: LayerCalibration, head: int) -> HeadChange:
    gain = 1.0 if entry.gain is None else entry.gain[head]
    if entry.policy is None:
        return HeadChange(entry.index, head, gain=gain)
    if isinstance(entry.policy, Constant):
        return HeadChange(entry.index, head, _number(entry.policy.beta, head), gain=gain)
    if isinstance(entry.policy, Exponential):
        strength = _number(entry.policy.strength, head)
        if strength == 0:
            return HeadChange(entry.index, head, gain=gain)
        reference = _number(entry.policy.reference, head)
        return HeadChange(entry.index, head, None, strength, reference, gain)
    raise TypeError(
        f"calibration: expected Constant or Exponential, got {type(entry.policy).__name__}"
    )


def _number(value: Any, head: int) -> float:
    """The entry of a head; a single number is that of all heads."""
    return float(np.ravel(value)[head if np.size(value) > 1 else 0])
