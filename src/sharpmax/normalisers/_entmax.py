"""Give exact zeros to keys far below the largest logit: entmax and sparsemax."""

from __future__ import annotations

from types import ModuleType

import torch
from torch import Tensor

from sharpmax._extras import require
from sharpmax.normalisers._normaliser import Normaliser
from sharpmax.normalisers._parameters import check_number


class Entmax(Normaliser):
    """alpha-entmax: ((alpha - 1) e - tau)_+ ^ (1 / (alpha - 1)), tau such that the row sums to one.

    A key whose logit is 1/(alpha - 1) or more below the largest has weight 0, however many there
    are. So it escapes dispersion as long as few keys lie within that distance. If their number
    grows with n, as in max retrieval, the weight spreads over them. Keys of weight 0 get no
    gradient.

    Needs the package entmax (`sharpmax[entmax]`), whose algorithms it uses: exact for alpha 1.5 and
    2, bisection otherwise. Peters et al., arXiv 1905.05702.

    Args:
        alpha: above 1 (the limit 1 is softmax); 2 is sparsemax.

    Example:
        >>> import torch
        >>> Entmax(alpha=1.5).weights(torch.tensor([0.0, 2.0, 2.0, -torch.inf]))
        tensor([0.0000, 0.5000, 0.5000, 0.0000])
    """

    def __init__(self, alpha: float = 1.5) -> None:
        super().__init__()
        self.alpha = check_number("alpha", alpha, above=1.0)
        self._package()

    def _package(self) -> ModuleType:
        return require("entmax", extra="entmax", what=f"sharpmax.normalisers.{type(self).__name__}")

    def weigh(self, logits: Tensor, visible: Tensor) -> Tensor:
        if logits.shape[-1] == 0:
            return logits
        # What lies twice as far below the maximum as a key with weight can may lie there exactly:
        # it has weight 0 and gradient 0, and no large number enters the sums of the algorithms.
        lowest = torch.finfo(logits.dtype).min
        maximum = torch.where(visible, logits, lowest).amax(-1, keepdim=True).detach()
        floor = -2.0 / (self.alpha - 1.0)
        gap = torch.where(visible, (logits - maximum).clamp(min=floor), floor)
        package = self._package()
        if self.alpha == 1.5:
            weights = package.entmax15(gap, dim=-1)
        elif self.alpha == 2.0:
            weights = package.sparsemax(gap, dim=-1)
        else:
            weights = package.entmax_bisect(gap, alpha=self.alpha, dim=-1)
        return torch.where(visible, weights, 0.0)


class Sparsemax(Entmax):
    """(e - tau)_+, tau such that the row sums to one: the nearest distribution to the logits.

    `Entmax` with alpha = 2: a key that is 1 or more below the largest logit has weight 0. It
    escapes dispersion under the same condition and at the same cost. Martins and Astudillo,
    arXiv 1602.02068.

    Example:
        >>> import torch
        >>> Sparsemax().weights(torch.tensor([0.0, 1.5, 2.0]))
        tensor([0.0000, 0.2500, 0.7500])
    """

    def __init__(self) -> None:
        super().__init__(alpha=2.0)
