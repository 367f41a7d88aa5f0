"""Describe what one attention layer gets: a policy, on which heads, and a gain per head."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sharpmax.policies import Identity, Policy

LEAST = 1e-3  # a gain that is nearer to 1 than this counts as no change


@dataclass(frozen=True, eq=False)
class Rule:
    """What one attention layer gets; None leaves it as it is."""

    policy: Policy | None = None
    chosen: Tensor | None = None  # booleans over heads, if the policy cannot be off for some heads
    gain: Tensor | None = None  # one factor per head output, as in SEAL (arXiv 2501.15225)

    @staticmethod
    def make(
        policy: Policy | None,
        *,
        count: int | None = None,
        heads: Collection[int] | None = None,
        gain: Sequence[float] | None = None,
    ) -> Rule:
        """Make the rule for a layer of `count` heads, of which only `heads` get the policy."""
        if isinstance(policy, Identity):
            policy = None
        if policy is not None and count is not None:
            policy.check_heads(count)
        chosen = None
        if heads is not None and policy is not None:
            if count is None:
                raise ValueError("heads: expected None for a layer of an unknown number of heads")
            if wrong := [head for head in heads if not 0 <= head < count]:
                raise ValueError(f"heads: expected numbers from 0 to {count - 1}, got {wrong}")
            mask = np.isin(np.arange(count), list(heads))
            if not mask.any():
                policy = None
            elif not mask.all():
                switched = policy.only_on(mask)
                policy, chosen = switched or policy, None if switched else torch.from_numpy(mask)
        factors = None if gain is None else torch.tensor(list(gain), dtype=torch.float32)
        if factors is not None and count is not None and len(factors) != count:
            raise ValueError(f"gain: expected one factor for each of {count} heads, got {gain}")
        return Rule(policy, chosen, factors)

    @property
    def is_stock(self) -> bool:
        """Whether the layer is left as it is."""
        return self.policy is None and self.gain is None

    def on_chosen(self, output: Tensor, stock: Callable[[], Tensor]) -> Tensor:
        """Return an output on the chosen heads, and what the model itself computes on others."""
        if self.chosen is None:
            return output
        return torch.where(self.chosen.to(output.device)[:, None, None], output, stock())

    def scaled(self, output: Tensor) -> Tensor:
        """Apply the gain to an output: [batch, heads, queries, value width]."""
        return output if self.gain is None else output * self.gain.to(output)[:, None, None]

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
