"""Describe what one attention layer gets: a policy, on which heads, and a gain per head."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sharpmax.policies import Identity, Policy

LEAST = 1e-3
"""A gain that is nearer to 1 than this counts as no change."""


@dataclass(frozen=True, eq=False)
class Rule:
    """What one attention layer gets.

    The gain is one scalar per head output, as in SEAL (arXiv 2501.15225).

    Attributes:
        policy: the temperature; None leaves it alone.
        chosen: booleans over heads, for a policy that cannot be switched off per head; None means
            all heads.
        gain: factors of the output, one per head, or None.
    """

    policy: Policy | None = None
    chosen: Tensor | None = None
    gain: Tensor | None = None

    @staticmethod
    def make(
        policy: Policy | None,
        *,
        count: int | None = None,
        heads: Collection[int] | None = None,
        gain: Sequence[float] | None = None,
    ) -> Rule:
        """Make the rule for a layer of `count` heads, of which only `heads` get the policy.

        Raises:
            ValueError: for heads, a gain or parameters per head that do not fit the layer.
        """
        if isinstance(policy, Identity):
            policy = None
        if policy is not None and count is not None:
            policy.check_heads(count)
        chosen = None
        if heads is not None and policy is not None:
            policy, chosen = _on_heads(policy, heads, count)
        factors = None if gain is None else torch.tensor(list(gain), dtype=torch.float32)
        if factors is not None and count is not None and len(factors) != count:
            raise ValueError(f"gain: expected one factor for each of {count} heads, got {gain}")
        return Rule(policy, chosen, factors)

    @property
    def is_stock(self) -> bool:
        """Whether the layer is left as it is."""
        return self.policy is None and self.gain is None

    def between(self, start: int, stop: int) -> Rule:
        """Return the rule of the heads from `start` to `stop`, as one rank holds them."""
        policy = None if self.policy is None else self.policy.take_heads(slice(start, stop))
        chosen, gain = (None if x is None else x[start:stop] for x in (self.chosen, self.gain))
        return Rule(policy, chosen, gain)


def changed(policy: Policy | None, gain: Sequence[float] | None, count: int) -> int:
    """Count the heads of a layer that a policy or a gain changes."""
    found = np.zeros(count, dtype=bool)
    if gain is not None:
        found |= np.abs(np.asarray(gain) - 1) > LEAST
    if policy is not None:
        found |= policy.changes(count)
    return int(found.sum())


def _on_heads(
    policy: Policy, heads: Collection[int], count: int | None
) -> tuple[Policy | None, Tensor | None]:
    """Return the policy with other heads switched off, or unchanged with a mask of heads."""
    if count is None:
        raise ValueError("heads: expected None for a layer whose number of heads is unknown")
    wrong = [head for head in heads if not 0 <= head < count]
    if wrong:
        raise ValueError(f"heads: expected numbers from 0 to {count - 1}, got {wrong}")
    if not heads:
        return None, None
    chosen = np.isin(np.arange(count), list(heads))
    if chosen.all():
        return policy, None
    switched = policy.only_on(chosen)
    return (policy, torch.from_numpy(chosen)) if switched is None else (switched, None)
