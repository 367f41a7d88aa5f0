"""Sweep over blocks of keys with Pallas, forward: what the kernels for TPUs and GPUs share.

Inside of a kernel a tile of logits is [keys, queries], so that numbers per row lie along the last
axis, as lanes of a TPU, and the output is [width, queries]. Gradients are those of "xla", whose
backward passes recompute the logits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from sharpmax.jax._extremes import FAR, decayed
from sharpmax.jax._problem import Array, Problem, varying
from sharpmax.jax.impl._calls import mask_of

INTERPRET: Any = False
"""Run on CPUs, for tests: True, or the parameters of the TPU simulator."""


class Blocks(NamedTuple):
    """How many queries and keys a tile has."""

    queries: int
    keys: int


class Sweep(NamedTuple):
    """What a kernel keeps while it goes over the keys of its queries.

    Row entries are [1, queries], the mixture is [value width, queries].
    """

    start: Callable[..., tuple[Array, ...]]
    """Rows that are given -> state before the first key."""
    step: Callable[..., tuple[Array, ...]]
    """State, logits, values, rows that are given -> state."""
    finish: Callable[..., tuple[Array, ...]]
    """State -> results."""
    results: tuple[Any, ...]
    """The dtype of each result; "output" for the one with the width of the values."""


class Layout:
    """The arrays of a problem as kernels read them, in whole blocks."""

    def __init__(
        self, problem: Problem, rows: tuple[Array, ...], blocks: Blocks, width: Callable[[int], int]
    ) -> None:
        self.problem, self.blocks = problem, blocks
        self.batch, self.heads, self.true_queries = problem.rows
        self.queries = _up(self.true_queries, blocks.queries)
        self.keys = _up(problem.keys, blocks.keys)
        self.group = problem.group
        self.grid = (self.batch, self.heads, self.queries // blocks.queries)
        self.key_blocks = self.keys // blocks.keys
        pad_queries = self.queries - self.true_queries
        pad_keys = self.keys - problem.keys
        self.query = _padded(problem.query, pad_queries, width)
        self.key = _padded(problem.key, pad_keys, width)
        self.value = None
        if problem.value is not None:
            # What is hidden has no weight, and zero times NaN is NaN.
            finite = jnp.where(jnp.isfinite(problem.value), problem.value, 0)
            self.value = _padded(finite, pad_keys, width)
        self.rows = [jnp.pad(row[:, :, None], [(0, 0)] * 3 + [(0, pad_queries)]) for row in rows]
        self.bias = _bias(problem, pad_queries, pad_keys)
        limits = [
            jnp.full(self.batch, self.true_queries)
            if problem.query_lengths is None
            else problem.query_lengths
        ]
        first = jnp.int32(0) if problem.first_key is None else problem.first_key
        last = jnp.full(self.batch, problem.keys)
        if problem.key_lengths is not None:
            last = jnp.minimum(last, problem.key_lengths - first)
        limits += [last, jnp.broadcast_to(first, last.shape), jnp.zeros_like(last)]
        self.limits = jnp.stack(limits, -1).astype(jnp.int32)

    @property
    def arrays(self) -> list[Array]:
        """All arguments of a kernel, varying over the same mesh axes."""
        given = [self.limits, self.query, self.key, self.value, self.bias, *self.rows]
        present = [array for array in given if array is not None]
        axes = frozenset().union(*map(varying, present))
        return [
            lax.pcast(array, tuple(sorted(axes - varying(array))), to="varying")
            for array in present
        ]

    def unpacked(self, refs: tuple[Any, ...]) -> tuple[Any, Any, Any, Any, Any, list[Any]]:
        """Limits, query, key, value, bias and rows of a kernel's arguments."""
        rest = list(refs)
        limits, query, key = rest[:3]
        del rest[:3]
        value = rest.pop(0) if self.value is not None else None
        bias = rest.pop(0) if self.bias is not None else None
        return limits, query, key, value, bias, rest

    def shapes(self, results: tuple[Any, ...]) -> list[jax.ShapeDtypeStruct]:
        kind = jax.typeof(self.arrays[0]).manual_axis_type
        found = []
        for result in results:
            rows, dtype = 1, result
            if result == "output":
                assert self.value is not None
                rows, dtype = self.value.shape[3], jnp.float32
            shape = (self.batch, self.heads, rows, self.queries)
            found.append(jax.ShapeDtypeStruct(shape, dtype, manual_axis_type=kind))
        return found

    def cut(self, results: Any, kinds: tuple[Any, ...]) -> list[Array]:
        """Results without what was added to fill blocks; the output in JAX's layout."""
        found = []
        for result, kind in zip(results, kinds, strict=True):
            rows = result[..., : self.true_queries]
            if kind == "output":
                assert self.problem.value is not None
                rows = rows[:, :, : self.problem.value.shape[3]]
                found.append(rows.transpose(0, 3, 1, 2).astype(self.problem.query.dtype))
            else:
                found.append(rows[:, :, 0])
        return found

    def is_seen(self, limits: Any, query_block: Any, key_block: Any) -> Any:
        """Whether a tile may have a visible key."""
        first, last = self.seen_keys(limits, query_block)
        start = key_block * self.blocks.keys
        return (start < last) & (start + self.blocks.keys > first)

    def seen_keys(self, limits: Any, query_block: Any) -> tuple[Any, Any]:
        """The first key that a block of queries may see, and the one behind the last."""
        row = query_block * self.blocks.queries
        first, last = jnp.int32(0), limits[1]
        if self.problem.left is not None:
            first = jnp.maximum(row - self.problem.left - limits[2], 0)
        if self.problem.right is not None:
            behind = row + self.blocks.queries + self.problem.right - limits[2]
            last = jnp.minimum(last, behind)
        return first, jnp.where(row < limits[0], last, 0)

    def logits(
        self, limits: Any, query: Array, key: Array, bias: Array | None, query_block: Any, at: Any
    ) -> Array:
        """The logits of a tile, [keys, queries]; -inf where hidden. `at` is its first key."""
        problem, blocks = self.problem, self.blocks
        logits = problem.scale * product(key, query, 1)
        if problem.soft_cap:
            logits = problem.soft_cap * jnp.tanh(logits / problem.soft_cap)
        shape = (blocks.keys, blocks.queries)
        rows = query_block * blocks.queries + lax.broadcasted_iota(jnp.int32, shape, 1)
        keys = at + lax.broadcasted_iota(jnp.int32, shape, 0)
        visible = (rows < limits[0]) & (keys < limits[1])
        if problem.left is not None:
            visible &= keys + limits[2] >= rows - problem.left
        if problem.right is not None:
            visible &= keys + limits[2] <= rows + problem.right
        if bias is not None:
            visible &= bias > -jnp.inf
            logits = logits + bias
        return jnp.where(visible, logits, -jnp.inf)


def product(left: Array, right: Array, axis: int) -> Array:
    """Multiply and sum over an axis of both, in full precision if they have it."""
    exact = left.dtype == jnp.float32
    return lax.dot_general(
        left,
        right,
        (((axis,), (axis,)), ((), ())),
        precision=lax.Precision.HIGHEST if exact else None,
        preferred_element_type=jnp.float32,
    )


def _up(length: int, block: int) -> int:
    return -(-length // block) * block


def _padded(array: Array, more: int, width: Callable[[int], int]) -> Array:
    """[batch, positions, heads, width] as [batch, heads, positions, width], in whole blocks."""
    wider = width(array.shape[3]) - array.shape[3]
    return jnp.pad(array.transpose(0, 2, 1, 3), [(0, 0), (0, 0), (0, more), (0, wider)])


def _bias(problem: Problem, pad_queries: int, pad_keys: int) -> Array | None:
    """Mask and bias as numbers to add, [batch, heads, keys, queries], where axes may be 1."""
    mask = mask_of(problem, lengths=False)
    if mask is None:
        return None
    if mask.dtype == bool:
        mask = jnp.where(mask, 0.0, -jnp.inf).astype(jnp.float32)
    else:
        added, shown = problem.added(mask)
        mask = jnp.where(shown, added, -jnp.inf)
    mask = mask.transpose(0, 1, 3, 2)
    pads = [
        0 if size == 1 else pad
        for size, pad in zip(mask.shape[2:], (pad_keys, pad_queries), strict=True)
    ]
    return jnp.pad(mask, [(0, 0), (0, 0), (0, pads[0]), (0, pads[1])])


# The two sweeps. A key at -inf is hidden: it is neither a maximum nor has it weight.


def _measure_start(shape: tuple[int, int], width: int) -> tuple[Array, ...]:
    zeros = jnp.zeros(shape, jnp.float32)
    return zeros - jnp.inf, zeros, zeros, jnp.zeros(shape, jnp.int32)


def _measure_step(state: tuple[Array, ...], logits: Array, value: None) -> tuple[Array, ...]:
    maximum, mass, moment, count = state
    higher = jnp.maximum(maximum, logits.max(0, keepdims=True))
    shift = _distance(maximum, higher)
    decay = jnp.exp(shift)
    distance = _distance(logits, higher)
    weights = jnp.where(logits == -jnp.inf, 0.0, jnp.exp(distance))
    moment = decay * (moment + shift * mass) + (weights * distance).sum(0, keepdims=True)
    mass = decay * mass + weights.sum(0, keepdims=True)
    seen = (logits != -jnp.inf).sum(0, keepdims=True, dtype=jnp.int32)
    return higher, mass, moment, count + seen


def _distance(value: Array, maximum: Array) -> Array:
    """value - maximum, bounded, and 0 where both are the same infinity."""
    return jnp.where(value == maximum, 0.0, jnp.maximum(value - maximum, -FAR))


MEASURE = Sweep(
    _measure_start,
    _measure_step,
    lambda state: state,
    (jnp.float32, jnp.float32, jnp.float32, jnp.int32),
)


def _attend_start(
    shape: tuple[int, int], width: int, beta: Array, maximum: Array | None = None
) -> tuple[Array, ...]:
    zeros = jnp.zeros(shape, jnp.float32)
    peak = zeros - jnp.inf if maximum is None else maximum
    return peak, zeros, jnp.zeros((width, shape[1]), jnp.float32)


def _attend_step(
    state: tuple[Array, ...],
    logits: Array,
    value: Array,
    beta: Array,
    maximum: Array | None = None,
) -> tuple[Array, ...]:
    peak, mass, mixed = state
    higher = peak if maximum is not None else jnp.maximum(peak, logits.max(0, keepdims=True))
    distance = jnp.where(logits == higher, 0.0, logits - higher)
    hard = beta == jnp.inf
    exponent = jnp.where(hard & (distance < 0), -jnp.inf, jnp.where(hard, 1.0, beta) * distance)
    weights = jnp.where(logits == -jnp.inf, 0.0, jnp.exp(exponent))
    if maximum is None:
        decay = decayed(beta, peak, higher)
        mass, mixed = decay * mass, decay * mixed
    mass = mass + weights.sum(0, keepdims=True)
    return higher, mass, mixed + product(value, weights.astype(value.dtype), 0)


def _attend_finish(state: tuple[Array, ...]) -> tuple[Array, ...]:
    peak, mass, mixed = state
    return mixed / jnp.where(mass == 0, 1.0, mass), peak, mass


ATTEND = Sweep(_attend_start, _attend_step, _attend_finish, ("output", jnp.float32, jnp.float32))


def call(kernel: Callable[..., None], layout: Layout, sweep: Sweep, **options: Any) -> list[Array]:
    """Run a kernel over all blocks."""
    arrays = layout.arrays
    results = pl.pallas_call(
        kernel, out_shape=layout.shapes(sweep.results), interpret=INTERPRET, **options
    )(*arrays)
    return layout.cut(results, sweep.results)
