"""Use the same inverse temperature for every row: a number, 1 or infinity."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sharpmax._arrays import Array
from sharpmax.policies._forms import Form, KernelForm
from sharpmax.policies._parameter import parameter
from sharpmax.policies._policy import ClosedForm, Neutral


@dataclass(frozen=True, eq=False)
class Constant(ClosedForm):
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

    def _form(self) -> KernelForm:
        return KernelForm(Form.CONSTANT, [self.beta])

    def flattens(self, count: int) -> np.ndarray[Any, Any]:
        return self._beyond(count, np.negative)


@dataclass(frozen=True, eq=False)
class Identity(ClosedForm):
    """Leave every row as it is: beta = 1, plain softmax.

    Example:
        >>> import numpy as np, sharpmax
        >>> float(sharpmax.inverse_temperature(np.zeros(4), Identity()))
        1.0
    """

    def _form(self) -> KernelForm:
        return KernelForm(Form.CONSTANT, [1.0])

    def changes(self, count: int) -> np.ndarray[Any, Any]:
        return np.full(count, False)


@dataclass(frozen=True, eq=False)
class Hard(ClosedForm):
    """Put all weight on the largest logit: beta = inf, the limit theta -> 0.

    Logits that tie for the maximum share the weight evenly. No gradient reaches the logits.

    Example:
        >>> import numpy as np, sharpmax
        >>> sharpmax.softmax(np.array([1.0, 3.0, 3.0]), Hard()).tolist()
        [0.0, 0.5, 0.5]
    """

    def _form(self) -> KernelForm:
        return KernelForm(Form.HARD, [])
