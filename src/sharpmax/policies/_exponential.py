"""The law that restores a reference sharpness where competitors crowd below the maximum."""

from __future__ import annotations

from dataclasses import dataclass

from sharpmax._arrays import Array, namespace
from sharpmax._statistics import RowStatistics
from sharpmax.policies._policy import Policy, Tempered, parameter


@dataclass(frozen=True, eq=False)
class Exponential(Policy):
    """Sharpen by the excess of the entropy: beta = exp(strength * max(0, H - reference)).

    Where competitors are spread evenly below the maximum, a head of logit slope s over n items
    has H = log(n / s) + constant. Then beta = exp(H - reference) is what brings the row back to
    the entropy `reference`, at any n, in one pass. There is no ceiling: the law holds over the
    whole range of entropies.

    Attributes:
        reference: the entropy, in nats, up to which a row is left alone: that of the head at
            lengths where it works.
        strength: 1 restores the reference; 0 leaves the row alone.

    Example:
        >>> import numpy as np, sharpmax
        >>> policy = Exponential(reference=np.log(16.0))
        >>> sharpmax.inverse_temperature(np.zeros((1, 160)), policy).round(3).tolist()
        [10.0]
    """

    reference: Array | float = parameter(at_least=0.0)
    strength: Array | float = parameter(1.0, at_least=0.0)

    def inverse_temperature(
        self, statistics: RowStatistics, tempered: Tempered | None = None
    ) -> Array:
        entropy = statistics.entropy()
        xp = namespace(entropy, self.reference, self.strength)
        excess = xp.clip(entropy - xp.asarray(self.reference, like=entropy), 0.0, None)
        return xp.exp(xp.asarray(self.strength, like=entropy) * excess)
