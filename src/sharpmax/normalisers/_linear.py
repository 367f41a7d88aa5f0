"""Write out the weights of linear attention."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sharpmax.normalisers._normaliser import Normaliser, promoted
from sharpmax.normalisers._parameters import check_heads, check_whole


class Linear(Normaliser):
    """g scale phi(q).phi(k), phi(x) = elu(x) + 1, or the same divided by its sum over the row.

    Without normalisation a key has the same weight at every length, so nothing disperses. But the
    output grows with n, and keys do not compete, so the largest is hard to single out. With it
    (Katharopoulos et al., arXiv 2006.16236, where scale and g cancel) it disperses as softmax does:
    phi is positive and bounded on a bounded set of keys, so that no weight is above c/n.

    The weights are written out for comparison, although linear attention is meant to avoid that.
    `weights` takes the products of phi(q) and phi(k); call the module with query and key.

    Args:
        heads: learn a gain g per head, initially 1; None means g = 1. Not with `normalise`, where
            a gain would cancel.
        normalise: divide by the sum of the row.

    Example:
        >>> import torch
        >>> query, key = torch.zeros(1, 1, 1, 2), torch.tensor([[[[0.0, 0.0], [1.0, 1.0]]]])
        >>> Linear()(query, key, scale=0.5)
        tensor([[[[1., 2.]]]])
        >>> Linear(normalise=True)(query, key, scale=0.5)
        tensor([[[[0.3333, 0.6667]]]])
    """

    def __init__(self, heads: int | None = None, normalise: bool = False) -> None:
        super().__init__()
        if normalise and heads is not None:
            raise ValueError(f"heads: expected None with normalise, got {heads!r}")
        self.normalise = self.normalised = normalise
        self.heads = heads
        self.gain: nn.Parameter | None = None
        if heads is not None:
            self.gain = nn.Parameter(torch.ones(check_whole("heads", heads), 1, 1))

    def forward(
        self, query: Tensor, key: Tensor, *, scale: float, visible: Tensor | None = None
    ) -> Tensor:
        products = self.logits(F.elu(promoted(query)) + 1, F.elu(promoted(key)) + 1, scale)
        return self.weights(products, visible).to(query.dtype)

    def weigh(self, logits: Tensor, visible: Tensor) -> Tensor:
        if self.normalised:
            total = logits.sum(-1, keepdim=True)
            return logits / torch.where(total == 0, 1.0, total)
        if self.heads is not None and self.gain is not None:
            check_heads("logits", logits, self.heads)
            logits = self.gain * logits
        return logits
