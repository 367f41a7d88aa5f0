"""Sharpen with the logarithm of the length."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sharpmax._arrays import Array
from sharpmax.policies._forms import Form, KernelForm
from sharpmax.policies._parameter import parameter
from sharpmax.policies._policy import ClosedForm, Neutral


@dataclass(frozen=True, eq=False)
class LogLength(ClosedForm):
    """Sharpen with the logarithm of the length, as scalable softmax does (SSMax, arXiv 2501.19399).

    beta = max(1, scale * log n), or, with a training length N,
    beta = max(1, scale * log n / log N), which for scale = 1 is 1 up to N.

    n is the number of keys that the row sees, not the length of the tensor.

    Attributes:
        scale: the factor s of SSMax.
        train_length: N, above 1, or None.

    Example:
        >>> import numpy as np, sharpmax
        >>> policy = LogLength(train_length=16)
        >>> round(float(sharpmax.inverse_temperature(np.zeros(256), policy)), 6)
        2.0
    """

    neutral = Neutral("scale", 0.0)

    scale: Array | float = parameter(1.0, at_least=0.0)
    train_length: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        length = self.train_length
        if length is None:
            return
        if isinstance(length, bool) or not isinstance(length, int | float | np.number):
            raise TypeError(f"LogLength.train_length: expected a number or None, got {length!r}")
        if not 1 < length < math.inf:
            raise ValueError(
                f"LogLength.train_length: expected a finite number above 1, got {length!r}"
            )

    @property
    def unit(self) -> float:
        """What log n is divided by: log N, or 1 without a training length."""
        return 1.0 if self.train_length is None else math.log(self.train_length)

    def _form(self) -> KernelForm:
        return KernelForm(Form.LENGTH, [self.scale / self.unit])
