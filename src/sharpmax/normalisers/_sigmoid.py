"""Sigmoid attention: every key is weighed by itself."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sharpmax.normalisers._normaliser import Normaliser, prepared, visible_count
from sharpmax.normalisers._parameters import check_heads, check_whole


class Sigmoid(Normaliser):
    """sigmoid(e - log n + b), which does not normalise.

    Keys do not compete, so the dispersion theorem, which is about softmax, does not hold of it. But
    the published form subtracts log n, so that outputs keep their size, and with it a key of logit
    e has a weight of at most exp(e + b)/n: bounded logits fade with n as those of softmax do, while
    the sum of a row may be anything up to n. And without competition, to be the largest means
    nothing: a key has to know by itself that it is. Ramapuram et al., arXiv 2409.04431.

    Args:
        heads: with it a bias b is learned for each head, initially 0; without, b is 0.

    Example:
        >>> import torch
        >>> Sigmoid().weights(torch.tensor([0.0, 0.0, 0.0]))
        tensor([0.2500, 0.2500, 0.2500])
    """

    normalised = False

    def __init__(self, heads: int | None = None) -> None:
        super().__init__()
        self.heads = heads
        self.bias: nn.Parameter | None = None
        if heads is not None:
            self.bias = nn.Parameter(torch.zeros(check_whole("heads", heads), 1, 1))

    def weights(self, logits: Tensor, visible: Tensor | None = None) -> Tensor:
        values, visible = prepared(logits, visible)
        values = values - visible_count(visible).to(values.dtype).log()
        if self.heads is not None and self.bias is not None:
            check_heads("logits", logits, self.heads)
            values = values + self.bias
        return torch.where(visible, torch.sigmoid(values), 0.0).to(logits.dtype)

    def extra_repr(self) -> str:
        return f"heads={self.heads}"
