"""Confidence intervals from resampling, for values that come in clusters."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

__all__ = ["clustered_interval"]


def clustered_interval(
    values: Sequence[float],
    clusters: Sequence[Hashable],
    level: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
) -> tuple[float, float]:
    """Compute a confidence interval of the mean by resampling clusters.

    Values of one cluster are not independent, so whole clusters are resampled.

    Args:
        values: The values.
        clusters: The cluster of each value.
        level: Level of the interval, between 0 and 1.
        resamples: Number of resamples, drawn with replacement.
        seed: Seed of the resampling.

    Returns:
        The lower and the upper end, which are quantiles of the resampled means.

    Raises:
        ValueError: There are no values, or the level is not between 0 and 1.

    Example:
        >>> low, high = clustered_interval([0.0, 0.0, 1.0, 1.0], ["a", "a", "b", "b"])
        >>> low, high
        (0.0, 1.0)
    """
    if len(values) == 0:
        raise ValueError("values: expected at least one value, got none")
    if not 0 < level < 1:
        raise ValueError(f"level: expected between 0 and 1, got {level}")
    names = list(dict.fromkeys(clusters))
    place = {name: index for index, name in enumerate(names)}
    where = np.array([place[name] for name in clusters])
    totals = np.bincount(where, np.asarray(values, dtype=float), minlength=len(names))
    counts = np.bincount(where, minlength=len(names))
    drawn = np.random.default_rng(seed).choice(len(names), (resamples, len(names)))
    means = totals[drawn].sum(1) / counts[drawn].sum(1)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
