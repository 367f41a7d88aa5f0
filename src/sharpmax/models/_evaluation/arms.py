"""What is compared: a model as it is, calibrations, and the controls that tell why they help."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sharpmax.models import Calibration, LayerCalibration
from sharpmax.policies import Constant, Exponential, Paper, Policy

__all__ = ["Change", "control_arms", "shuffled", "uniform"]

Change = Policy | Calibration | None
"""What is done to a model; None is nothing."""

UNIFORM = 1.1
"""The beta of all heads, in the control that calibrates nothing."""


def uniform(beta: float = UNIFORM) -> Policy:
    """The same temperature in all heads."""
    return Constant(beta)


def control_arms(
    calibration: Calibration | None, name: str = "heads", seed: int = 0
) -> dict[str, Change]:
    """The model as it is, and what a calibration has to be compared with, by name.

    Args:
        calibration: What is to be judged; None for the controls that need none.
        name: Of the calibration.
        seed: Of the shuffling.
    """
    found: dict[str, Change] = {
        "plain": None,
        "paper in all heads": Paper(warn=False),
        f"uniform beta {UNIFORM:g}": uniform(),
    }
    if calibration is not None:
        found[f"shuffled {name}"] = shuffled(calibration, seed)
    return found


def shuffled(calibration: Calibration, seed: int = 0) -> Calibration:
    """The same numbers on other heads: is it these heads, or any?

    Heads are exchanged within the whole model; a head keeps its numbers together.

    Args:
        calibration: Whose policies are all `Constant` or all `Exponential`.
        seed: Of the exchange.

    Raises:
        TypeError: A policy is of another kind.
    """
    counts = [count or 0 for count in calibration.head_counts]
    owners = [(layer, head) for layer, count in enumerate(counts) for head in range(count)]
    entries = {entry.index: entry for entry in calibration.layers}
    numbers = [_numbers(entries.get(layer), head) for layer, head in owners]
    order = np.random.default_rng(seed).permutation(len(owners))
    dealt = [numbers[place] for place in order]
    layers = []
    first = 0
    for index, count in enumerate(counts):
        own = dealt[first : first + count]
        first += count
        layers.append(LayerCalibration(index, _policy(own), _gain(own)))
    changed = tuple(entry for entry in layers if entry.policy is not None or entry.gain is not None)
    return replace(calibration, layers=changed, before=None, after=None, notes={"shuffled": seed})


_Numbers = dict[str, float]


def _numbers(entry: LayerCalibration | None, head: int) -> _Numbers:
    """What a head gets, by name; nothing where it is left alone."""
    found: _Numbers = {}
    if entry is None:
        return found
    if entry.policy is not None:
        if not isinstance(entry.policy, Constant | Exponential):
            raise TypeError(
                f"calibration: expected Constant or Exponential, got {type(entry.policy).__name__}"
            )
        for name in entry.policy.to_dict()["parameters"]:
            value: Any = getattr(entry.policy, name)
            # A single number is that of all heads.
            found[name] = float(np.ravel(value)[head if np.size(value) > 1 else 0])
    if entry.gain is not None:
        found["gain"] = entry.gain[head]
    return found


def _policy(heads: Sequence[_Numbers]) -> Policy | None:
    if any("beta" in numbers for numbers in heads):
        return Constant(np.array([numbers.get("beta", 1.0) for numbers in heads]))
    if any("strength" in numbers for numbers in heads):
        return Exponential(
            np.array([numbers.get("reference", 0.0) for numbers in heads]),
            strength=np.array([numbers.get("strength", 0.0) for numbers in heads]),
        )
    return None


def _gain(heads: Sequence[_Numbers]) -> tuple[float, ...] | None:
    if not any("gain" in numbers for numbers in heads):
        return None
    return tuple(numbers.get("gain", 1.0) for numbers in heads)
