"""Make policies pytrees: their parameters are leaves, everything else is structure.

So a policy can be an argument of a jitted function, its parameters can be traced, and `jax.grad`
by a policy gives a policy of gradients, which optimisers such as those of optax take.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import jax

from sharpmax.policies import Policy
from sharpmax.policies._policy import definition_listeners


def register(kind: type[Policy]) -> None:
    """Register one kind of policy."""

    def with_keys(policy: Policy) -> tuple[list[tuple[Any, Any]], tuple[tuple[str, Any], ...]]:
        leaves, structure = [], []
        for entry in fields(policy):
            value = getattr(policy, entry.name)
            if "bounds" in entry.metadata:
                leaves.append((jax.tree_util.GetAttrKey(entry.name), value))
            else:
                structure.append((entry.name, value))
        return leaves, tuple(structure)

    def rebuild(structure: tuple[tuple[str, Any], ...], leaves: Any) -> Policy:
        # Unchecked: leaves may be tracers, gradients or placeholders.
        policy = object.__new__(kind)
        names = [entry.name for entry in fields(kind) if "bounds" in entry.metadata]
        for name, value in [*zip(names, leaves, strict=True), *structure]:
            object.__setattr__(policy, name, value)
        return policy

    jax.tree_util.register_pytree_with_keys(kind, with_keys, rebuild)


def _register_below(kind: Any) -> None:
    for derived in kind.__subclasses__():
        register(derived)
        _register_below(derived)


_register_below(Policy)
definition_listeners.append(register)  # those that are yet to be defined
