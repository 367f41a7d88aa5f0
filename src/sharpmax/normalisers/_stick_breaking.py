"""Stick-breaking attention: the nearest key that wants the weight takes it."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from sharpmax.normalisers._normaliser import Normaliser, prepared


class StickBreaking(Normaliser):
    """sigmoid(e_i) prod_(j > i) (1 - sigmoid(e_j)), from the last visible key to the first.

    Each key takes its share of what later keys have left, so that a row sums to at most one. How
    many keys lie before a key does not matter to it: the last one has weight sigmoid(e) at any n,
    and nothing disperses. The price is the order: behind m keys whose logits are at least -d, a
    weight is at most (1 - sigmoid(-d))^m, so bounded logits hide what is far away exponentially,
    and a maximum that may stand anywhere is not found. Tan et al., arXiv 2410.17980, whose rows do
    not see their own position; here `visible` decides.

    Example:
        >>> import torch
        >>> StickBreaking().weights(torch.zeros(3))
        tensor([0.1250, 0.2500, 0.5000])
    """

    normalised = False

    def weights(self, logits: Tensor, visible: Tensor | None = None) -> Tensor:
        values, visible = prepared(logits, visible)
        left = torch.where(visible, -F.softplus(values), 0.0)
        # Moved by one key, so that each sum is over later keys alone and nothing is subtracted.
        later = F.pad(left, (0, 1))[..., 1:].flip(-1).cumsum(-1).flip(-1)
        weights = torch.exp(F.logsigmoid(values) + later)
        return torch.where(visible, weights, 0.0).to(logits.dtype)
