"""Apply softmax to keys after a layer with a step function."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from sharpmax.normalisers._normaliser import Normaliser, promoted
from sharpmax.normalisers._parameters import Generators, check_heads, check_whole, drawn, mapped


class Discontinuous(Normaliser):
    """softmax(scale q.(k + W' step(W k + b))), with one layer per head.

    The theorem assumes continuous layers, to conclude that logits are bounded at every length. A
    step breaks the assumption: keys that are arbitrarily close can differ in logit. It does not
    break the conclusion: a layer of finite width takes finitely many values, logits stay in an
    interval of width d, and every weight is at most exp(d)/n. So it does not escape dispersion. It
    can open a gap of fixed size between keys that crowd. The cost is a surrogate gradient: that of
    the sigmoid, passed through the step.

    Args:
        heads: number of heads.
        width: of the keys.
        hidden: width of the layer.
        generator: source of the initial values, which are uniform as in `torch.nn.Linear`: one for
            all heads, drawn one after the other, or one per head; None is PyTorch's own.

    Example:
        >>> import torch
        >>> query, key = torch.randn(2, 1, 2, 5, 8)
        >>> layer = Discontinuous(heads=2, width=8, generator=torch.Generator().manual_seed(0))
        >>> layer(query, key, scale=1.0).sum(-1).detach()[0, 0]
        tensor([1.0000, 1.0000, 1.0000, 1.0000, 1.0000])
    """

    def __init__(
        self, heads: int, width: int, hidden: int = 128, generator: Generators = None
    ) -> None:
        super().__init__()
        self.heads, self.width = check_whole("heads", heads), check_whole("width", width)
        self.hidden = check_whole("hidden", hidden)

        # No bias after the step: it would be the same for all keys and leave the weights unchanged.
        start = 2.0 * drawn(torch.rand, heads, (2 * width + 1, hidden), generator) - 1.0
        inner, bias, outer = start.split((width, 1, width), dim=1)
        self.inner = nn.Parameter(inner / math.sqrt(width))
        self.bias = nn.Parameter(bias / math.sqrt(width))
        self.outer = nn.Parameter(outer.mT / math.sqrt(hidden))

    def logits(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        check_heads("key", key, self.heads, self.width)
        values = promoted(key)
        before = mapped(values, self.inner) + self.bias.to(values.dtype)
        slope = torch.sigmoid(before)
        step = (before > 0).to(slope.dtype) + (slope - slope.detach())
        return super().logits(query, values + mapped(step, self.outer), scale)
