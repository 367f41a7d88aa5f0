"""The same temperature for every row."""

from __future__ import annotations

from dataclasses import dataclass

from sharpmax._arrays import Array
from sharpmax._statistics import RowStatistics
from sharpmax.policies._policy import Policy, Tempered, parameter


@dataclass(frozen=True, eq=False)
class Fixed(Policy):
    """One temperature for every row: beta = 1 / theta.

    The one policy that flattens when it is asked to, with theta > 1.

    Attributes:
        theta: the temperature, above 0. Note that it is theta, not beta.

    Example:
        >>> import numpy as np, sharpmax
        >>> float(sharpmax.inverse_temperature(np.zeros(4), Fixed(theta=0.25)))
        4.0
    """

    theta: Array | float = parameter(above=0.0)

    def inverse_temperature(
        self, statistics: RowStatistics, tempered: Tempered | None = None
    ) -> Array:
        return 1.0 / self.theta
