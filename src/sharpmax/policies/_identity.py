"""Leave every row as it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sharpmax._arrays import Array
from sharpmax._statistics import RowStatistics
from sharpmax.policies._forms import Form, KernelForm
from sharpmax.policies._policy import Policy, Tempered


@dataclass(frozen=True, eq=False)
class Identity(Policy):
    """Leave every row as it is: beta = 1, plain softmax.

    Example:
        >>> import numpy as np, sharpmax
        >>> float(sharpmax.inverse_temperature(np.zeros(4), Identity()))
        1.0
    """

    def inverse_temperature(
        self, statistics: RowStatistics, tempered: Tempered | None = None
    ) -> Array:
        return 1.0

    def kernel_form(self) -> KernelForm:
        return KernelForm(Form.CONSTANT, [1.0])

    def changes(self, count: int) -> np.ndarray[Any, Any]:
        return np.full(count, False)
