"""Use the same inverse temperature for every row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sharpmax._arrays import Array
from sharpmax._statistics import RowStatistics
from sharpmax.policies._forms import Form, KernelForm
from sharpmax.policies._parameter import parameter
from sharpmax.policies._policy import Neutral, Policy, Tempered


@dataclass(frozen=True, eq=False)
class Constant(Policy):
    """Use one inverse temperature for every row.

    With an array, one per head, as in HeadScale (arXiv 2404.12224). This is the only policy that
    can flatten rows, with beta < 1.

    Attributes:
        beta: the inverse temperature 1/theta, above 0.

    Example:
        >>> import numpy as np, sharpmax
        >>> float(sharpmax.inverse_temperature(np.zeros(4), Constant(beta=4.0)))
        4.0
    """

    neutral = Neutral("beta", 1.0, tolerance=1e-3)

    beta: Array | float = parameter(above=0.0)

    def inverse_temperature(
        self, statistics: RowStatistics, tempered: Tempered | None = None
    ) -> Array:
        return self.beta

    def kernel_form(self) -> KernelForm:
        return KernelForm(Form.CONSTANT, [self.beta])

    def flattens(self, count: int) -> np.ndarray[Any, Any]:
        return self._beyond(count, np.negative)
