"""Learn the parameters of a policy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sharpmax._arrays import Array, namespace
from sharpmax._statistics import RowStatistics
from sharpmax.policies import EntropyRange, KernelForm, Policy, Tempered

_STRICTLY = 1e-6
"""How far a parameter stays from a bound that it must not reach."""


class LearnedPolicy(nn.Module, Policy, register=False):
    """A policy whose parameters are learned.

    It is a module: its parameters appear in `parameters()` and `state_dict()` under the names of
    the policy's parameters, and move with `.to(device)`. It is also a policy: pass it to
    `sharpmax.attention`, `sharpmax.nn.SharpAttention` or `sharpmax.sharpen`.

    The policy stays within the bounds of its parameters: a value beyond a bound acts as if it were
    at the bound, and still gets a gradient, so that it can come back. `project_` moves such values
    to the bound; call it after each step of the optimizer. A policy with further conditions, such
    as increasing knots, checks them in `freeze`.

    Args:
        policy: the policy to start from.
        learn: the names of the parameters to learn; the others stay as they are.
        heads: learn one entry per head for so many heads. By default a parameter keeps its shape.

    Raises:
        TypeError, ValueError: naming the argument, what was expected and what came.

    Example:
        >>> import torch, sharpmax
        >>> from sharpmax.nn import LearnedPolicy
        >>> from sharpmax.policies import Exponential
        >>> policy = LearnedPolicy(Exponential(1.0, strength=0.0), learn=["strength"], heads=2)
        >>> query, key, value = torch.randn(3, 1, 2, 8, 16).unbind()
        >>> loss = sharpmax.attention(query, key, value, policy=policy).square().sum()
        >>> loss.backward()
        >>> policy.strength.grad.shape
        torch.Size([2])
        >>> policy.freeze()
        Exponential(reference=1.0, strength=array([0., 0.]))
    """

    def __init__(self, policy: Policy, learn: Sequence[str], heads: int | None = None) -> None:
        super().__init__()
        if isinstance(policy, nn.Module) or not isinstance(policy, Policy):
            raise TypeError(f"policy: expected a policy to start from, got {policy!r}")
        bounds = {e.name: e.metadata["bounds"] for e in fields(policy) if "bounds" in e.metadata}
        wrong = [name for name in learn if name not in bounds]
        if wrong or isinstance(learn, str) or not learn:
            raise ValueError(f"learn: expected names among {sorted(bounds)}, got {learn!r}")
        own = {e.name: e.metadata["axes"] for e in fields(policy) if e.name in bounds}
        self._start = policy
        self._lowest: dict[str, float] = {}
        self.needs_logits = policy.needs_logits  # type: ignore[misc]
        self.neutral = policy.neutral  # type: ignore[misc]
        tensors = namespace(torch.empty(0))
        for name in learn:
            value = tensors.asarray(getattr(policy, name)).to(torch.get_default_dtype())
            if heads is not None and value.ndim == own[name]:
                value = value.expand(heads, *value.shape)
            self.register_parameter(name, nn.Parameter(value.detach().clone()))
            above, at_least = bounds[name]
            lowest = -math.inf if at_least is None else at_least
            self._lowest[name] = lowest if above is None else max(lowest, above + _STRICTLY)
        if heads is not None:
            self.check_heads(heads)

    def current(self) -> Policy:
        """Return the policy with the present parameters, through which gradients flow."""
        # The value is clamped, the gradient is not.
        values = {
            name: x + (x.clamp(min=self._lowest[name]) - x).detach() for name, x in self._learned()
        }
        return self._start._changed(values)

    @torch.no_grad()
    def project_(self) -> None:
        """Move parameters that are beyond a bound to the bound, in place."""
        for name, x in self._learned():
            x.clamp_(min=self._lowest[name])

    def freeze(self) -> Policy:
        """Return a policy with the learned numbers, apart from this module.

        Raises:
            ValueError: for numbers that violate a condition of the policy.
        """
        values = {
            name: x.detach().clamp(min=self._lowest[name]).double().cpu().numpy()
            for name, x in self._learned()
        }
        return replace(self._start, **values)

    def _learned(self) -> list[tuple[str, Tensor]]:
        return [(name, getattr(self, name)) for name in self._lowest]

    def inverse_temperature(
        self, statistics: RowStatistics, tempered: Tempered | None = None
    ) -> Array:
        return self.current().of_statistics(statistics, tempered)

    def kernel_form(self) -> KernelForm | None:
        return self.current().kernel_form()

    @property
    def entropy_range(self) -> EntropyRange:
        return self.freeze().entropy_range

    def check_statistics(self, statistics: RowStatistics) -> None:
        self._start.check_statistics(statistics)

    def per_head(self) -> dict[str, Array]:
        return self.current().per_head()

    def check_heads(self, count: int) -> None:
        self.current().check_heads(count)

    def over_queries(self) -> Policy:  # type: ignore[override]
        return self.current().over_queries()

    def take_heads(self, heads: slice | Sequence[int]) -> Policy:  # type: ignore[override]
        raise NotImplementedError(
            "LearnedPolicy: heads cannot be split while they are learned; use freeze() first"
        )

    def of_head(self, head: int) -> Policy:  # type: ignore[override]
        return self.freeze().of_head(head)

    def only_on(self, chosen: Array) -> Policy | None:
        return None

    def changes(self, count: int) -> np.ndarray[Any, Any]:
        return np.full(count, True)

    def flattens(self, count: int) -> np.ndarray[Any, Any]:
        return self.freeze().flattens(count)

    def to_dict(self) -> dict[str, Any]:
        """Return the frozen policy as plain data."""
        return self.freeze().to_dict()

    def extra_repr(self) -> str:
        return f"{self.freeze()!r}, learn={list(self._lowest)}"

    __eq__ = object.__eq__
    __hash__ = object.__hash__
