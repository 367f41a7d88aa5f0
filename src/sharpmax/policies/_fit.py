"""Policies from data: pairs of an entropy and the inverse temperature that was best there."""

from __future__ import annotations

from typing import Any, Literal, overload

import numpy as np

from sharpmax.policies._monotone import Monotone
from sharpmax.policies._polynomial import Polynomial


@overload
def fit(
    entropies: Any,
    inverse_temperatures: Any,
    family: Literal["monotone"] = ...,
    *,
    knots: int = ...,
    outside: Literal["exponential", "constant"] = ...,
) -> Monotone: ...
@overload
def fit(
    entropies: Any,
    inverse_temperatures: Any,
    family: Literal["polynomial"],
    *,
    degree: int = ...,
    threshold: float = ...,
) -> Polynomial: ...


def fit(
    entropies: Any,
    inverse_temperatures: Any,
    family: Literal["monotone", "polynomial"] = "monotone",
    *,
    knots: int = 16,
    outside: Literal["exponential", "constant"] = "exponential",
    degree: int = 4,
    threshold: float = 0.5,
) -> Monotone | Polynomial:
    """Fit a policy to pairs of entropy and best inverse temperature.

    "monotone" groups the pairs into bins of equal size, takes the mean of H and of log beta in
    each, and fits the curve that never falls and is nearest in squares (isotonic regression).
    "polynomial" is the paper's way: least squares of beta on powers of H, degree 4.

    Args:
        entropies: of rows, in nats, one axis.
        inverse_temperatures: the best beta of each of these rows, above 0.
        family: which kind of curve.
        knots: how many bins at most ("monotone").
        outside: what the curve does above the last knot ("monotone").
        degree: of the polynomial.
        threshold: entropies up to here are left alone ("polynomial").

    Returns:
        A `Monotone`, or a `Polynomial`.

    Raises:
        ValueError: for arrays of different lengths, too few pairs, or numbers that are not
            finite or out of range.

    Example:
        >>> import numpy as np
        >>> H = np.linspace(2.0, 6.0, 200)
        >>> policy = fit(H, np.exp(H - 2.0), knots=4)
        >>> np.log(policy.inverse_temperatures).round(2).tolist()
        [0.49, 1.5, 2.5, 3.51]
    """
    H = np.asarray(entropies, dtype=np.float64)
    beta = np.asarray(inverse_temperatures, dtype=np.float64)
    if H.ndim != 1 or H.shape != beta.shape:
        raise ValueError(
            "fit: expected entropies and inverse_temperatures of one length along one axis, "
            f"got shapes {H.shape} and {beta.shape}"
        )
    if not (np.isfinite(H).all() and (H >= 0).all()):
        raise ValueError("fit: expected finite entropies of at least 0")
    if not (np.isfinite(beta).all() and (beta > 0).all()):
        raise ValueError("fit: expected finite inverse_temperatures above 0")

    if family == "polynomial":
        if np.unique(H).size <= degree:
            raise ValueError(
                f"fit: expected more than {degree} different entropies, got {np.unique(H).size}"
            )
        return Polynomial(np.polyfit(H, beta, degree), threshold)
    if family != "monotone":
        raise ValueError(f"fit: expected family 'monotone' or 'polynomial', got {family!r}")
    if knots < 1:
        raise ValueError(f"fit: expected knots of at least 1, got {knots}")
    if H.size == 0:
        raise ValueError("fit: expected at least one pair, got none")
    return _fit_monotone(H, np.log(beta), knots, outside)


def _fit_monotone(
    H: np.ndarray, log_beta: np.ndarray, knots: int, outside: Literal["exponential", "constant"]
) -> Monotone:
    order = np.argsort(H, kind="stable")
    H, log_beta = H[order], log_beta[order]
    # Rows of the same entropy belong to one bin: knots have to rise.
    edges = np.unique(np.searchsorted(H, np.quantile(H, np.arange(knots) / knots)))
    sizes = np.diff(np.append(edges, H.size))
    centres = np.add.reduceat(H, edges) / sizes
    means = np.add.reduceat(log_beta, edges) / sizes
    # A policy never flattens: the nearest curve that is at least 0 is the nearest one, cut off.
    curve = np.maximum(_nearest_rising(means, sizes.astype(np.float64)), 0.0)
    return Monotone(centres, np.exp(curve), outside)


def _nearest_rising(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The sequence that never falls and is nearest in weighted squares: pool what violates it."""
    pools: list[tuple[float, float, int]] = []
    for value, weight in zip(values, weights, strict=True):
        mean, total, length = float(value), float(weight), 1
        while pools and pools[-1][0] > mean:
            below, its_total, its_length = pools.pop()
            mean = (mean * total + below * its_total) / (total + its_total)
            total, length = total + its_total, length + its_length
        pools.append((mean, total, length))
    return np.repeat([mean for mean, _, _ in pools], [length for _, _, length in pools])
