"""Check the data that policies are fitted to."""

from __future__ import annotations

from typing import Any

import numpy as np


def check_pairs(entropies: Any, inverse_temperatures: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return entropies and inverse temperatures as arrays, or raise a ValueError."""
    H = np.asarray(entropies, dtype=np.float64)
    beta = np.asarray(inverse_temperatures, dtype=np.float64)
    if H.ndim != 1 or H.shape != beta.shape:
        raise ValueError(
            "entropies, inverse_temperatures: expected one axis of one length, "
            f"got shapes {H.shape} and {beta.shape}"
        )
    if not (np.isfinite(H).all() and (H >= 0).all()):
        raise ValueError("entropies: expected finite entropies of at least 0")
    if not (np.isfinite(beta).all() and (beta > 0).all()):
        raise ValueError("inverse_temperatures: expected finite inverse_temperatures above 0")
    return H, beta
