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

    Masks of Flax, booleans or numbers that are 0 where a key is hidden, are understood. What would
    change the result and cannot be done is refused. That is dropout of attention weights above all:
    set `dropout_rate=0`, or `deterministic=True`.

    Args:
        policy: gives the inverse temperature of each row; None is plain softmax.
        **options: of `sharpmax.jax.attention`, such as `is_causal` or `implementation`.

    Returns:
        A function of query, key and value, [..., length, heads, width].

    Raises:
        NotImplementedError: when it is called with dropout, to record weights, or with a precision
            or a product of its own.

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
        is_causal: bool = False,
        dropout_rate: float = 0.0,
        deterministic: bool = False,
        dtype: Any = None,
        precision: Any = None,
        module: Any = None,
        einsum_dot_general: Any = None,
        qk_attn_weights_einsum: Any = None,
        attn_weights_value_einsum: Any = None,
        # Without dropout, and with softmax in single precision, these change nothing.
        dropout_rng: Any = None,
        broadcast_dropout: bool = True,
        force_fp32_for_softmax: bool = True,
    ) -> Array:
        if dropout_rate and not deterministic:
            raise NotImplementedError(
                f"dropout_rate: expected 0 in training, got {dropout_rate}: attention with a "
                "policy does not drop weights"
            )
        if module is not None:
            raise NotImplementedError("module: the weights are not computed, so not recorded")
        if precision is not None:
            raise NotImplementedError(
                f"precision: expected None, got {precision!r}; set jax.default_matmul_precision, "
                "which all products follow"
            )
        products = {
            "einsum_dot_general": einsum_dot_general,
            "qk_attn_weights_einsum": qk_attn_weights_einsum,
            "attn_weights_value_einsum": attn_weights_value_einsum,
        }
        for name, product in products.items():
            if product is not None:
                raise NotImplementedError(f"{name}: expected None, since products are fixed here")
        if dtype is not None:
            query, key, value = (x.astype(dtype) for x in (query, key, value))
        leading = query.shape[:-3]
        query, key, value = (x.reshape(-1, *x.shape[-3:]) for x in (query, key, value))
        extra = [None if x is None else _folded(x, leading) for x in (bias, mask)]
        if extra[1] is not None:
            extra[1] = extra[1] != 0
        chosen = options | {"is_causal": is_causal or options.get("is_causal", False)}
        output = attention(query, key, value, *extra, policy=policy, **chosen)
        return output.reshape(*leading, *output.shape[1:])

    return attend


def _folded(array: Array, leading: tuple[int, ...]) -> Array:
    """A mask [..., heads, queries, keys] with one axis for the batch."""
    if array.ndim <= 3:
        return array
    return jnp.broadcast_to(array, (*leading, *array.shape[-3:])).reshape(-1, *array.shape[-3:])
