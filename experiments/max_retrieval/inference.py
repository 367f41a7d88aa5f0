"""Methods that change a trained head at inference only, calibrated without labels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

import sharpmax
from experiments.max_retrieval.evaluation import Weigh
from sharpmax import normalisers, policies
from sharpmax.normalisers import Normaliser

__all__ = ["MAIN", "inference_methods", "reference_entropy"]

MAIN = ("softmax", "paper", "exponential", "hard")
"""Methods tested on every head, in the order of the tables."""

_FIXED = (2, 4, 8, 16, 32, 64)
_TOP = (2, 4, 16)


def inference_methods(
    logits: Tensor, names: Sequence[str] | None = None
) -> Mapping[str, Sequence[Weigh]]:
    """Return ways to turn the logits of a head into weights, by name, calibrated to it.

    Args:
        logits: Logits of the head on unlabelled sets of a size where it works: [sets, items].
        names: Which methods; None is all of them.

    Returns:
        One way per name; for "oracle", one per inverse temperature of a grid, and a set counts as
        correct if one of them is. The oracle uses the label and bounds from above what any rule for
        the temperature can reach on these logits.
    """
    reference = reference_entropy(logits)
    tempered: dict[str, policies.Policy] = {
        "paper": policies.Paper(warn=False),
        "exponential": policies.Exponential(reference),
        "entropy-target": policies.EntropyTarget(reference),
        "fitted": fitted(logits),
        **{f"fixed-{beta}": policies.Constant(beta) for beta in _FIXED},
    }
    of_logits: dict[str, Normaliser] = {
        "softmax": normalisers.Softmax(),
        **{name: normalisers.Softmax(policy) for name, policy in tempered.items()},
        "hard": normalisers.Hard(),
        **{f"top-{k}": normalisers.TopK(k) for k in _TOP},
        "sparsemax": normalisers.Sparsemax(),
        "entmax": normalisers.Entmax(1.5),
    }
    methods: dict[str, Sequence[Weigh]] = {
        **{name: [_OfLogits(normaliser)] for name, normaliser in of_logits.items()},
        "log-length": [_LogLength(logits.shape[-1])],
        "oracle": [_Fixed(beta) for beta in 2.0 ** np.arange(0, 12.5, 0.5)],
    }
    return methods if names is None else {name: methods[name] for name in names}


def reference_entropy(logits: Tensor) -> float:
    """Return the mean entropy of rows in nats, at the size where the head works."""
    return float(sharpmax.entropy(logits).mean())


def fitted(logits: Tensor) -> policies.Monotone:
    """Fit a policy to unlabelled rows, from the temperature that restores a flattened row.

    A row whose logits are multiplied by u < 1 has a higher entropy, like a row of more items, and
    the inverse temperature 1/u restores it. A monotone curve is fitted to such pairs; above their
    entropies it continues with the exponential law.

    Args:
        logits: Rows at a size where the head works: [sets, items].
    """
    flattening = 2.0 ** torch.arange(0, 8.5, 0.25)
    entropies = torch.stack([sharpmax.entropy(logits / beta).mean() for beta in flattening])
    return policies.Monotone.fit(entropies.double().numpy(), flattening.double().numpy(), knots=16)


class _OfLogits:
    """A normaliser that ignores the number of items."""

    def __init__(self, normaliser: Normaliser) -> None:
        self._normaliser = normaliser

    def __call__(self, logits: Tensor, _: int) -> Tensor:
        return self._normaliser.weights(logits)


class _LogLength:
    """softmax(beta e) with the beta of `policies.LogLength` for n items."""

    def __init__(self, train_length: int) -> None:
        self._policy = policies.LogLength(train_length=train_length)

    def __call__(self, logits: Tensor, n: int) -> Tensor:
        beta = max(1.0, math.log(n) / self._policy.unit)
        return torch.softmax(beta * logits, -1)


class _Fixed:
    """softmax(beta e) without statistics, which are not needed."""

    def __init__(self, beta: float) -> None:
        self._beta = beta

    def __call__(self, logits: Tensor, _: int) -> Tensor:
        return torch.softmax(self._beta * logits, -1)
