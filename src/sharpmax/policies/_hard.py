"""Put all weight on the largest logit."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sharpmax._arrays import Array
from sharpmax._statistics import RowStatistics
from sharpmax.policies._forms import Form, KernelForm
from sharpmax.policies._policy import Policy, Tempered


@dataclass(frozen=True, eq=False)
class Hard(Policy):
    """Put all weight on the largest logit: beta = inf, the limit theta -> 0.

    Logits that tie for the maximum share the weight evenly. No gradient reaches the logits.

    Example:
        >>> import numpy as np, sharpmax
        >>> sharpmax.softmax(np.array([1.0, 3.0, 3.0]), Hard()).tolist()
        [0.0, 0.5, 0.5]
    """

    def inverse_temperature(
        self, statistics: RowStatistics, tempered: Tempered | None = None
    ) -> Array:
        return math.inf

    def kernel_form(self) -> KernelForm:
        return KernelForm(Form.HARD, [])
