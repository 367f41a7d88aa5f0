"""Check the arguments of attention and bring them into the form that implementations read."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Array = Any
"""A JAX array, or a tracer of one."""

FLOATING = ("float32", "float64", "float16", "bfloat16")

_DATA = (
    "query",
    "key",
    "value",
    "bias",
    "mask",
    "sink",
    "query_lengths",
    "key_lengths",
    "first_key",
)
_STATIC = ("scale", "soft_cap", "left", "right", "axis_name")


@functools.partial(jax.tree_util.register_dataclass, data_fields=_DATA, meta_fields=_STATIC)
@dataclass(frozen=True)
class Problem:
    """The arrays and numbers of one attention, with every default resolved.

    The logit of query i and key j is e = scale q.k, then soft_cap tanh(e / soft_cap), then + bias.
    Query i sees the keys from i - left to i + right that neither `mask` nor the lengths hide; None
    means no bound. It is a pytree, so that it passes through transformations.
    """

    query: Array
    """[batch, queries, heads, width]."""
    key: Array
    """[batch, keys, key heads, width]."""
    value: Array | None
    """[batch, keys, key heads, value width]."""
    bias: Array | None
    """Added to the logits. Four axes, each 1 or that of [batch, heads, queries, keys]."""
    mask: Array | None
    """True is visible. Axes as those of `bias`."""
    sink: Array | None
    """[heads]: one more logit of each row, whose value is zero."""
    query_lengths: Array | None
    """[batch]: queries from here on see nothing."""
    key_lengths: Array | None
    """[batch]: keys from here on are not visible."""
    first_key: Array | None
    """Position of key 0, if keys are spread over devices."""
    scale: float
    soft_cap: float
    """0 for none."""
    left: int | None
    right: int | None
    axis_name: str | None

    @property
    def rows(self) -> tuple[int, int, int]:
        """Batch, query heads, queries."""
        batch, queries, heads, _ = self.query.shape
        return batch, heads, queries

    @property
    def keys(self) -> int:
        return int(self.key.shape[1])

    @property
    def group(self) -> int:
        """How many query heads share one key head."""
        return int(self.query.shape[2]) // max(int(self.key.shape[2]), 1)

    @property
    def statistics_dtype(self) -> Any:
        return jnp.dtype("float64" if self.query.dtype == "float64" else "float32")

    def visible(self, queries: Array, keys: Array) -> Array | None:
        """Return what the order, the window and the lengths allow; None if they allow all.

        Args:
            queries: positions, [q].
            keys: positions among the keys of this device, [k].

        Returns:
            Booleans [batch or 1, 1, q, k].
        """
        keys = keys if self.first_key is None else keys + self.first_key
        conditions = []
        if self.left is not None:
            conditions.append((keys >= queries[:, None] - self.left)[None, None])
        if self.right is not None:
            conditions.append((keys <= queries[:, None] + self.right)[None, None])
        if self.query_lengths is not None:
            conditions.append((queries < self.query_lengths[:, None])[:, None, :, None])
        if self.key_lengths is not None:
            conditions.append((keys < self.key_lengths[:, None])[:, None, None, :])
        return functools.reduce(operator.and_, conditions) if conditions else None

    def added(self, bias: Array) -> tuple[Array, Array]:
        """Return what a part of the bias adds to logits, and where it does not hide the key."""
        shown = bias > masked_below(bias.dtype)
        shown |= jnp.isnan(bias)
        return jnp.where(shown, bias, 0).astype(self.statistics_dtype), shown


def masked_below(dtype: Any) -> float:
    """Return the threshold of additive masks: entries at or below it hide a key.

    It catches finfo.min and sums that contain it, besides -inf.
    """
    return 0.5 * float(jnp.finfo(dtype).min)


def check(
    query: Any,
    key: Any,
    value: Any,
    bias: Any,
    mask: Any,
    *,
    scale: Any,
    is_causal: bool,
    query_seq_lengths: Any,
    key_value_seq_lengths: Any,
    local_window_size: Any,
    logits_soft_cap: Any,
    sink: Any,
    axis_name: str | None,
) -> Problem:
    """Check every argument before anything runs, and bring them into one form.

    Raises:
        TypeError, ValueError: naming the argument, what was expected and what came.
    """
    query, key = _floating("query", query, None), _floating("key", key, query)
    value = None if value is None else _floating("value", value, query)
    batch, queries, heads, width = query.shape
    keys, key_heads = key.shape[1], key.shape[2]
    _equal("key: batch size", key.shape[0], batch)
    _equal("key: width", key.shape[3], width)
    if heads % key_heads if key_heads else heads:
        raise ValueError(
            f"key: expected heads that divide the {heads} query heads, got {key_heads}"
        )
    if value is not None and value.shape[:3] != key.shape[:3]:
        raise ValueError(
            f"value: expected shape {(*key.shape[:3], 'width')}, got {tuple(value.shape)}"
        )
    if scale is None:
        scale = 1.0 / math.sqrt(max(width, 1))
    elif isinstance(scale, jax.Array):
        # It may be traced and learned: so it goes into the query.
        precise = jnp.promote_types(query.dtype, jnp.float32)
        query, scale = (query.astype(precise) * scale).astype(query.dtype), 1.0
    left, right = _window(local_window_size)
    if is_causal:
        right = 0 if right is None else min(right, 0)
    shape = (batch, heads, queries, keys)
    return Problem(
        query,
        key,
        value,
        None if bias is None else _check_bias(bias, shape),
        None if mask is None else _check_mask(mask, shape),
        None if sink is None else _check_sink(sink, query),
        _check_lengths("query_seq_lengths", query_seq_lengths, batch),
        _check_lengths("key_value_seq_lengths", key_value_seq_lengths, batch),
        None if axis_name is None else jax.lax.axis_index(axis_name) * keys,
        _scale(scale, query),
        0.0 if logits_soft_cap is None else _soft_cap(logits_soft_cap, query),
        left,
        right,
        axis_name,
    )


def spread(problem: Problem) -> Problem:
    """Let every array vary over all mesh axes that one of them varies over.

    Inside `shard_map` the gradient of an array that is the same on all devices is a sum over them.
    JAX inserts it where such an array begins to vary, which has to be outside of the
    implementations' own derivatives.
    """
    # A sink enters where the devices have been joined, in plain JAX.
    sink, problem = problem.sink, without(problem, "sink")
    leaves = jax.tree.leaves(problem)
    axes = frozenset().union(*(varying(leaf) for leaf in leaves))
    if problem.axis_name is not None and axes:
        axes |= {problem.axis_name}
    spread_out: Problem = jax.tree.map(
        lambda leaf: jax.lax.pcast(leaf, tuple(sorted(axes - varying(leaf))), to="varying"),
        problem,
    )
    return replace(spread_out, sink=sink)


def vary_with(problem: Problem, array: Array) -> Array:
    """Let an array vary over the same mesh axes as the arrays of a problem."""
    axes = varying(problem.query) - varying(array)
    return jax.lax.pcast(array, tuple(sorted(axes)), to="varying")


def vary_alike(arrays: Sequence[Array]) -> list[Array]:
    """Let arrays vary over the same mesh axes: all that one of them varies over."""
    axes = frozenset().union(*map(varying, arrays))
    return [
        jax.lax.pcast(array, tuple(sorted(axes - varying(array))), to="varying") for array in arrays
    ]


def varying(array: Array) -> frozenset[str]:
    """Return the mesh axes over which an array varies, inside of `shard_map`."""
    axes: frozenset[str] = jax.typeof(array).manual_axis_type.varying
    return axes


def without(problem: Problem, *names: str) -> Problem:
    """Return the problem without some of its arrays."""
    removed: dict[str, Any] = dict.fromkeys(names)
    return replace(problem, **removed)


def _floating(name: str, array: Any, query: Array | None) -> Array:
    """`array` with the axes [batch, length, heads, width]."""
    if not isinstance(array, jax.Array | np.ndarray):
        raise TypeError(f"{name}: expected a JAX array, got {type(array).__name__}")
    array = jnp.asarray(array)
    if array.dtype.name not in FLOATING:
        raise TypeError(f"{name}: expected one of {', '.join(FLOATING)}, got {array.dtype}")
    if query is not None and array.dtype != query.dtype:
        raise TypeError(f"{name}: expected the dtype of query, {query.dtype}, got {array.dtype}")
    if array.ndim not in (3, 4):
        raise ValueError(
            f"{name}: expected shape [batch, length, heads, width] or [length, heads, width], "
            f"got {tuple(array.shape)}"
        )
    return array if array.ndim == 4 else array[None]


def _check_bias(bias: Any, shape: tuple[int, ...]) -> Array:
    bias = jnp.asarray(bias)
    if bias.dtype == bool:
        raise TypeError("bias: expected numbers, got booleans; they belong into mask")
    if bias.dtype.name not in FLOATING:
        bias = bias.astype(jnp.float32)
    return _broadcastable("bias", bias, shape)


def _check_mask(mask: Any, shape: tuple[int, ...]) -> Array:
    mask = jnp.asarray(mask)
    if mask.dtype != bool:
        raise TypeError(f"mask: expected booleans, got {mask.dtype}; numbers belong into bias")
    return _broadcastable("mask", mask, shape)


def _broadcastable(name: str, array: Array, shape: tuple[int, ...]) -> Array:
    if array.ndim > 4 or any(
        own not in (1, full)
        for own, full in zip(array.shape, shape[4 - array.ndim :], strict=array.ndim <= 4)
    ):
        raise ValueError(
            f"{name}: expected a shape that broadcasts to {shape}, got {tuple(array.shape)}"
        )
    return array.reshape((1,) * (4 - array.ndim) + array.shape)


def _check_sink(sink: Any, query: Array) -> Array:
    sink = jnp.asarray(sink)
    if sink.dtype.name not in FLOATING:
        raise TypeError(f"sink: expected floating numbers, got {sink.dtype}")
    if sink.shape != (query.shape[2],):
        raise ValueError(
            f"sink: expected one logit per query head, shape ({query.shape[2]},), "
            f"got {tuple(sink.shape)}"
        )
    return sink.astype(jnp.promote_types(query.dtype, jnp.float32))


def _check_lengths(name: str, lengths: Any, batch: int) -> Array | None:
    if lengths is None:
        return None
    lengths = jnp.asarray(lengths)
    if not jnp.issubdtype(lengths.dtype, jnp.integer):
        raise TypeError(f"{name}: expected integers, got {lengths.dtype}")
    if lengths.shape != (batch,):
        raise ValueError(f"{name}: expected shape ({batch},), got {tuple(lengths.shape)}")
    return lengths.astype(jnp.int32)


def _window(size: Any) -> tuple[int | None, int | None]:
    if size is None:
        return None, None
    sides = size if isinstance(size, tuple | list) else (size, size)
    if len(sides) != 2:
        raise ValueError(f"local_window_size: expected an integer or two, got {size!r}")
    return _whole(sides[0]), _whole(sides[1])


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"local_window_size: expected integers, got {value!r}")
    # Beyond this, no window reaches farther; sums of it and a position stay below 2**31.
    return max(min(operator.index(value), 1 << 30), -(1 << 30))


def _smallest(query: Array) -> float:
    """The smallest normal number of the dtype of the statistics."""
    return float(jnp.finfo(jnp.promote_types(query.dtype, jnp.float32)).tiny)


def _scale(value: Any, query: Array) -> float:
    number, smallest = _number("scale", value), _smallest(query)
    # Beyond four times the inverse of the smallest number there are none.
    if number != 0 and not smallest <= abs(number) < 4 / smallest:
        raise ValueError(
            f"scale: expected 0 or a normal number of the dtype of the statistics, got {number}"
        )
    return number


def _soft_cap(value: Any, query: Array) -> float:
    number, smallest = _number("logits_soft_cap", value), _smallest(query)
    if number < smallest:
        raise ValueError(
            f"logits_soft_cap: expected a number of at least {smallest}, got {number!r}"
        )
    return number


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool | str | bytes | jax.core.Tracer) or not hasattr(value, "__float__"):
        raise TypeError(f"{name}: expected a number, got {value!r}")
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{name}: expected a finite number, got {number!r}")
    return number


def _equal(name: str, got: int, expected: int) -> None:
    if got != expected:
        raise ValueError(f"{name}: expected {expected}, got {got}")
