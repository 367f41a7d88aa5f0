"""Cells of tables: percentages, deviations over seeds and p-values as text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

__all__ = ["p_value", "percent", "source", "with_deviation"]


def percent(share: float) -> str:
    """Write a share in percent: one decimal, and two above 99, where one would hide differences.

    Example:
        >>> percent(0.987), percent(0.9976)
        ('98.7', '99.76')
    """
    return f"{100 * share:.2f}" if share > 0.99 else f"{100 * share:.1f}"


def with_deviation(shares: Sequence[float]) -> str:
    """Write mean and standard deviation over seeds in percent; the mean alone for one seed.

    Example:
        >>> with_deviation([0.8, 0.9]), with_deviation([0.8]), with_deviation([])
        ('85.0 ± 7.1', '80.0', '')
    """
    if not shares:
        return ""
    mean = sum(shares) / len(shares)
    if len(shares) == 1:
        return percent(mean)
    return f"{percent(mean)} ± {100 * np.std(shares, ddof=1):.{2 if mean > 0.99 else 1}f}"


def p_value(value: float | None) -> str:
    """Write a p-value with the digits that mean something; nothing for None.

    Example:
        >>> p_value(0.0456), p_value(0.000021), p_value(1e-20), p_value(None)
        ('0.046', '2e-5', '< 1e-16', '')
    """
    if value is None:
        return ""
    if value >= 0.001:
        return f"{value:.2g}"
    if value < 1e-16:
        return "< 1e-16"
    mantissa, exponent = f"{value:.0e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def source(command: str) -> str:
    """Name the command behind the figures of a table."""
    return f"Command: `{command}`."
