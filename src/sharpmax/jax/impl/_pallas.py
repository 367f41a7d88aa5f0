"""Sweep over tiles with Pallas: what the kernels for TPUs and GPUs share.

A program has one block of queries and goes over the keys, or one block of keys and goes over the
queries of all heads that share them. Inside of it a tile of logits is [keys, queries], so that
numbers per row lie along the last axis, as lanes of a TPU, and the output is [width, queries].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from sharpmax.jax._problem import Array, Problem, vary_alike
from sharpmax.jax.impl._calls import mask_of

INTERPRET: Any = False
"""Run on CPUs, for tests: True, or the parameters of the TPU simulator."""

ELSEWHERE = False
"""Serve also where the default backend cannot run the kernels, to compile them ahead of time."""


class Blocks(NamedTuple):
    """How many queries and keys a tile has."""

    queries: int
    keys: int


class Tile(NamedTuple):
    """What a step sees."""

    logits: Array
    """[keys, queries], -inf where hidden."""
    slope: Array | None
    """The derivative of the soft cap."""
    parts: dict[str, Array]
    """Blocks of "query", "key", "value" and "by_output", each [positions, width]."""
    rows: tuple[Array, ...]
    """Numbers of each row, [1, queries]."""


class Sweep(NamedTuple):
    """What a kernel keeps while it goes over tiles, and returns.

    An entry is a "row" or "count", [1, queries]; "mixture" or "of_query", [width, queries];
    "of_key" or "of_value", [keys, width].
    """

    state: dict[str, tuple[str, float]]
    """By name: what it is, and the number that it starts with."""
    step: Callable[[dict[str, Array], Tile], dict[str, Array]]
    finish: Callable[[dict[str, Array]], dict[str, Array]] = dict
    over_queries: bool = False
    """Whether a program has a block of keys."""

    @property
    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.state.values()]


class Layout:
    """The arrays of a problem in whole blocks, by name, as kernels read them."""

    def __init__(
        self,
        problem: Problem,
        sweep: Sweep,
        rows: tuple[Array, ...],
        by_output: Array | None,
        blocks: Blocks,
        width: Callable[[int], int],
    ) -> None:
        self.problem, self.sweep, self.blocks = problem, sweep, blocks
        self.batch, self.heads, queries = problem.rows
        self.query_blocks = -(-queries // blocks.queries)
        self.key_blocks = -(-problem.keys // blocks.keys)
        self.queries = self.query_blocks * blocks.queries
        self.keys = self.key_blocks * blocks.keys
        self.group = problem.group
        more_queries, more_keys = self.queries - queries, self.keys - problem.keys
        value = problem.value
        if value is not None:
            # What is hidden has no weight, and zero times NaN is NaN.
            value = jnp.where(jnp.isfinite(value), value, 0)
        given = {
            "limits": _limits(problem),
            "query": _padded(problem.query, more_queries, width),
            "key": _padded(problem.key, more_keys, width),
            "value": _padded(value, more_keys, width),
            "by_output": _padded(by_output, more_queries, width),
            "bias": _bias(problem, more_queries, more_keys),
        }
        for number, row in enumerate(rows):
            given[f"row {number}"] = jnp.pad(row[:, :, None], [(0, 0)] * 3 + [(0, more_queries)])
        present = {name: array for name, array in given.items() if array is not None}
        self.arrays = dict(zip(present, vary_alike(list(present.values())), strict=True))
        self.width = self.arrays["query"].shape[3]
        self.value_width = self.arrays["value"].shape[3] if value is not None else 0
        outer = (problem.key.shape[2], self.key_blocks)
        if not sweep.over_queries:
            outer = (self.heads, self.query_blocks)
        self.grid = (self.batch, *outer)

    def place(self, name: str, b: Any, head: Any, i: Any, j: Any) -> tuple[Any, ...]:
        """The block of an array or result that belongs to a tile."""
        if name in ("key", "value", "of_key", "of_value"):
            return b, lax.div(head, jnp.int32(self.group)), j, 0
        if name in ("query", "by_output"):
            return b, head, i, 0
        if name == "bias":
            shape = self.arrays[name].shape
            return tuple(0 if n == 1 else k for n, k in zip(shape, (b, head, j, i), strict=True))
        return b, head, 0, i

    def block(self, name: str) -> tuple[int, int]:
        """The last two axes of such a block."""
        queries, keys = self.blocks
        if name == "bias":
            rows, columns = self.arrays[name].shape[2:]
            return min(rows, keys), min(columns, queries)
        return {
            "query": (queries, self.width),
            "by_output": (queries, self.value_width),
            "key": (keys, self.width),
            "value": (keys, self.value_width),
            "of_key": (keys, self.width),
            "of_value": (keys, self.value_width),
            "of_query": (self.width, queries),
            "mixture": (self.value_width, queries),
        }.get(name, (1, queries))

    def start(self) -> dict[str, Array]:
        """The state before the first tile."""
        return {
            name: jnp.full(self.block(kind), number, _dtype(kind))
            for name, (kind, number) in self.sweep.state.items()
        }

    def finish(self, state: dict[str, Array]) -> list[Array]:
        """The results, in the order of the state."""
        found = self.sweep.finish(state)
        return [found[name] for name in self.sweep.state]

    def shapes(self) -> list[jax.ShapeDtypeStruct]:
        mesh_axes = jax.typeof(self.arrays["query"]).manual_axis_type
        found = []
        for kind in self.sweep.kinds:
            rows, columns = self.block(kind)
            shape = (self.batch, self.heads, rows, self.queries)
            if kind in ("of_key", "of_value"):
                shape = (self.batch, self.heads // self.group, self.keys, columns)
            found.append(jax.ShapeDtypeStruct(shape, _dtype(kind), manual_axis_type=mesh_axes))
        return found

    def cut(self, results: Any) -> tuple[Array, ...]:
        """Results without what was added to fill blocks, with positions where JAX has them."""
        problem, found = self.problem, []
        for result, kind in zip(results, self.sweep.kinds, strict=True):
            width = problem.query.shape[3]
            if kind in ("mixture", "of_value"):
                assert problem.value is not None
                width = problem.value.shape[3]
            if kind in ("of_key", "of_value"):
                found.append(result[:, :, : problem.keys, :width].transpose(0, 2, 1, 3))
            elif kind in ("mixture", "of_query"):
                found.append(result[:, :, :width, : problem.rows[2]].transpose(0, 3, 1, 2))
            else:
                found.append(result[:, :, 0, : problem.rows[2]])
        return tuple(found)

    def is_seen(self, limits: Any, i: Any, j: Any) -> Any:
        """Whether a tile may have a visible key."""
        first, last = self.seen_keys(limits, i)
        start = j * self.blocks.keys
        return (start < last) & (start + self.blocks.keys > first)

    def seen_keys(self, limits: Any, i: Any) -> tuple[Any, Any]:
        """The first key that a block of queries may see, and the one behind the last."""
        row = i * self.blocks.queries
        first, last = jnp.int32(0), limits[1]
        if self.problem.left is not None:
            first = jnp.maximum(row - self.problem.left - limits[2], 0)
        if self.problem.right is not None:
            behind = row + self.blocks.queries + self.problem.right - limits[2]
            last = jnp.minimum(last, behind)
        return first, jnp.where(row < limits[0], last, 0)

    def seeing_queries(self, limits: Any, j: Any) -> tuple[Any, Any]:
        """The first query that may see a block of keys, and the one behind the last."""
        start = j * self.blocks.keys
        first, last = jnp.int32(0), limits[0]
        if self.problem.right is not None:
            first = jnp.maximum(start + limits[2] - self.problem.right, 0)
        if self.problem.left is not None:
            behind = start + self.blocks.keys + limits[2] + self.problem.left
            last = jnp.minimum(last, behind)
        return first, jnp.where(start < limits[1], last, 0)

    def step(
        self, state: dict[str, Array], limits: Any, parts: dict[str, Array], i: Any, j: Any
    ) -> dict[str, Array]:
        """Take one tile into the state."""
        problem, blocks = self.problem, self.blocks
        logits = problem.scale * product(parts["key"], parts["query"], 1, 1)
        slope = None
        if problem.soft_cap:
            bounded = jnp.tanh(logits / problem.soft_cap)
            logits, slope = problem.soft_cap * bounded, 1.0 - bounded * bounded
        shape = (blocks.keys, blocks.queries)
        rows = i * blocks.queries + lax.broadcasted_iota(jnp.int32, shape, 1)
        keys = j * blocks.keys + lax.broadcasted_iota(jnp.int32, shape, 0)
        visible = (rows < limits[0]) & (keys < limits[1])
        if problem.left is not None:
            visible &= keys + limits[2] >= rows - problem.left
        if problem.right is not None:
            visible &= keys + limits[2] <= rows + problem.right
        if "bias" in parts:
            visible &= parts["bias"] > -jnp.inf
            logits = logits + parts["bias"]
        logits = jnp.where(visible, logits, -jnp.inf)
        held = tuple(part for name, part in parts.items() if name.startswith("row"))
        return self.sweep.step(state, Tile(logits, slope, parts, held))


def _dtype(kind: str) -> Any:
    return jnp.int32 if kind == "count" else jnp.float32


def product(left: Array, right: Array, axis: int, other: int) -> Array:
    """Multiply and sum over an axis of each, in full precision if they have it."""
    exact = left.dtype == jnp.float32
    return lax.dot_general(
        left,
        right,
        (((axis,), (other,)), ((), ())),
        precision=lax.Precision.HIGHEST if exact else None,
        preferred_element_type=jnp.float32,
    )


def _padded(array: Array | None, more: int, width: Callable[[int], int]) -> Array | None:
    """[batch, positions, heads, width] as [batch, heads, positions, width], in whole blocks."""
    if array is None:
        return None
    wider = width(array.shape[3]) - array.shape[3]
    return jnp.pad(array.transpose(0, 2, 1, 3), [(0, 0), (0, 0), (0, more), (0, wider)])


def _limits(problem: Problem) -> Array:
    """How many queries and keys there are, and the position of key 0, for each batch."""
    batch, _, length = problem.rows
    queries = jnp.full(batch, length) if problem.query_lengths is None else problem.query_lengths
    first = jnp.asarray(0 if problem.first_key is None else problem.first_key, jnp.int32)
    keys = jnp.full(batch, problem.keys)
    if problem.key_lengths is not None:
        keys = jnp.minimum(keys, problem.key_lengths - first)
    limits: list[Array] = [queries, keys, jnp.broadcast_to(first, keys.shape), jnp.zeros_like(keys)]
    return jnp.stack(limits, -1).astype(jnp.int32)


def _bias(problem: Problem, more_queries: int, more_keys: int) -> Array | None:
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
    sizes = zip(mask.shape[2:], (more_keys, more_queries), strict=True)
    pads = [(0, 0 if size == 1 else more) for size, more in sizes]
    return jnp.pad(mask, [(0, 0), (0, 0), *pads])


def call(kernel: Callable[..., None], layout: Layout, **options: Any) -> tuple[Array, ...]:
    """Run a kernel over all blocks."""
    results = pl.pallas_call(kernel, out_shape=layout.shapes(), interpret=INTERPRET, **options)(
        *layout.arrays.values()
    )
    return layout.cut(results)
