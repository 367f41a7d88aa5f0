"""The same inverse temperature for every row."""

from __future__ import annotations

from dataclasses import dataclass

from sharpmax._arrays import Array
from sharpmax._statistics import RowStatistics
from sharpmax.policies._policy import Policy, Tempered, parameter


@dataclass(frozen=True, eq=False)
class Constant(Policy):
    """One inverse temperature for every row.

    The only policy that can flatten rows, with beta < 1. One temperature per head is known from
    HeadScale (arXiv 2404.12224).

    Attributes:
        beta: the inverse temperature 1/theta, above 0.

    Example:
        >>> import numpy as np, sharpmax
        >>> float(sharpmax.inverse_temperature(np.zeros(4), Constant(beta=4.0)))
        4.0
    """

    beta: Array | float = parameter(above=0.0)

    def inverse_temperature(
        self, statistics: RowStatistics, tempered: Tempered | None = None
    ) -> Array:
        return self.beta
