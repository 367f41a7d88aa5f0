"""What is compared: the plain model, changes of its attention, and controls that explain them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from sharpmax._settings import PAPER, PLAIN, SHUFFLED, UNIFORM, UNIFORM_BETA, is_control
from sharpmax.models._calibration.result import Calibration, LayerCalibration
from sharpmax.models._evaluation.heads import best
from sharpmax.policies import Constant, Paper, Policy

Change = Policy | Calibration | None
"""What is done to a model; None is nothing."""


def named(changes: Change | Mapping[str, Any]) -> dict[str, Policy | Calibration]:
    """Give names to changes, and check those that are given: they may not be those of controls."""
    if changes is None:
        return {}
    if isinstance(changes, Calibration):
        return {"calibrated": changes}
    if isinstance(changes, Policy):
        return {type(changes).__name__: changes}
    for name in changes:
        if is_control(name):
            raise ValueError(f"changes: expected names other than those of controls, got {name!r}")
    return dict(changes)


def arms_of(
    changes: Mapping[str, Policy | Calibration], *, controls: bool = True
) -> dict[str, Change]:
    """Collect the plain model, changes, and the controls of the best calibration among them."""
    arms: dict[str, Change] = {PLAIN: None, **changes}
    if controls:
        arms |= {PAPER: Paper(warn=False), UNIFORM: Constant(UNIFORM_BETA)}
        calibrations = {n: each for n, each in changes.items() if isinstance(each, Calibration)}
        chosen = best(calibrations) or next(iter(calibrations), None)
        if chosen is not None:
            arms[f"{SHUFFLED}{chosen}"] = shuffled(calibrations[chosen])
    return arms


def shuffled(calibration: Calibration, seed: int = 0) -> Calibration:
    """Assign the changes of a calibration to other heads, to test whether the choice matters.

    Heads are exchanged within the whole model. The policy and the gain of a head stay together.

    Raises:
        TypeError: Its policies are of several kinds, or of a kind that cannot be switched off.
    """
    counts = [count or 0 for count in calibration.head_counts]
    entries = {entry.index: entry for entry in calibration.layers}
    heads: list[tuple[Policy | None, float | None]] = []
    for layer, count in enumerate(counts):
        entry = entries.get(layer, LayerCalibration(layer))
        for head in range(count):
            policy = None if entry.policy is None else entry.policy.of_head(head)
            heads.append((policy, None if entry.gain is None else entry.gain[head]))
    order = iter(np.random.default_rng(seed).permutation(len(heads)).tolist())
    layers = []
    for index, count in enumerate(counts):
        own = [heads[next(order)] for _ in range(count)]
        policy = Policy.stack([policy for policy, _ in own])
        gains = [gain for _, gain in own]
        gain = tuple(1.0 if gain is None else gain for gain in gains) if any(gains) else None
        if policy is not None or gain is not None:
            layers.append(LayerCalibration(index, policy, gain))
    notes = {"shuffled": seed}
    return replace(calibration, layers=tuple(layers), before=None, after=None, notes=notes)


def describe(change: Change) -> dict[str, Any] | None:
    """Describe a change as plain data, without how it was found."""
    if change is None:
        return None
    if isinstance(change, Calibration):
        return {"layers": change.to_dict()["layers"]} if change.layers else None
    return change.to_dict()
