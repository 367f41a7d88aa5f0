"""Adaptive scalable entmax: a scale from the length and the query."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sharpmax.normalisers._entmax import Entmax
from sharpmax.normalisers._normaliser import promoted, seen, visible_count
from sharpmax.normalisers._parameters import check_heads, check_number, check_whole, mapped


class ASEntmax(Entmax):
    """alpha-entmax(c e), c = delta + beta (log(1 + n))^gamma, beta and gamma from the query.

    beta = softplus(q.u), gamma = reach tanh(q.v), with u and v learned per head (adaptive
    scalable entmax, arXiv 2506.16640). A key that is 1/(c (alpha - 1)) or more below the largest
    logit has weight 0. With gamma > 0 that distance shrinks like a power of log n, so it escapes
    dispersion if competitors crowd no faster than that. The cost is that of `Entmax`.

    As in the authors' code, the logarithm is of n + 1, so that a row with one key is no
    exception. They compute beta and gamma from the input of the layer; here they come from the
    query.

    Args:
        heads: number of heads.
        width: of the queries.
        alpha: as in `Entmax`.
        delta: the part of the scale that does not depend on the length.
        reach: the bound of gamma.

    u and v start at zero, so that c = delta + log 2 at every length before training.

    `weights` takes logits that are scaled already; call the module with query and key.

    Example:
        >>> import torch
        >>> query, key = torch.ones(1, 1, 1, 2), torch.eye(2)[None, None]
        >>> ASEntmax(heads=1, width=2)(query, key, scale=1.0).detach()
        tensor([[[[0.5000, 0.5000]]]])
    """

    def __init__(
        self, heads: int, width: int, alpha: float = 1.5, delta: float = 1.0, reach: float = 2.0
    ) -> None:
        super().__init__(alpha)
        self.heads, self.width = check_whole("heads", heads), check_whole("width", width)
        self.delta, self.reach = check_number("delta", delta), check_number("reach", reach, 0.0)
        self.to_beta = nn.Parameter(torch.zeros(heads, width, 1))
        self.to_gamma = nn.Parameter(torch.zeros(heads, width, 1))

    def forward(
        self, query: Tensor, key: Tensor, *, scale: float, visible: Tensor | None = None
    ) -> Tensor:
        check_heads("query", query, self.heads, self.width)
        logits, values = self.logits(query, key, scale), promoted(query)
        beta = F.softplus(mapped(values, self.to_beta))
        gamma = self.reach * torch.tanh(mapped(values, self.to_gamma))
        length = visible_count(seen(logits, visible), values).log1p()
        return self.weights((self.delta + beta * length**gamma) * logits, visible).to(query.dtype)
