"""Subtract two attention maps: differential attention."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from sharpmax.normalisers._normaliser import Normaliser, masked_softmax
from sharpmax.normalisers._parameters import check_heads, check_number, check_whole


class Differential(Normaliser):
    """softmax(e) - lambda softmax(e'), of the two maps of heads 2h and 2h + 1.

    It does not escape dispersion: with logits in an interval of width d, both maps are at most
    exp(d)/n, and their difference is at most (1 + lambda) exp(d)/n. It removes what the two maps
    have in common. Rows sum to 1 - lambda, and weights can be negative. It needs twice the queries
    and keys.

    Ye et al., arXiv 2410.05258, who write lambda as a difference of exponentials that a layer
    shares, and rescale the heads afterwards; here lambda itself is learned per head.

    Args:
        heads: number of heads of weights; there are twice as many heads of logits.
        initial: lambda before training. Nothing is random.

    Example:
        >>> import torch
        >>> logits = torch.tensor([[[0.0, 2.0]], [[0.0, 0.0]]]).log1p()
        >>> Differential(heads=1, initial=0.5).weights(logits).detach()
        tensor([[[0.0000, 0.5000]]])
    """

    maps: ClassVar[int] = 2
    normalised = False

    def __init__(self, heads: int, initial: float = 0.8) -> None:
        super().__init__()
        self.heads = check_whole("heads", heads)
        start = check_number("initial", initial)
        self.subtracted = nn.Parameter(torch.full((heads, 1, 1), start))

    def weigh(self, logits: Tensor, visible: Tensor) -> Tensor:
        check_heads("logits", logits, 2 * self.heads)
        maps = masked_softmax(logits, visible)
        kept, common = maps[..., 0::2, :, :], maps[..., 1::2, :, :]
        return kept - self.subtracted * common
