"""What a calibration does to each head, which kind it is, and which of several is best."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np

from sharpmax.models._calibration.result import Calibration
from sharpmax.models._rule import LEAST
from sharpmax.policies import Policy

Kind = Literal["temperature", "gain", "both"]


class HeadChange(NamedTuple):
    """What a calibration does to one query head."""

    layer: int
    head: int
    policy: Policy | None = None  # None if its temperature is unchanged
    gain: float = 1.0  # factor of the output
    flatter: bool = False  # whether its rows become less sharp

    @property
    def sharper(self) -> bool:
        """Whether its rows become sharper, or may become so."""
        return self.policy is not None and not self.flatter

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters of the policy by name; empty without a policy."""
        return {} if self.policy is None else self.policy.to_dict()["parameters"]


def changed_heads(calibration: Calibration) -> list[HeadChange]:
    """List the heads that a calibration changes, by layer."""
    found = []
    for entry in calibration.layers:
        count = calibration.heads_in(entry)
        gains = np.ones(count) if entry.gain is None else np.asarray(entry.gain)
        tempered = flatter = np.zeros(count, dtype=bool)
        if entry.policy is not None:
            tempered, flatter = entry.policy.changes(count), entry.policy.flattens(count)
        for head in np.flatnonzero(tempered | (np.abs(gains - 1) > LEAST)).tolist():
            own = None if entry.policy is None or not tempered[head] else entry.policy.of_head(head)
            gain, flat = float(gains[head]), bool(flatter[head])
            found.append(HeadChange(entry.index, head, own, gain, flat))
    return found


def kind(calibration: Calibration) -> Kind:
    """Tell what a calibration may change: by its family, or else by what it does change."""
    family = calibration.notes.get("family")
    if family is None:
        has_policy = any(entry.policy is not None for entry in calibration.layers)
        has_gain = any(entry.gain is not None for entry in calibration.layers)
        family = "+".join(["constant"] * has_policy + ["gain"] * has_gain)
    if family == "gain":
        return "gain"
    return "both" if family.endswith("+gain") else "temperature"


def certain_gain(calibration: Calibration) -> float | None:
    """Return the lower bound of the gain on the second split; None if nothing was kept."""
    chosen: dict[str, Any] | None = calibration.notes.get("select", {}).get("chosen")
    return None if chosen is None else chosen["certain"]


def best(calibrations: Mapping[str, Calibration]) -> str | None:
    """Find the calibration with the largest `certain_gain`; None if nothing was kept in any."""
    gains = {name: certain_gain(calibration) for name, calibration in calibrations.items()}
    held = {name: gain for name, gain in gains.items() if gain is not None}
    return max(held, key=lambda name: held[name], default=None)
