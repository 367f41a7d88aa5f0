"""Apply softmax to a bounded part of the row: its largest logits, or its last keys."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sharpmax.normalisers._normaliser import Normaliser, masked_softmax, prepared
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

    def weights(self, logits: Tensor, visible: Tensor | None = None) -> Tensor:
        values, visible = prepared(logits, visible)
        candidates = torch.where(visible, values, -math.inf)
        largest = candidates.topk(min(self.k, values.shape[-1]), dim=-1).indices
        chosen = torch.zeros_like(visible).scatter(-1, largest, True)
        return masked_softmax(values, visible & chosen).to(logits.dtype)

    def extra_repr(self) -> str:
        return f"k={self.k}"


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

    def weights(self, logits: Tensor, visible: Tensor | None = None) -> Tensor:
        values, visible = prepared(logits, visible)
        from_the_end = visible.flip(-1).cumsum(-1).flip(-1)
        return masked_softmax(values, visible & (from_the_end <= self.window)).to(logits.dtype)

    def extra_repr(self) -> str:
        return f"window={self.window}"
