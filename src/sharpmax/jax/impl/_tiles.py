"""Sweep over tiles of queries and keys, forward and backward.

Arrays inside of a tile have the axes [batch, key heads, group, queries, keys or width]. Blocks that
do not divide the length evenly overlap; what an earlier block has covered is hidden from the last.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from sharpmax.jax._problem import Array, Problem

QUERIES, KEYS = 256, 512
"""The largest tile of one head."""

LOGITS = 1 << 18
"""How many logits the tiles of all heads have on a CPU, whose cache they share, if that is not
below a quarter of the queries and keys. A sweep holds up to eight arrays of that size."""


class Mixed(NamedTuple):
    """Stands for a sum in the start of a sweep, so many times as wide as the values."""

    times: int = 1


def is_empty(problem: Problem) -> bool:
    """Whether there is no logit at all."""
    return 0 in (*problem.rows, problem.keys)


def tile(heads: int) -> tuple[int, int]:
    """How many queries and keys a tile has at most, where so many heads have one."""
    queries, keys = QUERIES, KEYS
    for _ in range(2):
        if jax.default_backend() == "cpu" and heads * queries * keys > LOGITS:
            queries, keys = -(-queries // 2), -(-keys // 2)
    return queries, keys


def product(left: Array, right: Array) -> Array:
    """Rows [b, k, g, q, w] times keys or values [b, s, k, w], in the precision of statistics."""
    return lax.dot_general(
        left,
        right,
        (((4,), (3,)), ((0, 1), (0, 2))),
        preferred_element_type=jnp.promote_types(left.dtype, jnp.float32),
    )


def mix(weights: Array, value: Array) -> Array:
    """Weights [b, k, g, q, s] times values [b, s, k, w]."""
    return lax.dot_general(
        weights.astype(value.dtype),
        value,
        (((4,), (1,)), ((0, 1), (0, 2))),
        preferred_element_type=weights.dtype,
    )


def _collect(weights: Array, rows: Array) -> Array:
    """Weights [b, k, g, q, s] times rows [b, k, g, q, w], summed over rows: [b, s, k, w]."""
    collected = lax.dot_general(
        weights.astype(rows.dtype),
        rows,
        (((2, 3), (2, 3)), ((0, 1), (0, 1))),
        preferred_element_type=weights.dtype,
    )
    return collected.transpose(0, 2, 1, 3)


class _Plan:
    """The blocks of a problem, and the logits of its tiles."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.batch, self.heads, self.queries = problem.rows
        self.keys, self.group = problem.keys, problem.group
        self.grouped = (self.heads // self.group, self.group)
        largest = tile(self.batch * self.heads)
        self.query_block = min(largest[0], self.queries)
        self.key_block = min(largest[1], self.keys)
        self.query_blocks = -(-self.queries // self.query_block)
        self.key_blocks = -(-self.keys // self.key_block)
        # Zero, but varying over the same mesh axes as the arrays: so do the states of the loops.
        self.zero = sum(
            lax.stop_gradient(x).ravel()[:0].astype(problem.statistics_dtype).sum()
            for x in jax.tree.leaves(problem)
        )

    def query_start(self, block: Array) -> Array:
        return jnp.minimum(block * self.query_block, self.queries - self.query_block)

    def key_start(self, block: Array) -> Array:
        return jnp.minimum(block * self.key_block, self.keys - self.key_block)

    def of_queries(self, array: Array, block: Array) -> Array:
        """Part of [b, t, n, w], as [b, k, g, q, w]."""
        start = self.query_start(block)
        part = lax.dynamic_slice_in_dim(array, start, self.query_block, 1)
        part = part.reshape(*part.shape[:2], *self.grouped, part.shape[3])
        return part.transpose(0, 2, 3, 1, 4)

    def of_keys(self, array: Array, block: Array) -> Array:
        """Part of [b, s, k, w]."""
        return lax.dynamic_slice_in_dim(array, self.key_start(block), self.key_block, 1)

    def of_rows(self, rows: tuple[Array, ...], block: Array) -> tuple[Array, ...]:
        """Parts of [b, k, g, t]."""
        start = self.query_start(block)
        return tuple(lax.dynamic_slice_in_dim(row, start, self.query_block, 3) for row in rows)

    def of_both(self, array: Array, query_block: Array, key_block: Array) -> Array:
        """Part of [b, n, t, s], where each axis may be 1, as [b, k, g, q, s]."""
        if array.shape[2] > 1:
            start = self.query_start(query_block)
            array = lax.dynamic_slice_in_dim(array, start, self.query_block, 2)
        if array.shape[3] > 1:
            array = lax.dynamic_slice_in_dim(array, self.key_start(key_block), self.key_block, 3)
        grouped = self.grouped if array.shape[1] > 1 else (1, 1)
        return array.reshape(array.shape[0], *grouped, *array.shape[2:])

    def split(self, rows: Array) -> Array:
        """Rows [b, n, t] as [b, k, g, t]."""
        return rows.reshape(self.batch, *self.grouped, self.queries)

    def joined(self, rows: Array) -> Array:
        return rows.reshape(self.batch, self.heads, self.queries)

    def key_bounds(self, block: Array) -> tuple[Array, Array]:
        """The blocks of keys that a block of queries may see."""
        problem, first = self.problem, self.query_start(block)
        offset = 0 if problem.first_key is None else problem.first_key
        lowest, highest = jnp.int32(0), jnp.int32(self.keys)
        if problem.left is not None:
            lowest = first - problem.left - offset
        if problem.right is not None:
            highest = first + self.query_block + problem.right - offset
        if problem.key_lengths is not None:
            highest = jnp.minimum(highest, problem.key_lengths.max() - offset)
        if problem.query_lengths is not None:
            highest = jnp.where(first < problem.query_lengths.max(), highest, 0)
        return _blocks(lowest, highest, self.key_block, self.keys)

    def query_bounds(self, block: Array) -> tuple[Array, Array]:
        """The blocks of queries that may see a block of keys."""
        problem, first = self.problem, self.key_start(block)
        if problem.first_key is not None:
            first = first + problem.first_key
        lowest, highest = jnp.int32(0), jnp.int32(self.queries)
        if problem.right is not None:
            lowest = first - problem.right
        if problem.left is not None:
            highest = first + self.key_block + problem.left
        if problem.query_lengths is not None:
            highest = jnp.minimum(highest, problem.query_lengths.max())
        if problem.key_lengths is not None:
            highest = jnp.where(first < problem.key_lengths.max(), highest, 0)
        return _blocks(lowest, highest, self.query_block, self.queries)

    def logits(
        self, query: Array, key: Array, query_block: Array, key_block: Array
    ) -> tuple[Array, Array | None]:
        """Return the logits of a tile, -inf where hidden, and the derivative of their soft cap."""
        problem = self.problem
        logits = problem.scale * product(query, key)
        slope = None
        if problem.soft_cap:
            bounded = jnp.tanh(logits / problem.soft_cap)
            logits, slope = problem.soft_cap * bounded, 1.0 - bounded * bounded
        conditions = []
        queries = self.query_start(query_block) + jnp.arange(self.query_block)
        keys = self.key_start(key_block) + jnp.arange(self.key_block)
        if (allowed := problem.visible(queries, keys)) is not None:
            conditions.append(allowed[:, None])
        if self.queries % self.query_block:
            conditions.append((queries >= query_block * self.query_block)[:, None])
        if self.keys % self.key_block:
            conditions.append(keys >= key_block * self.key_block)
        if problem.mask is not None:
            conditions.append(self.of_both(problem.mask, query_block, key_block))
        if problem.bias is not None:
            bias, shown = problem.added(self.of_both(problem.bias, query_block, key_block))
            logits = logits + bias
            conditions.append(shown)
        for condition in conditions:
            logits = jnp.where(condition, logits, -jnp.inf)
        return logits, slope


def _blocks(lowest: Array, highest: Array, size: int, length: int) -> tuple[Array, Array]:
    """The blocks with the positions from `lowest` up to `highest`, as bounds of a loop."""
    count = -(-length // size)
    start = jnp.clip(lowest // size, 0, count)
    # The last block starts early if it is cut off.
    start = jnp.where(lowest >= length - size, jnp.minimum(start, count - 1), start)
    return start, jnp.clip(-(-highest // size), 0, count)


Step = Callable[[Any, Array, tuple[Array, ...], Any], Any]
Finish = Callable[[Any, tuple[Array, ...]], tuple[tuple[Array, ...], Array | None]]


def forward(
    problem: Problem, rows: tuple[Array, ...], start: Any, step: Step, finish: Finish
) -> tuple[tuple[Array, ...], Any]:
    """Sweep over the keys of every block of queries.

    Args:
        problem: what to sweep over.
        rows: what `step` and `finish` read of each row, [batch, heads, queries].
        start: the state before the first key: numbers, one per row, or `Mixed`.
        step: (state, logits, rows, values) -> state.
        finish: (state, rows) -> results of each row, and the output or None.

    Returns:
        Results [batch, heads, queries], and the output [batch, queries, heads, width] or None.
    """
    plan = _Plan(problem)
    own = (plan.batch, *plan.grouped, plan.query_block)
    held = tuple(plan.split(row) for row in rows)
    dtype = problem.statistics_dtype

    def begin(entry: Any) -> Array:
        if isinstance(entry, Mixed):
            assert problem.value is not None
            return jnp.zeros((*own, entry.times * problem.value.shape[3]), dtype) + plan.zero
        kind = jnp.int32 if isinstance(entry, int) else dtype
        return jnp.full(own, entry, kind) + plan.zero.astype(kind)

    def of_block(block: Array) -> tuple[tuple[Array, ...], Array | None]:
        query = plan.of_queries(problem.query, block)
        mine = plan.of_rows(held, block)

        def visit(other: Array, state: Any) -> Any:
            logits, _ = plan.logits(query, plan.of_keys(problem.key, other), block, other)
            value = None if problem.value is None else plan.of_keys(problem.value, other)
            return step(state, logits, mine, value)

        first = jax.tree.map(begin, start, is_leaf=lambda entry: isinstance(entry, Mixed))
        state = lax.fori_loop(*plan.key_bounds(block), visit, first)
        return finish(state, mine)

    shapes = jax.eval_shape(of_block, jnp.int32(0))
    empty = tuple(
        jnp.zeros((*shape.shape[:3], plan.queries), shape.dtype) + plan.zero.astype(shape.dtype)
        for shape in shapes[0]
    )
    output = None
    if shapes[1] is not None:
        shape = (plan.batch, plan.queries, plan.heads, shapes[1].shape[4])
        output = jnp.zeros(shape, problem.query.dtype) + plan.zero.astype(problem.query.dtype)

    def fill(block: Array, filled: Any) -> Any:
        found, mixed = of_block(block)
        at = plan.query_start(block)
        results, output = filled
        results = tuple(
            lax.dynamic_update_slice_in_dim(row, _fresh(plan, row, new, block), at, 3)
            for row, new in zip(results, found, strict=True)
        )
        if mixed is not None:
            mixed = mixed.transpose(0, 3, 1, 2, 4).astype(output.dtype)
            mixed = mixed.reshape(plan.batch, plan.query_block, plan.heads, mixed.shape[4])
            if plan.queries % plan.query_block:
                old = lax.dynamic_slice_in_dim(output, at, plan.query_block, 1)
                fresh = _is_fresh(plan, block)[:, None, None]
                mixed = jnp.where(fresh, mixed, old)
            output = lax.dynamic_update_slice_in_dim(output, mixed, at, 1)
        return results, output

    results, output = lax.fori_loop(0, plan.query_blocks, fill, (empty, output))
    return tuple(plan.joined(row) for row in results), output


def _is_fresh(plan: _Plan, block: Array) -> Array:
    positions = plan.query_start(block) + jnp.arange(plan.query_block)
    return positions >= block * plan.query_block


def _fresh(plan: _Plan, row: Array, new: Array, block: Array) -> Array:
    """`new`, but what an earlier block has covered stays."""
    if plan.queries % plan.query_block == 0:
        return new
    old = lax.dynamic_slice_in_dim(row, plan.query_start(block), plan.query_block, 3)
    return jnp.where(_is_fresh(plan, block), new, old)


Weigh = Callable[..., tuple[Array | None, Array, Array | None]]


def backward(
    problem: Problem, rows: tuple[Array, ...], by_output: Array | None, weigh: Weigh
) -> tuple[Problem, Array]:
    """Sweep over all tiles and collect gradients.

    Args:
        problem: what to sweep over.
        rows: what `weigh` reads of each row, [batch, heads, queries].
        by_output: the gradient by the output, or None.
        weigh: (logits, rows, gradient by the weights or None) -> weights of the values or None,
            gradient by the logits, and what each key adds to that by beta or None. All of them
            broadcast against the logits, so that kernels can use it as well.

    Returns:
        Gradients by the arrays of the problem, None for those that have none, and by beta.
    """
    plan = _Plan(problem)
    held = tuple(plan.split(row) for row in rows)
    dtype = problem.statistics_dtype
    start = {
        "query": jnp.zeros(problem.query.shape, dtype) + plan.zero,
        "key": jnp.zeros(problem.key.shape, dtype) + plan.zero,
        "beta": jnp.zeros((plan.batch, *plan.grouped, plan.queries), dtype) + plan.zero,
    }
    if by_output is not None:
        assert problem.value is not None
        start["value"] = jnp.zeros(problem.value.shape, dtype) + plan.zero
    if problem.bias is not None:
        start["bias"] = jnp.zeros(problem.bias.shape, dtype) + plan.zero

    def of_keys(key_block: Array, found: dict[str, Array]) -> dict[str, Array]:
        key = plan.of_keys(problem.key, key_block)
        value = None if by_output is None else finite(plan.of_keys(problem.value, key_block))

        def of_tile(query_block: Array, found: dict[str, Array]) -> dict[str, Array]:
            query = plan.of_queries(problem.query, query_block)
            logits, slope = plan.logits(query, key, query_block, key_block)
            own = None if by_output is None else plan.of_queries(by_output, query_block)
            mine = tuple(row[..., None] for row in plan.of_rows(held, query_block))
            by_weight = None if own is None else product(own, value)
            weights, gradient, by_beta = weigh(logits, mine, by_weight)
            gradient = jnp.where(logits == -jnp.inf, 0.0, gradient)
            found = dict(found)
            if problem.bias is not None:
                _add_to_bias(plan, found, gradient, query_block, key_block)
            if slope is not None:
                gradient = jnp.where(logits == -jnp.inf, 0.0, gradient * slope)
            gradient = problem.scale * gradient
            at, to = plan.query_start(query_block), plan.key_start(key_block)
            by_query = mix(gradient, finite(key)).transpose(0, 3, 1, 2, 4)
            by_query = by_query.reshape(plan.batch, plan.query_block, plan.heads, -1)
            found["query"] = _add(found["query"], by_query, at, 1)
            found["key"] = _add(found["key"], _collect(gradient, finite(query)), to, 1)
            if own is not None:
                found["value"] = _add(found["value"], _collect(weights, own), to, 1)
            if by_beta is not None:
                found["beta"] = _add(found["beta"], by_beta.sum(-1), at, 3)
            return found

        collected: dict[str, Array] = lax.fori_loop(*plan.query_bounds(key_block), of_tile, found)
        return collected

    found = lax.fori_loop(0, plan.key_blocks, of_keys, start)
    gradients = {
        name: found[name].astype(getattr(problem, name).dtype)
        for name in ("query", "key", "value", "bias")
        if name in found
    }
    return as_gradients(problem, gradients), plan.joined(found["beta"])


def as_gradients(problem: Problem, found: dict[str, Array]) -> Problem:
    """Gradients by the arrays of a problem in its form, None for those that have none."""
    gradients: dict[str, Any] = dict.fromkeys(vars(problem)) | found
    for name in ("scale", "soft_cap", "left", "right", "axis_name"):
        gradients[name] = getattr(problem, name)
    if gradients["value"] is None and problem.value is not None:
        gradients["value"] = jnp.zeros_like(problem.value)
    return Problem(**gradients)


def _add(array: Array, part: Array, start: Array, axis: int) -> Array:
    old = lax.dynamic_slice_in_dim(array, start, part.shape[axis], axis)
    return lax.dynamic_update_slice_in_dim(array, old + part, start, axis)


def _add_to_bias(
    plan: _Plan, found: dict[str, Array], gradient: Array, query_block: Array, key_block: Array
) -> None:
    """Add a tile [b, k, g, q, s] to the gradient of the bias, whose axes may be 1."""
    total = found["bias"]
    part = gradient.reshape(plan.batch, plan.heads, *gradient.shape[3:])
    single = [axis for axis in range(4) if total.shape[axis] == 1]
    part = part.sum(single, keepdims=True)
    starts = [0, 0, plan.query_start(query_block), plan.key_start(key_block)]
    starts = [jnp.int32(0 if axis in single else start) for axis, start in enumerate(starts)]
    old = lax.dynamic_slice(total, starts, part.shape)
    found["bias"] = lax.dynamic_update_slice(total, old + part, starts)


def finite(array: Array) -> Array:
    """The array with 0 for what is infinite or NaN: it may be hidden, and 0 times it is NaN."""
    return jnp.where(jnp.isfinite(array), array, 0)
