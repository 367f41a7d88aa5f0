"""Apply softmax to a bounded part of the row: its largest logits, or its last keys."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sharpmax.normalisers._normaliser import Normaliser, masked_softmax
from sharpmax.normalisers._parameters import check_whole


class TopK(Normaliser):
    """softmax(e) over the k largest visible logits of the row; all others have weight 0.

    It escapes dispersion by bounding n: the largest weight is at least 1/k at every length. The
    cost is that k is the same for all rows, and that keys outside the k get no gradient. Among
    logits that tie for the last place, `torch.topk` decides.

    Args:
        k: the number of keys, at least 1.

    Example:
        >>> import torch
        >>> TopK(2).weights(torch.tensor([3.0, 1.0, 3.0, 2.0]))
        tensor([0.5000, 0.0000, 0.5000, 0.0000])
    """

    def __init__(self, k: int) -> None:
        super().__init__()
        self.k = check_whole("k", k)

    def weigh(self, logits: Tensor, visible: Tensor) -> Tensor:
        candidates = torch.where(visible, logits, -math.inf)
        largest = candidates.topk(min(self.k, logits.shape[-1]), dim=-1).indices
        chosen = torch.zeros_like(visible).scatter(-1, largest, True)
        return masked_softmax(logits, visible & chosen)


class Local(Normaliser):
    """softmax(e) over the last visible keys of the row, `window` of them.

    It escapes dispersion by bounding n: at most `window` keys share the weight, at every length.
    The cost is that all other keys are invisible.

    Args:
        window: the number of keys, at least 1.

    Example:
        >>> import torch
        >>> Local(2).weights(torch.zeros(3), torch.tensor([True, True, False]))
        tensor([0.5000, 0.5000, 0.0000])
    """

    def __init__(self, window: int) -> None:
        super().__init__()
        self.window = check_whole("window", window)

    def weigh(self, logits: Tensor, visible: Tensor) -> Tensor:
        from_the_end = visible.flip(-1).cumsum(-1).flip(-1)
        return masked_softmax(logits, visible & (from_the_end <= self.window))
