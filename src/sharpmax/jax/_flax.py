"""Bind a policy into the attention function that Flax's modules call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from sharpmax.jax._api import attention
from sharpmax.jax._problem import Array
from sharpmax.policies import Policy


def flax_attention_fn(policy: Policy | None = None, **options: Any) -> Callable[..., Array]:
    """Make the `attention_fn` of Flax's `MultiHeadAttention`, in nnx and in linen.

    Masks of Flax, booleans or numbers that are 0 where a key is hidden, are understood. Dropout of
    attention weights is refused, since no implementation has it: set `dropout_rate=0`, or
    `deterministic=True`.

    Args:
        policy: gives the inverse temperature of each row; None is plain softmax.
        **options: of `sharpmax.jax.attention`, such as `is_causal` or `implementation`.

    Returns:
        A function of query, key and value, [..., length, heads, width].

    Raises:
        NotImplementedError: when it is called with dropout, or to return or record weights.

    Example:
        >>> import jax.numpy as jnp
        >>> from sharpmax.policies import Exponential
        >>> attend = flax_attention_fn(Exponential(reference=1.0))
        >>> attend(*[jnp.ones((2, 5, 4, 8))] * 3).shape
        (2, 5, 4, 8)
    """

    def attend(
        query: Array,
        key: Array,
        value: Array,
        bias: Array | None = None,
        mask: Array | None = None,
        *,
        dropout_rate: float = 0.0,
        deterministic: bool = True,
        dtype: Any = None,
        module: Any = None,
        **ignored: Any,
    ) -> Array:
        if dropout_rate and not deterministic:
            raise NotImplementedError(
                f"dropout_rate: expected 0 in training, got {dropout_rate}: attention with a "
                "policy does not drop weights"
            )
        if module is not None:
            raise NotImplementedError("module: the weights are not computed, so not recorded")
        if dtype is not None:
            query, key, value = (x.astype(dtype) for x in (query, key, value))
        leading = query.shape[:-3]
        query, key, value = (x.reshape(-1, *x.shape[-3:]) for x in (query, key, value))
        extra = [None if x is None else _folded(x, leading) for x in (bias, mask)]
        if extra[1] is not None:
            extra[1] = extra[1] != 0
        output = attention(query, key, value, *extra, policy=policy, **options)
        return output.reshape(*leading, *output.shape[1:])

    return attend


def _folded(array: Array, leading: tuple[int, ...]) -> Array:
    """A mask [..., heads, queries, keys] with one axis for the batch."""
    if array.ndim <= 3:
        return array
    return jnp.broadcast_to(array, (*leading, *array.shape[-3:])).reshape(-1, *array.shape[-3:])
