"""A monotone curve through data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from sharpmax._arrays import Array, namespace
from sharpmax._statistics import RowStatistics
from sharpmax.policies._policy import EntropyRange, Policy, Tempered, parameter


@dataclass(frozen=True, eq=False)
class Monotone(Policy):
    """A curve from entropy to inverse temperature that never falls, given by its knots.

    log beta is linear in H between the knots. Below the first knot beta is that of the first
    knot. Above the last one it goes on by the exponential law, beta = beta_last exp(H - H_last),
    or is held constant. `sharpmax.policies.fit` makes one from data.

    Attributes:
        entropies: of the knots, in nats, rising. Knots lie along the last axis; axes before it
            are over heads.
        inverse_temperatures: of the knots, at least 1, never falling.
        outside: "exponential" or "constant": what happens above the last knot.

    Example:
        >>> import numpy as np, sharpmax
        >>> policy = Monotone(entropies=(1.0, 2.0), inverse_temperatures=(1.0, 3.0))
        >>> logits = np.zeros(round(np.exp(3.0)))
        >>> round(float(sharpmax.inverse_temperature(logits, policy)), 1)
        8.1
    """

    entropies: Array = parameter(at_least=0.0)
    inverse_temperatures: Array = parameter(at_least=1.0)
    outside: Literal["exponential", "constant"] = "exponential"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.outside not in ("exponential", "constant"):
            raise ValueError(
                f"Monotone.outside: expected 'exponential' or 'constant', got {self.outside!r}"
            )
        for name in ("entropies", "inverse_temperatures"):
            if np.ndim(getattr(self, name)) == 0:
                raise ValueError(f"Monotone.{name}: expected knots along an axis, got a number")
        xp = namespace(self.entropies, self.inverse_temperatures)
        knots, betas = self.entropies, self.inverse_temperatures
        if knots.shape[-1] != betas.shape[-1] or knots.shape[-1] == 0:
            raise ValueError(
                "Monotone: expected as many inverse_temperatures as entropies, at least one, "
                f"got {betas.shape[-1]} and {knots.shape[-1]}"
            )
        if xp.any(knots[..., 1:] <= knots[..., :-1]):
            raise ValueError(f"Monotone.entropies: expected rising numbers, got {knots}")
        if xp.any(betas[..., 1:] < betas[..., :-1]):
            raise ValueError(
                f"Monotone.inverse_temperatures: expected numbers that never fall, got {betas}"
            )

    @property
    def entropy_range(self) -> EntropyRange:
        above = {"exponential": "beta_last exp(H - H_last)", "constant": "beta_last"}
        return EntropyRange(
            float(self.entropies.min()),
            float(self.entropies.max()),
            f"below: beta_first; above: {above[self.outside]}",
        )

    def over_queries(self) -> Monotone:
        """A new axis before that of the knots, if there are axes over heads."""
        return self._map(lambda knots: knots[..., None, :] if knots.ndim > 1 else knots)

    def inverse_temperature(
        self, statistics: RowStatistics, tempered: Tempered | None = None
    ) -> Array:
        entropy = statistics.entropy()
        xp = namespace(entropy, self.entropies, self.inverse_temperatures)
        start, ramps = self.ramps(like=entropy)
        logarithm = start + 0.0 * entropy
        for knot, slope, width in ramps:
            logarithm = logarithm + slope * xp.clip(entropy - knot, 0.0, width)
        return xp.exp(xp.clip(logarithm, 0.0, None))

    def ramps(self, like: Array) -> tuple[Array, list[tuple[Array, Array, Array | None]]]:
        """log beta as a sum: a start, and slope * clip(H - knot, 0, width) for each interval.

        Written so, a curve is evaluated without searching for an interval.
        """
        xp = namespace(like)
        knots = xp.asarray(self.entropies, like=like)
        values = xp.log(xp.asarray(self.inverse_temperatures, like=like))
        ramps: list[tuple[Array, Array, Array | None]] = []
        for k in range(knots.shape[-1] - 1):
            width = knots[..., k + 1] - knots[..., k]
            ramps.append((knots[..., k], (values[..., k + 1] - values[..., k]) / width, width))
        if self.outside == "exponential":
            ramps.append((knots[..., -1], xp.asarray(1.0, like=like), None))
        return values[..., 0], ramps
