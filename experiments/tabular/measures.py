"""Measures of predictions: accuracy, AUC, and log-loss with and without an output temperature."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax
from scipy.stats import rankdata

__all__ = ["MEASURES", "area_under_curve", "calibrated_loss", "log_loss", "measure"]

MEASURES = {"accuracy": 1, "auc": 1, "loss": -1, "calibrated": -1}
"""The measures, and whether more (1) or less (-1) is better."""

Array = np.ndarray[Any, Any]


def measure(logits: Array, classes: Array) -> dict[str, float]:
    """Measure logits [rows, classes] against the true classes.

    Returns:
        accuracy; auc, the mean over classes of one against the rest; loss, the mean of -log p in
        nats; calibrated, that loss after a fitted output temperature.

    Example:
        >>> import numpy as np
        >>> found = measure(
        ...     np.array([[2.0, 0.0], [0.0, 2.0], [1.0, 0.0], [0.5, 1.0]]), [0, 1, 0, 1]
        ... )
        >>> found["accuracy"], found["auc"]
        (1.0, 1.0)
    """
    logits, classes = np.asarray(logits, dtype=np.float64), np.asarray(classes)
    return {
        "accuracy": float((logits.argmax(1) == classes).mean()),
        "auc": area_under_curve(classes, np.exp(log_softmax(logits, axis=1))),
        "loss": log_loss(logits, classes),
        "calibrated": calibrated_loss(logits, classes),
    }


def area_under_curve(classes: Array, scores: Array) -> float:
    """Return the mean over classes of the area under the ROC curve, one class against the rest.

    Classes that no row has, or that all rows have, do not count.

    Example:
        >>> import numpy as np
        >>> area_under_curve(np.array([0, 0, 1]), np.array([[0.9, 0.1], [0.4, 0.6], [0.5, 0.5]]))
        0.5
    """
    areas = []
    for column in range(scores.shape[1]):
        own = classes == column
        count, others = int(own.sum()), int((~own).sum())
        if count and others:
            ranks = rankdata(scores[:, column])
            areas.append((ranks[own].sum() - count * (count + 1) / 2) / (count * others))
    return float(np.mean(areas))


def log_loss(logits: Array, classes: Array) -> float:
    """Return the mean of -log p of the true class, in nats."""
    chosen = log_softmax(logits, axis=1)[np.arange(len(classes)), classes]
    return float(-chosen.mean())


def calibrated_loss(logits: Array, classes: Array) -> float:
    """Return the log-loss after one output temperature, fitted on the other half of the rows.

    Each half of the rows is scored at the temperature that is best on the other half. This
    separates what a method knows from how confident its probabilities are.
    """
    halves = np.arange(len(classes)) % 2
    losses = []
    for half in (0, 1):
        fit, score = halves != half, halves == half
        found = minimize_scalar(
            lambda t, fit=fit: log_loss(logits[fit] * np.exp(t), classes[fit]),
            bounds=(-3.0, 3.0),
            method="bounded",
        )
        losses.append(log_loss(logits[score] * np.exp(found.x), classes[score]) * score.sum())
    return float(sum(losses) / len(classes))
