"""The paper's family of rules: a polynomial in the entropy, and the one that it publishes."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sharpmax._arrays import Array, namespace
from sharpmax._statistics import RowStatistics
from sharpmax.policies._policy import (
    EntropyRange,
    EntropyRangeWarning,
    Policy,
    Tempered,
    parameter,
)


@dataclass(frozen=True, eq=False)
class Polynomial(Policy):
    """A polynomial in the entropy H (nats), as in the paper's Figure 4.

    beta = 1 where H <= threshold, otherwise max(1, p(H)).

    A polynomial says nothing of entropies beyond those that it was fitted on; whatever it gives
    there is used, but never less than 1.

    Attributes:
        coefficients: of p, highest power first. One axis: the same polynomial for every row.
        threshold: entropies up to here are left alone.

    Example:
        >>> import numpy as np, sharpmax
        >>> policy = Polynomial(coefficients=(2.0, 0.0))
        >>> round(float(sharpmax.inverse_temperature(np.zeros(8), policy)), 4)
        4.1589
    """

    coefficients: Array = parameter()
    threshold: Array | float = parameter(0.5, at_least=0.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if np.ndim(self.coefficients) != 1 or len(self.coefficients) == 0:
            raise ValueError(
                "Polynomial.coefficients: expected one or more numbers along one axis, "
                f"got {self.coefficients!r}"
            )

    def inverse_temperature(
        self, statistics: RowStatistics, tempered: Tempered | None = None
    ) -> Array:
        return evaluate(self.coefficients, self.threshold, statistics.entropy())

    def over_queries(self) -> Polynomial:
        """The coefficients are not over heads; the threshold may be."""
        threshold = self.threshold[..., None] if np.ndim(self.threshold) else self.threshold  # type: ignore[index]
        return Polynomial(self.coefficients, threshold)


@dataclass(frozen=True, eq=False)
class Paper(Policy):
    """Figure 4 of the paper, to the letter.

    beta = 1 where H <= 0.5, otherwise max(1, p(H)), H in nats, with
    p(H) = -0.037 H^4 + 0.481 H^3 - 2.3 H^2 + 4.917 H - 1.791.

    beta exceeds 1 only for 0.849 < H < 5.945, and is 2.42 at most. **Above 5.945 nats (some 382
    items, spread evenly) the correction switches itself off**: the most dispersed rows get
    nothing. The first time that this happens to rows at hand, an `EntropyRangeWarning` says so.

    The paper's code takes the entropy as -sum p log(p + 1e-9), which is below the exact one by
    1e-9 for every weight well above 1e-9. So H is the exact entropy less 1e-9 times the number of
    visible items, which agrees with the code wherever logits are bounded as in the paper; no
    single-precision number tells them apart.

    Attributes:
        warn: set to False to hear nothing about rows above 5.945 nats.

    Example:
        >>> import numpy as np, sharpmax
        >>> round(float(sharpmax.inverse_temperature(np.zeros(16), Paper())), 3)
        2.227
    """

    COEFFICIENTS: ClassVar[tuple[float, ...]] = (-0.037, 0.481, -2.3, 4.917, -1.791)
    THRESHOLD: ClassVar[float] = 0.5
    GUARD: ClassVar[float] = 1e-9
    """What the paper's code adds to a weight before it takes the logarithm."""
    LAST_ENTROPY: ClassVar[float] = 5.945
    """Where the polynomial falls below 1 again, in nats."""

    warn: bool = True

    def inverse_temperature(
        self, statistics: RowStatistics, tempered: Tempered | None = None
    ) -> Array:
        entropy = statistics.entropy() - self.GUARD * statistics.count
        self.warn_above_range(entropy)
        return evaluate(self.COEFFICIENTS, self.THRESHOLD, entropy)

    @property
    def entropy_range(self) -> EntropyRange:
        return EntropyRange(0.849, self.LAST_ENTROPY, "beta = 1: nothing is sharpened")

    @property
    def may_warn(self) -> bool:
        """Whether a warning is still due, so that entropies have to be looked at."""
        return self.warn and not _told

    def warn_above_range(self, entropy: Array) -> None:
        """Warn, once in a process, if rows are so dispersed that they get no correction."""
        if self.may_warn and namespace(entropy).any(entropy > self.LAST_ENTROPY):
            _told.append(True)
            warnings.warn(
                f"the paper's polynomial gives no correction above {self.LAST_ENTROPY} nats, and "
                "there are rows above it, the most dispersed ones: they stay as they are. "
                "Exponential has no such ceiling; Paper(warn=False) silences this.",
                EntropyRangeWarning,
                stacklevel=2,
            )


_told: list[bool] = []
"""Holds something once the warning has been given in this process."""


def evaluate(coefficients: Array, threshold: Array | float, entropy: Array) -> Array:
    """max(1, p(H)) above the threshold, 1 up to it, by Horner's rule."""
    xp = namespace(entropy, coefficients, threshold)
    result = 0.0 * entropy
    for k in range(len(coefficients)):
        result = result * entropy + xp.asarray(coefficients[k], like=entropy)
    above = entropy > xp.asarray(threshold, like=entropy)
    return xp.where(above, xp.clip(result, 1.0, None), 0.0 * entropy + 1.0)
