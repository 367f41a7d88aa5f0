"""What is done to the heads of one layer: a policy, on which heads, and a gain."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sharpmax.policies import (
    Constant,
    EntropyTarget,
    Exponential,
    Identity,
    LogLength,
    Monotone,
    Policy,
    Polynomial,
)

_NEUTRAL: dict[type[Policy], tuple[str, float]] = {
    EntropyTarget: ("target", 1e30),
    Exponential: ("strength", 0.0),
    Constant: ("beta", 1.0),
    LogLength: ("scale", 0.0),
    Polynomial: ("threshold", 1e30),
}
"""The parameter that switches a policy off for a head, and the value at which beta is exactly 1."""

LEAST = 1e-3
"""A factor that is nearer to 1 than this is none."""


@dataclass(frozen=True, eq=False)
class Rule:
    """What is done to the heads of one layer.

    Attributes:
        policy: the temperature; None leaves it alone.
        chosen: booleans over heads, for a policy that cannot itself be told to leave heads alone;
            None stands for all heads.
        gain: factors of the output, over heads, or None.
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
        """A rule for a layer of `count` heads, of which only `heads` get the policy.

        Raises:
            ValueError: for heads, a gain or arrays in the policy that do not fit the layer.
        """
        if isinstance(policy, Identity):
            policy = None
        if policy is not None:
            _check_arrays(policy, count)
        chosen = None
        if heads is not None and policy is not None:
            policy, chosen = _on_heads(policy, heads, count)
        factors = None if gain is None else torch.tensor(list(gain), dtype=torch.float32)
        if factors is not None and count is not None and len(factors) != count:
            raise ValueError(f"gain: expected a factor for each of {count} heads, got {list(gain)}")  # type: ignore[arg-type]
        return Rule(policy, chosen, factors)

    @property
    def is_stock(self) -> bool:
        """Whether the layer is left as it is."""
        return self.policy is None and self.gain is None

    def part(self, start: int, stop: int) -> Rule:
        """The rule of the heads from `start` to `stop`, as a rank has them."""
        policy = self.policy
        if policy is not None:
            names = [name for name, value in _over_heads(policy).items() if len(value) > 1]
            policy = replace(policy, **{name: getattr(policy, name)[start:stop] for name in names})
        chosen, gain = (None if x is None else x[start:stop] for x in (self.chosen, self.gain))
        return Rule(policy, chosen, gain)


def changed(policy: Policy | None, gain: Sequence[float] | None, count: int) -> int:
    """How many of the heads of a layer are not left alone."""
    found = np.zeros(count, dtype=bool)
    if gain is not None:
        found |= np.abs(np.asarray(gain) - 1) > LEAST
    if isinstance(policy, Identity | None):
        return int(found.sum())
    if type(policy) not in _NEUTRAL:
        return count
    name, neutral = _NEUTRAL[type(policy)]
    # As plain numbers: what learned is a tensor.
    away = np.asarray(torch.as_tensor(getattr(policy, name)).detach().cpu()) - neutral
    found |= np.abs(away) > (LEAST if isinstance(policy, Constant) else 0)
    return int(found.sum())


def _over_heads(policy: Policy) -> dict[str, Any]:
    """The parameters of a policy that have an entry a head, along their first axis."""
    arrays = {
        entry.name: getattr(policy, entry.name)
        for entry in fields(policy)
        if "bounds" in entry.metadata and np.ndim(getattr(policy, entry.name)) > 0
    }
    if isinstance(policy, Polynomial):
        del arrays["coefficients"]
    if isinstance(policy, Monotone):
        # The last axis is that of the knots.
        arrays = {name: value for name, value in arrays.items() if value.ndim > 1}
    return arrays


def _check_arrays(policy: Policy, count: int | None) -> None:
    for name, value in _over_heads(policy).items():
        if count is not None and len(value) not in (1, count):
            raise ValueError(
                f"{type(policy).__name__}.{name}: expected a number or an entry for each of the "
                f"{count} query heads of the layer, got {len(value)} entries"
            )


def _on_heads(
    policy: Policy, heads: Collection[int], count: int | None
) -> tuple[Policy | None, Tensor | None]:
    """The policy for some heads: neutral parameters for the others, or booleans beside it."""
    if count is None:
        raise ValueError("heads: the number of heads of a layer is not known: expected None")
    wrong = [head for head in heads if not 0 <= head < count]
    if wrong:
        raise ValueError(f"heads: expected numbers from 0 to {count - 1}, got {wrong}")
    if not heads:
        return None, None
    chosen = np.isin(np.arange(count), list(heads))
    if chosen.all():
        return policy, None
    if type(policy) not in _NEUTRAL:
        return policy, torch.from_numpy(chosen)
    name, neutral = _NEUTRAL[type(policy)]
    value = getattr(policy, name)
    if isinstance(value, Tensor):
        switched: Any = torch.where(torch.from_numpy(chosen).to(value.device), value, neutral)
    else:
        switched = np.where(chosen, value, neutral)
    return replace(policy, **{name: switched}), None
