"""Let later keys mask earlier ones: selective attention."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from sharpmax.normalisers._normaliser import Normaliser, promoted, seen
from sharpmax.normalisers._parameters import Generators, check_heads, check_whole, drawn, mapped

BLOCK = 256
"""How many keys select at a time."""


class Selective(Normaliser):
    """softmax(e - F), F_j = sum over visible i > j of relu(a(k_i).b(k_j)/sqrt(rank)).

    Later keys mask earlier ones, with projections a and b of the keys, learned per head. The first
    visible key is never masked. F is a sum over keys and grows with n, so the spread of e - F is
    not bounded and the theorem does not hold: it escapes dispersion if all but a few keys are
    masked by about log n in sum. Time is quadratic in the keys even for one query, and the result
    depends on their order.

    After Leviathan et al., arXiv 2410.02703, where the logits of one head serve as scores for
    all heads and act on later positions only. Here every head has its own scores, and a row counts
    the selections of all keys that it sees, with and without a cache.

    Keys select in blocks, so that one query needs memory that is linear in the number of keys.
    `weights` takes logits from which F is subtracted already; call the module with query and key.

    Args:
        heads: number of heads.
        width: of the keys.
        rank: width of the projections.
        generator: source of their initial values: one for all heads, drawn one after the other,
            or one per head; None is PyTorch's own. For keys of variance 1 the initial scores are
            about 0.1.

    Example:
        >>> import torch
        >>> query, key = torch.randn(2, 1, 2, 5, 8)
        >>> normaliser = Selective(heads=2, width=8, generator=torch.Generator().manual_seed(0))
        >>> normaliser(query, key, scale=1.0).shape
        torch.Size([1, 2, 5, 5])
    """

    def __init__(
        self, heads: int, width: int, rank: int = 16, generator: Generators = None
    ) -> None:
        super().__init__()
        self.heads, self.width = check_whole("heads", heads), check_whole("width", width)
        self.rank = check_whole("rank", rank)
        start = drawn(torch.randn, heads, (2, width, rank), generator) * math.sqrt(0.1 / width)
        self.selecting = nn.Parameter(start[:, 0].clone())
        self.selected = nn.Parameter(start[:, 1].clone())

    def forward(
        self, query: Tensor, key: Tensor, *, scale: float, visible: Tensor | None = None
    ) -> Tensor:
        check_heads("key", key, self.heads, self.width)
        logits = self.logits(query, key, scale)
        visible = seen(logits, visible)
        masked = logits - self.masking(promoted(key), visible)
        return self.weights(masked, visible).to(query.dtype)

    def masking(self, key: Tensor, visible: Tensor) -> Tensor:
        """F of rows that see `visible`, [batch, heads, queries, keys]."""
        selecting = mapped(key, self.selecting) / math.sqrt(self.rank)
        selected = mapped(key, self.selected)
        total = torch.zeros(visible.shape, dtype=key.dtype, device=key.device)
        for start in range(0, key.shape[-2], BLOCK):
            block = slice(start, start + BLOCK)
            arguments = (selecting[..., block, :], selected, visible[..., block], start)
            if torch.is_grad_enabled() and key.shape[-2] > BLOCK:
                # Otherwise every block would be kept for the backward pass.
                total = total + checkpoint(_by_block, *arguments, use_reentrant=False)
            else:
                total = total + _by_block(*arguments)
        first = visible & (visible.cumsum(-1) == 1)
        return total.masked_fill(first, 0.0)


def _by_block(selecting: Tensor, selected: Tensor, visible: Tensor, start: int) -> Tensor:
    """What the keys from `start` on select, summed over those that a row sees."""
    scores = torch.relu(selecting @ selected.mT).tril(start - 1)
    return visible.to(scores.dtype) @ scores
