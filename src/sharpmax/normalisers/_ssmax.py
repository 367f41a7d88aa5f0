"""Scale logits with the logarithm of the length: scalable softmax."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from sharpmax.normalisers._normaliser import Normaliser, masked_softmax, visible_count
from sharpmax.normalisers._parameters import check_heads, check_number, check_whole


class SSMax(Normaliser):
    """softmax(s log(n) e), s learned per head (SSMax, arXiv 2501.19399).

    A logit that leads by a gap g keeps its weight at every n if s g > 1, because
    n exp(-s g log n) = n^(1 - s g). So it escapes dispersion if the gap does not shrink with n. If
    competitors crowd as n grows (in max retrieval the gap shrinks like 1/n), log n is too slow. It
    sharpens every row with its length, useful or not.

    Args:
        heads: number of heads.
        initial: s before training, the same for all heads; e.g. 1/log(N), so that the scale is 1
            at the training length N, or 1, so that it is log n. Nothing is random.

    Example:
        >>> import math, torch
        >>> normaliser = SSMax(heads=1, initial=1 / math.log(2))
        >>> normaliser.weights(torch.tensor([[[0.0, math.log(3.0)]]])).detach()
        tensor([[[0.2500, 0.7500]]])
    """

    def __init__(self, heads: int, initial: float = 1.0) -> None:
        super().__init__()
        self.heads = check_whole("heads", heads)
        self.scale = nn.Parameter(torch.full((heads, 1, 1), check_number("initial", initial)))

    def weigh(self, logits: Tensor, visible: Tensor) -> Tensor:
        check_heads("logits", logits, self.heads)
        length = visible_count(visible, logits).log()
        return masked_softmax(self.scale * length * logits, visible)


class LogLength(Normaliser):
    """softmax(e log n / log N): sharper with the logarithm of the length, nothing learned.

    This is `SSMax` (arXiv 2501.19399) with s = 1/log N in every head, where N is the training
    length. It escapes dispersion if the largest logit leads by more than log N at every n. Unlike
    `sharpmax.policies.LogLength` it flattens rows shorter than N.

    Args:
        train_length: N, above 1.

    Example:
        >>> import math, torch
        >>> LogLength(train_length=2).weights(torch.tensor([0.0, 0.0, 0.0, math.log(2.0)]))
        tensor([0.1429, 0.1429, 0.1429, 0.5714])
    """

    def __init__(self, train_length: float) -> None:
        super().__init__()
        self.train_length = check_number("train_length", train_length, above=1.0)

    def weigh(self, logits: Tensor, visible: Tensor) -> Tensor:
        scale = visible_count(visible, logits).log() / math.log(self.train_length)
        return masked_softmax(scale * logits, visible)
