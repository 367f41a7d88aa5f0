"""Apply a polynomial in the entropy: the family of the paper, and the one that it publishes."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from sharpmax._arrays import Array, namespace
from sharpmax._statistics import RowStatistics
from sharpmax.policies._forms import Form, KernelForm
from sharpmax.policies._pairs import check_pairs
from sharpmax.policies._parameter import parameter
from sharpmax.policies._policy import (
    ClosedForm,
    EntropyRange,
    EntropyRangeWarning,
    Neutral,
    Tempered,
)


@dataclass(frozen=True, eq=False)
class Polynomial(ClosedForm):
    """Apply a polynomial in the entropy H (nats), as in the paper's Figure 4.

    beta = 1 where H <= threshold, otherwise max(1, p(H)).

    A polynomial is not meant for entropies outside the range that it was fitted on. There its
    value is used as it is, but never less than 1.

    Attributes:
        coefficients: those of p, highest power first, the same for every head.
        threshold: entropies up to here are left alone.

    Example:
        >>> import numpy as np, sharpmax
        >>> policy = Polynomial(coefficients=(2.0, 0.0))
        >>> round(float(sharpmax.inverse_temperature(np.zeros(8), policy)), 4)
        4.1589
    """

    neutral = Neutral("threshold", 1e30)

    coefficients: Array = parameter(axes=1)
    threshold: Array | float = parameter(0.5, at_least=0.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if np.ndim(self.coefficients) != 1 or len(self.coefficients) == 0:
            raise ValueError(
                "Polynomial.coefficients: expected one or more numbers along one axis, "
                f"got {self.coefficients!r}"
            )

    def _form(self) -> KernelForm:
        return KernelForm(Form.POLYNOMIAL, [self.threshold, 0.0, *self.coefficients])

    @classmethod
    def fit(
        cls, entropies: Any, inverse_temperatures: Any, *, degree: int = 4, threshold: float = 0.5
    ) -> Polynomial:
        """Fit by least squares of beta on powers of H, as the paper does.

        Args:
            entropies: one per row, in nats.
            inverse_temperatures: the best beta of each row, above 0.
            degree: that of the polynomial.
            threshold: entropies up to here are left alone.

        Returns:
            The policy.

        Raises:
            ValueError: for arrays of different lengths, too few different entropies, or numbers
                that are not finite or out of range.

        Example:
            >>> import numpy as np
            >>> H = np.linspace(1.0, 5.0, 50)
            >>> Polynomial.fit(H, 2.0 * H + 1.0, degree=1).coefficients.round(6).tolist()
            [2.0, 1.0]
        """
        H, beta = check_pairs(entropies, inverse_temperatures)
        different = np.unique(H).size
        if different <= degree:
            raise ValueError(
                f"entropies: expected more than {degree} different entropies, got {different}"
            )
        return cls(np.polyfit(H, beta, degree), threshold)


@dataclass(frozen=True, eq=False)
class Paper(ClosedForm):
    """Apply the polynomial of the paper's Figure 4, to the letter.

    beta = 1 where H <= 0.5, otherwise max(1, p(H)), H in nats, with
    p(H) = -0.037 H^4 + 0.481 H^3 - 2.3 H^2 + 4.917 H - 1.791.

    beta exceeds 1 only for 0.849 < H < 5.945, and is 2.42 at most. **Above 5.945 nats (about 382
    items of equal weight) the correction switches itself off**: the most dispersed rows get none.
    The first time that rows exceed this entropy, the policy gives an `EntropyRangeWarning`.

    The paper's code computes the entropy as -sum p log(p + 1e-9), which is 1e-9 below the exact
    entropy for every weight well above 1e-9. So H is the exact entropy less 1e-9 times the number
    of visible items. It agrees with the paper's code wherever logits are bounded as in the paper;
    the difference is below single precision.

    Attributes:
        warn: False silences the warning about rows above 5.945 nats.

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
        self.check_statistics(statistics)
        return super().inverse_temperature(statistics, tempered)

    def kernel_form(self) -> KernelForm:
        return self._form()

    def _form(self) -> KernelForm:
        return KernelForm(Form.POLYNOMIAL, [self.THRESHOLD, self.GUARD, *self.COEFFICIENTS])

    @property
    def entropy_range(self) -> EntropyRange:
        return EntropyRange(0.849, self.LAST_ENTROPY, "beta = 1: nothing is sharpened")

    def check_statistics(self, statistics: RowStatistics) -> None:
        """Warn, once per process, if rows are so dispersed that they get no correction."""
        if not self.warn or _warned:
            return
        entropy = statistics.entropy()
        if namespace(entropy).any(entropy > self.LAST_ENTROPY):
            _warned.append(True)
            warnings.warn(
                f"the paper's polynomial gives no correction above {self.LAST_ENTROPY} nats, and "
                "some rows, the most dispersed ones, are above it: they stay as they are. "
                "Exponential has no such ceiling; Paper(warn=False) silences this warning.",
                EntropyRangeWarning,
                stacklevel=2,
            )


_warned: list[bool] = []  # not empty once the warning has been given
