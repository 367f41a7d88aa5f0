"""Distribute the weight from the last key to the first: stick-breaking attention."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from sharpmax.normalisers._normaliser import Normaliser


class StickBreaking(Normaliser):
    """sigmoid(e_i) prod_(j > i) (1 - sigmoid(e_j)), from the last visible key to the first.

    Each key takes a share of what later keys leave, so a row sums to at most one. Earlier keys do
    not change the weight of a key: the last one has weight sigmoid(e) at any n, and nothing
    disperses. The cost is a dependence on order: before m keys with logits of at least -d, a
    weight is at most (1 - sigmoid(-d))^m. So with bounded logits, weights fall exponentially with
    distance, and a maximum at an arbitrary position is not found. Tan et al., arXiv 2410.17980,
    whose rows do not see their own position; here `visible` decides.

    Example:
        >>> import torch
        >>> StickBreaking().weights(torch.zeros(3))
        tensor([0.1250, 0.2500, 0.5000])
    """

    normalised = False

    def weigh(self, logits: Tensor, visible: Tensor) -> Tensor:
        left = torch.where(visible, -F.softplus(logits), 0.0)
        # Moved by one key, so that each sum is over later keys alone and nothing is subtracted.
        later = F.pad(left, (0, 1))[..., 1:].flip(-1).cumsum(-1).flip(-1)
        weights = torch.exp(F.logsigmoid(logits) + later)
        return torch.where(visible, weights, 0.0)
