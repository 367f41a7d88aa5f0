"""Put all weight on the largest logit: hard attention."""

from __future__ import annotations

from torch import Tensor

from sharpmax import policies
from sharpmax._softmax import softmax
from sharpmax.normalisers._normaliser import Normaliser, masked_softmax


class Hard(Normaliser):
    """1/m for the m visible logits that tie for the largest, 0 for all others.

    The limit of zero temperature, `sharpmax.policies.Hard`: it escapes dispersion entirely. The
    weights have no gradient, unless the straight-through estimator substitutes that of softmax.

    Args:
        straight_through: use the gradient of softmax(e).

    Example:
        >>> import torch
        >>> Hard().weights(torch.tensor([1.0, 3.0, 3.0]))
        tensor([0.0000, 0.5000, 0.5000])
    """

    def __init__(self, straight_through: bool = False) -> None:
        super().__init__()
        self.straight_through = straight_through

    def weigh(self, logits: Tensor, visible: Tensor) -> Tensor:
        weights: Tensor = softmax(logits.detach(), policies.Hard(), where=visible)
        if self.straight_through:
            soft = masked_softmax(logits, visible)
            weights = weights + (soft - soft.detach())
        return weights
