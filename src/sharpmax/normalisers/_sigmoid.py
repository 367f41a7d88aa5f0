"""Weigh every key by itself: sigmoid attention."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sharpmax.normalisers._normaliser import Normaliser, visible_count
from sharpmax.normalisers._parameters import check_heads, check_whole


class Sigmoid(Normaliser):
    """sigmoid(e - log n + b), without normalisation.

    Keys do not compete, so the dispersion theorem, which is about softmax, does not apply. But the
    published form subtracts log n to keep the size of outputs, so a key of logit e has a weight of
    at most exp(e + b)/n: with bounded logits, weights vanish with n as those of softmax do. The sum
    of a row can be anything up to n. Without competition, no weight shows that its key is the
    largest of the row. Ramapuram et al., arXiv 2409.04431.

    Args:
        heads: learn a bias b per head, initially 0; None means b = 0.

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

    def weigh(self, logits: Tensor, visible: Tensor) -> Tensor:
        values = logits - visible_count(visible, logits).log()
        if self.heads is not None and self.bias is not None:
            check_heads("logits", logits, self.heads)
            values = values + self.bias
        return torch.where(visible, torch.sigmoid(values), 0.0)
