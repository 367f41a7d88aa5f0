"""Measure what the figures of the paper show on a trained head: rows of attention, and the fit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import sharpmax
from experiments.max_retrieval.evaluation import Streamed, test_sets, unlabelled_sets
from experiments.max_retrieval.head import Heads
from experiments.max_retrieval.inference import inference_methods, reference_entropy
from experiments.max_retrieval.task import Sets, sample
from sharpmax import policies
from sharpmax._files import machine, read_sealed, versions, write_sealed

__all__ = ["best_inverse_temperature", "load_figures", "measure_figures", "save_figures"]

_KIND = "max-retrieval figures, format 1"
_METHODS = ("softmax", "paper", "exponential")
_SHOWN_SETS, _SHOWN_ITEMS = 32, 16
# First number of the seed of the sets for the fit, which nothing else uses.
_FIT = 1003
_MOST_POINTS = 4000


def measure_figures(
    heads: Heads, sizes: Sequence[int], command: str, items: int = 2**21
) -> dict[str, Any]:
    """Measure rows of attention at growing sizes (Figures 2 and 7) and the fit (Figure 6).

    Args:
        heads: A stack of one head.
        sizes: Numbers of items.
        command: The command to store.
        items: Items per size that the fit looks at.

    Returns:
        Plain data, for `save_figures`.
    """
    head = Streamed(heads)
    calibration = head.logits(unlabelled_sets(16))
    methods = inference_methods(calibration, _METHODS)
    attention: dict[str, list[Any]] = {name: [] for name in _METHODS}
    for n in sizes:
        rows, order = _largest_items(head, n)
        for name, (weigh,) in methods.items():
            weights = weigh(rows, n).gather(-1, order)
            attention[name].append([[float(f"{w:.4g}") for w in row] for row in weights.tolist()])
    return {
        "command": command,
        "seeds": list(heads.seeds),
        "versions": versions(),
        "machine": machine(),
        "attention": {
            "sizes": list(sizes),
            "methods": list(_METHODS),
            "weights": [attention[name] for name in _METHODS],
        },
        "fit": _fit(head, sizes, reference_entropy(calibration), items),
    }


def save_figures(path: str | Path, data: dict[str, Any]) -> Path:
    """Write what `measure_figures` returned."""
    return write_sealed(path, _KIND, data)


def load_figures(path: str | Path) -> dict[str, Any]:
    """Read what `save_figures` wrote.

    Raises:
        DamagedFileError: The file is truncated, was edited, or is another kind of file.
    """
    return read_sealed(path, _KIND)


def best_inverse_temperature(
    logits: NDArray[np.float64], item: NDArray[np.intp], steps: int = 80
) -> NDArray[np.float64]:
    """Find the inverse temperature that gives an item of each row its largest weight.

    The logarithm of its weight, beta e_k - log sum_i exp(beta e_i), is concave in beta. Its
    derivative e_k - E_beta[e] has one zero if e_k is neither the largest logit nor below their
    mean; it is found by bisection in log beta.

    Args:
        logits: Rows, [rows, items].
        item: Index of the item in each row.
        steps: Steps of the bisection.

    Returns:
        beta of each row; infinity if e_k is the largest logit, 0 if it is not above the mean.

    Example:
        >>> row = np.array([[0.0, 0.5, 1.0]])
        >>> best_inverse_temperature(row, np.array([1])).round(6).tolist()
        [0.0]
        >>> best_inverse_temperature(row, np.array([2])).tolist()
        [inf]
    """
    chosen = np.take_along_axis(logits, item[:, None], 1)[:, 0]
    largest = logits.max(1)
    found: NDArray[np.float64] = np.where(chosen == largest, np.inf, 0.0)
    # Few rows of a trained head have a zero, and only those are searched.
    some = np.flatnonzero((chosen < largest) & (chosen > logits.mean(1)))
    rows, target = logits[some], chosen[some]
    centred = rows - largest[some, None]
    low, high = np.full(len(some), -20.0), np.full(len(some), 20.0)
    for _ in range(steps):
        middle = (low + high) / 2
        weights = np.exp(np.exp(middle)[:, None] * centred)
        below = (weights * rows).sum(1) / weights.sum(1) < target
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    found[some] = np.exp((low + high) / 2)
    return found


def _largest_items(head: Streamed, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return logits of a few test sets, and the items with the highest priorities, in order."""
    rows, orders = [], []
    for sets in test_sets(n, _SHOWN_SETS):
        rows.append(head.logits(sets))
        orders.append(np.argsort(-sets.priorities, 1)[:, :_SHOWN_ITEMS])
    return torch.cat(rows), torch.from_numpy(np.concatenate(orders))


def _fit(head: Streamed, sizes: Sequence[int], reference: float, items: int) -> dict[str, Any]:
    """Fit as the paper does: rows whose largest item does not have the largest logit."""
    points: list[tuple[float, float, int]] = []
    for n in sizes:
        drawn = sample(np.random.default_rng((_FIT, n)), max(8, min(4096, items // n)), n)
        for few in range(0, len(drawn.queries), max(1, 2**17 // n)):
            part = slice(few, few + max(1, 2**17 // n))
            sets = Sets(drawn.priorities[part], drawn.classes[part], drawn.queries[part])
            logits = head.logits(sets)
            beta = best_inverse_temperature(logits.double().numpy(), sets.largest)
            entropy = sharpmax.entropy(logits).numpy()
            usable = np.isfinite(beta) & (beta > 0)
            points += zip(
                entropy[usable].tolist(), beta[usable].tolist(), [n] * len(beta), strict=False
            )
    rng = np.random.default_rng(_FIT)
    if len(points) > _MOST_POINTS:
        points = [points[i] for i in sorted(rng.choice(len(points), _MOST_POINTS, replace=False))]
    entropies, betas, ns = (list(column) for column in zip(*points, strict=True))
    refit = policies.Polynomial.fit(entropies, betas)
    return {
        "entropy": [round(value, 5) for value in entropies],
        "inverse_temperature": [float(f"{value:.5g}") for value in betas],
        "n": ns,
        "published": list(policies.Paper.COEFFICIENTS),
        "refit": np.asarray(refit.coefficients).tolist(),
        "reference": reference,
        "fitted_range": [min(entropies), max(entropies)],
    }
