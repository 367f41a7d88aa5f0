"""Compare methods over the seeds that both were tested on."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import stdtr  # a fraction of a second to import; scipy.stats takes a whole one

from sharpmax._resampling import clustered_interval

__all__ = ["adjusted", "bootstrap_interval", "paired_p_value"]


def paired_p_value(ours: Sequence[float], theirs: Sequence[float]) -> float | None:
    """Return the two-sided p-value of the paired t-test.

    Args:
        ours: One figure per seed.
        theirs: The figures of the other method, for the same seeds in the same order.

    Returns:
        The p-value; 1 if the two agree on every seed. None for fewer than two seeds, or if every
        seed differs by the same amount: there is no deviation to compare with.

    Raises:
        ValueError: The numbers of figures differ.

    Example:
        >>> round(paired_p_value([0.9, 0.8, 0.85], [0.7, 0.65, 0.6]), 3)
        0.02
    """
    if len(ours) != len(theirs):
        raise ValueError(f"theirs: expected {len(ours)} figures, got {len(theirs)}")
    # Shares are not exact in binary: equal differences must not differ in their last bits.
    difference = np.subtract(ours, theirs).round(12)
    if not difference.any():
        return 1.0
    if len(ours) < 2 or np.ptp(difference) == 0:
        return None
    deviation = difference.std(ddof=1) / math.sqrt(len(difference))
    return float(2 * stdtr(len(difference) - 1, -abs(difference.mean()) / deviation))


def bootstrap_interval(
    values: Sequence[float], level: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> tuple[float, float]:
    """Return a bootstrap interval of the mean over seeds.

    Args:
        values: One figure per seed.
        level: Share of resampled means inside.
        resamples: How often seeds are drawn, with replacement.
        seed: Seed of the drawing.

    Returns:
        Lower and upper end: quantiles of the resampled means.

    Raises:
        ValueError: There are no values, or the level is not between 0 and 1.

    Example:
        >>> low, high = bootstrap_interval([0.7, 0.8, 0.75, 0.85])
        >>> round(low, 2), round(high, 2)
        (0.72, 0.83)
    """
    return clustered_interval(values, range(len(values)), level, resamples, seed)


def adjusted(p_values: Sequence[float]) -> list[float]:
    """Adjust p-values for their number by Holm's method.

    Example:
        >>> adjusted([0.01, 0.04, 0.03])
        [0.03, 0.06, 0.06]
    """
    order = sorted(range(len(p_values)), key=lambda place: p_values[place])
    result, largest = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        result[place] = round(largest, 12)
    return result
