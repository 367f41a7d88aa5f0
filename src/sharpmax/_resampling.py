"""Confidence intervals from resampling, for values that come in clusters."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np


def clustered_interval(
    values: Sequence[float],
    clusters: Sequence[Hashable],
    level: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
) -> tuple[float, float]:
    """Compute a confidence interval of the mean by resampling clusters.

    Values of one cluster are not independent, so whole clusters are resampled with replacement. The
    ends of the interval are quantiles of the resampled means.

    Example:
        >>> clustered_interval([0.0, 0.0, 1.0, 1.0], ["a", "a", "b", "b"])
        (0.0, 1.0)
    """
    if len(values) == 0:
        raise ValueError("values: expected at least one value, got none")
    if not 0 < level < 1:
        raise ValueError(f"level: expected between 0 and 1, got {level}")
    place = {name: index for index, name in enumerate(dict.fromkeys(clusters))}
    where = np.array([place[name] for name in clusters])
    totals = np.bincount(where, np.asarray(values, dtype=float))
    counts = np.bincount(where)
    drawn = np.random.default_rng(seed).choice(len(place), (resamples, len(place)))
    means = totals[drawn].sum(1) / counts[drawn].sum(1)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
