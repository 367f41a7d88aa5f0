"""Interpolate a monotone curve from entropy to inverse temperature."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from sharpmax._arrays import Array, namespace
from sharpmax.policies._forms import Form, KernelForm
from sharpmax.policies._pairs import check_pairs
from sharpmax.policies._parameter import parameter
from sharpmax.policies._policy import ClosedForm, EntropyRange


@dataclass(frozen=True, eq=False)
class Monotone(ClosedForm):
    """Interpolate a curve from entropy to inverse temperature that never falls.

    log beta is linear in H between the knots. Below the first knot beta is that of the first
    knot. Above the last knot it follows the exponential law, beta = beta_last exp(H - H_last), or
    stays constant. `Monotone.fit` makes a curve from data.

    Attributes:
        entropies: those of the knots, in nats, increasing. The last axis runs over knots; an axis
            before it runs over heads.
        inverse_temperatures: those of the knots, at least 1, never decreasing.
        outside: "exponential" or "constant", above the last knot.

    Example:
        >>> import numpy as np, sharpmax
        >>> policy = Monotone(entropies=(1.0, 2.0), inverse_temperatures=(1.0, 3.0))
        >>> logits = np.zeros(round(np.exp(3.0)))
        >>> round(float(sharpmax.inverse_temperature(logits, policy)), 1)
        8.1
    """

    entropies: Array = parameter(at_least=0.0, axes=1)
    inverse_temperatures: Array = parameter(at_least=1.0, axes=1)
    outside: Literal["exponential", "constant"] = "exponential"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.outside not in ("exponential", "constant"):
            raise ValueError(
                f"Monotone.outside: expected 'exponential' or 'constant', got {self.outside!r}"
            )
        knots, betas = self.entropies, self.inverse_temperatures
        for name in ("entropies", "inverse_temperatures"):
            if np.ndim(getattr(self, name)) == 0:
                raise ValueError(f"Monotone.{name}: expected knots along an axis, got a number")
        xp = namespace(knots, betas)
        if knots.shape[-1] != betas.shape[-1] or knots.shape[-1] == 0:
            raise ValueError(
                "Monotone: expected as many inverse_temperatures as entropies, at least one, "
                f"got {betas.shape[-1]} and {knots.shape[-1]}"
            )
        if xp.any(knots[..., 1:] <= knots[..., :-1]):
            raise ValueError(f"Monotone.entropies: expected increasing numbers, got {knots}")
        if xp.any(betas[..., 1:] < betas[..., :-1]):
            raise ValueError(
                f"Monotone.inverse_temperatures: expected numbers that never decrease, got {betas}"
            )

    @property
    def entropy_range(self) -> EntropyRange:
        above = {"exponential": "beta_last exp(H - H_last)", "constant": "beta_last"}
        return EntropyRange(
            float(self.entropies.min()),
            float(self.entropies.max()),
            f"below: beta_first; above: {above[self.outside]}",
        )

    def _form(self) -> KernelForm:
        # A sum of clipped ramps needs no search for the interval.
        xp = namespace(self.entropies, self.inverse_temperatures)
        knots, betas = self.entropies, self.inverse_temperatures
        if isinstance(knots, np.ndarray) != isinstance(betas, np.ndarray):
            like = betas if isinstance(knots, np.ndarray) else knots
            knots, betas = (xp.asarray(x, like=like) for x in (knots, betas))
        values = xp.log(betas)
        columns = [values[..., 0]]
        for k in range(knots.shape[-1] - 1):
            width = knots[..., k + 1] - knots[..., k]
            columns += [knots[..., k], (values[..., k + 1] - values[..., k]) / width, width]
        if self.outside == "exponential":
            columns += [knots[..., -1], 1.0, math.inf]
        return KernelForm(Form.RAMPS, columns)

    @classmethod
    def fit(
        cls,
        entropies: Any,
        inverse_temperatures: Any,
        *,
        knots: int = 16,
        outside: Literal["exponential", "constant"] = "exponential",
    ) -> Monotone:
        """Fit a curve to pairs of an entropy and the best inverse temperature there.

        Pairs are grouped into bins of equal size. The curve is the isotonic regression of the
        means of log beta on the means of H.

        Args:
            entropies: one per row, in nats.
            inverse_temperatures: the best beta of each row, above 0.
            knots: the largest number of bins.
            outside: what the curve does above the last knot.

        Returns:
            The curve.

        Raises:
            ValueError: for arrays of different lengths, no pairs, or numbers that are not finite
                or out of range.

        Example:
            >>> import numpy as np
            >>> H = np.linspace(2.0, 6.0, 200)
            >>> policy = Monotone.fit(H, np.exp(H - 2.0), knots=4)
            >>> np.log(policy.inverse_temperatures).round(2).tolist()
            [0.49, 1.5, 2.5, 3.51]
        """
        H, beta = check_pairs(entropies, inverse_temperatures)
        if knots < 1:
            raise ValueError(f"knots: expected at least 1, got {knots}")
        if H.size == 0:
            raise ValueError("entropies: expected at least one pair, got none")
        order = np.argsort(H, kind="stable")
        H, log_beta = H[order], np.log(beta[order])
        # Rows of equal entropy share a bin: knots have to increase.
        edges = np.unique(np.searchsorted(H, np.quantile(H, np.arange(knots) / knots)))
        sizes = np.diff(np.append(edges, H.size))
        centres = np.add.reduceat(H, edges) / sizes
        means = np.add.reduceat(log_beta, edges) / sizes
        # The nearest curve that is at least 0 is the nearest curve, cut off at 0.
        curve = np.maximum(_isotonic(means, sizes.astype(np.float64)), 0.0)
        return cls(centres, np.exp(curve), outside)


def _isotonic(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The non-decreasing sequence nearest in weighted squares: pool adjacent violators."""
    pools: list[tuple[float, float, int]] = []
    for value, weight in zip(values, weights, strict=True):
        mean, total, length = float(value), float(weight), 1
        while pools and pools[-1][0] > mean:
            below, its_total, its_length = pools.pop()
            mean = (mean * total + below * its_total) / (total + its_total)
            total, length = total + its_total, length + its_length
        pools.append((mean, total, length))
    return np.repeat([mean for mean, _, _ in pools], [length for _, _, length in pools])
