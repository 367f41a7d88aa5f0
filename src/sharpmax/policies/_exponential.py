"""Sharpen exponentially in the entropy above a reference."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sharpmax._arrays import Array
from sharpmax.policies._forms import Form, KernelForm
from sharpmax.policies._parameter import parameter
from sharpmax.policies._policy import ClosedForm, Neutral


@dataclass(frozen=True, eq=False)
class Exponential(ClosedForm):
    """Sharpen by the excess of the entropy: beta = exp(strength * max(0, H - reference)).

    If competitors are spread evenly below the maximum, a head of logit slope s over n items has
    H = log(n / s) + constant. Then beta = exp(H - reference) brings the row back to the entropy
    `reference`, at any n, in one pass. The law has no ceiling.

    Attributes:
        reference: the entropy, in nats, up to which a row is left alone. Take the entropy of the
            head at lengths where it works.
        strength: 1 restores the reference; 0 leaves the row alone.

    Example:
        >>> import numpy as np, sharpmax
        >>> policy = Exponential(reference=np.log(16.0))
        >>> sharpmax.inverse_temperature(np.zeros((1, 160)), policy).round(3).tolist()
        [10.0]
    """

    neutral = Neutral("strength", 0.0)

    reference: Array | float = parameter(at_least=0.0)
    strength: Array | float = parameter(1.0, at_least=0.0)

    def _form(self) -> KernelForm:
        return KernelForm(Form.RAMPS, [0.0, self.reference, self.strength, math.inf])
