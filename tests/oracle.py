"""The definitions, as plainly as they can be written, in double precision."""

from __future__ import annotations

import numpy as np


def weights(logits: np.ndarray, beta: float = 1.0) -> np.ndarray:
    """softmax(beta e) of one row of finite logits or -inf."""
    visible = logits > -np.inf
    result = np.zeros(len(logits))
    if visible.any():
        exponent = beta * (logits[visible] - logits[visible].max())
        result[visible] = np.exp(exponent) / np.exp(exponent).sum()
    return result


def entropy(logits: np.ndarray, beta: float = 1.0) -> float:
    """Entropy of softmax(beta e) of one row, in nats."""
    p = weights(logits, beta)
    p = p[p > 0]
    return float(-(p * np.log(p)).sum())


def figure_4(logits: np.ndarray) -> tuple[float, np.ndarray]:
    """The paper's function: (beta, weights) of one row."""
    p = weights(logits)
    entropy_of_row = -(p * np.log(p + 1e-9)).sum()
    polynomial = np.polyval([-0.037, 0.481, -2.3, 4.917, -1.791], entropy_of_row)
    beta = max(polynomial, 1.0) if entropy_of_row > 0.5 else 1.0
    return beta, weights(logits, beta)
