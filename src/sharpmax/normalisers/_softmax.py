"""Apply softmax at the temperature that a policy gives each row."""

from __future__ import annotations

from torch import Tensor

from sharpmax._statistics import Rows
from sharpmax.normalisers._normaliser import Normaliser, seen
from sharpmax.policies import Policy


class Softmax(Normaliser):
    """softmax(beta e), with the beta that a policy gives each row: `sharpmax.softmax`.

    Without a policy the dispersion theorem applies: with logits in an interval of width d, every
    weight is at most exp(d)/n. With a policy beta grows with the entropy or the length of the row,
    and the row stays sharp if beta grows fast enough. The cost is that beta also multiplies errors
    of the logits.

    Args:
        policy: gives the inverse temperature of each row; None is plain softmax. A parameter with
            one axis has one entry per head.
        detach_temperature: treat beta as a constant in differentiation.

    Example:
        >>> import torch
        >>> from sharpmax.policies import Constant
        >>> Softmax(Constant(2.0)).weights(torch.tensor([0.0, 2.0]).log1p())
        tensor([0.1000, 0.9000])
    """

    def __init__(self, policy: Policy | None = None, detach_temperature: bool = False) -> None:
        super().__init__()
        if policy is not None and not isinstance(policy, Policy):
            raise TypeError(f"policy: expected a sharpmax policy or None, got {policy!r}")
        self.policy = policy
        self.detach_temperature = detach_temperature

    def weights(self, logits: Tensor, visible: Tensor | None = None) -> Tensor:
        if self.policy is None:
            return super().weights(logits, visible)  # the same, without measuring the rows
        rows = Rows(logits, -1, seen(logits, visible))
        beta = self.policy.over_queries().of_rows(rows)
        weights: Tensor = rows.weights(beta.detach() if self.detach_temperature else beta)
        return weights
