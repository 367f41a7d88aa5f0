"""Attend with Pallas kernels for GPUs, by way of Triton, forward and backward.

One program has one block of queries and goes over the keys that these may see, or one block of keys
and goes over the queries that may see them.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from sharpmax.jax._problem import Array, Problem
from sharpmax.jax.impl import _pallas, xla
from sharpmax.jax.impl._pallas import Blocks, Layout, Sweep
from sharpmax.jax.impl._sweeps import sweeps
from sharpmax.policies import Policy

LEAST = 16  # of every axis of a product


class Launch(NamedTuple):
    """A tile, and how Triton compiles it."""

    blocks: Blocks
    warps: int
    stages: int


LAUNCHES = {
    64: Launch(Blocks(64, 64), 4, 2),
    128: Launch(Blocks(64, 32), 4, 2),
    256: Launch(Blocks(32, 32), 4, 1),
}
"""By the largest width, a power of two."""


def shared_bytes(width: int, launch: Launch, bytes_each: int) -> int:
    """Return an upper bound of the shared memory of the largest kernel: its operands.

    That is the backward pass by keys and values: its own keys and values, queries and gradients of
    every stage, and the tiles that are multiplied with these.
    """
    queries, keys = launch.blocks
    tiles = 2 * width * (keys + launch.stages * queries) + 2 * keys * queries
    return bytes_each * tiles


def unsupported(problem: Problem, policy: Policy | None) -> str | None:
    """Name what the kernels have no code for."""
    backend = jax.default_backend()
    if backend not in ("gpu", "cuda", "rocm") and not (_pallas.INTERPRET or _pallas.ELSEWHERE):
        return f"it serves GPUs, and the default backend is {backend}"
    if problem.query.dtype == jnp.float64:
        return "query: the kernels compute in float32, got float64"
    if _width(problem) > max(LAUNCHES):
        return f"query: the kernels serve widths up to {max(LAUNCHES)}, got {_width(problem)}"
    return None


def _power(size: int) -> int:
    """The power of two that holds a size, as Triton wants it."""
    return max(LEAST, 1 << max(size - 1, 0).bit_length())


def _width(problem: Problem) -> int:
    widths = [problem.query.shape[3], 0 if problem.value is None else problem.value.shape[3]]
    return max(map(_power, widths))


def _run(
    problem: Problem, sweep: Sweep, rows: tuple[Array, ...], by_output: Array | None = None
) -> tuple[Array, ...]:
    from jax.experimental.pallas import triton

    launch = next(launch for width, launch in LAUNCHES.items() if _width(problem) <= width)
    queries, keys = (
        min(block, _power(length))
        for block, length in zip(launch.blocks, (problem.rows[2], problem.keys), strict=True)
    )
    layout = Layout(problem, sweep, rows, by_output, Blocks(queries, keys), _power)
    names = list(layout.arrays)

    def kernel(*refs: Any) -> None:
        arrays = dict(zip(names, refs, strict=False))
        limits_ref = arrays.pop("limits")
        batch, outer, block = (pl.program_id(axis) for axis in range(3))
        limits = [limits_ref[batch, entry] for entry in range(3)]

        def at(name: str, head: Any, i: Any, j: Any) -> tuple[Any, ...]:
            b, head, *places = layout.place(name, batch, head, i, j)
            sizes = layout.block(name)
            return b, head, *(pl.ds(k * n, n) for k, n in zip(places, sizes, strict=True))

        # What belongs to the program is read once, the rest with every tile.
        first_head = outer * layout.group if sweep.over_queries else outer
        own = ("key", "value")
        held = {
            name: ref[at(name, first_head, block, block)]
            for name, ref in arrays.items()
            if name != "bias" and (name in own) == sweep.over_queries
        }

        def visit(head: Any, i: Any, j: Any, state: dict[str, Array]) -> dict[str, Array]:
            parts = {
                name: held[name] if name in held else ref[at(name, head, i, j)]
                for name, ref in arrays.items()
            }
            return layout.step(state, limits, parts, i, j)

        def over(size: int, seen: tuple[Any, Any], step: Any, state: Any) -> Any:
            first, last = seen
            return lax.fori_loop(first // size, (last + size - 1) // size, step, state)

        state = layout.start()
        if sweep.over_queries:
            seen = layout.seeing_queries(limits, block)

            def over_head(entry: Any, state: dict[str, Array]) -> Any:
                head = first_head + entry
                return over(queries, seen, lambda i, state: visit(head, i, block, state), state)

            heads = jnp.int32(0), jnp.int32(layout.group)
            state = lax.fori_loop(*heads, over_head, state)
        else:
            seen = layout.seen_keys(limits, block)
            state = over(keys, seen, lambda j, state: visit(outer, block, j, state), state)
        results = zip(sweep.kinds, refs[len(names) :], layout.finish(state), strict=True)
        for kind, ref, entry in results:
            ref[at(kind, first_head, block, block)] = entry

    return _pallas.call(
        kernel,
        layout,
        grid=layout.grid,
        compiler_params=triton.CompilerParams(num_warps=launch.warps, num_stages=launch.stages),
    )


_SWEEPS = sweeps(_run)
measure = functools.partial(xla.measure, sweeps=_SWEEPS)
temper = functools.partial(xla.temper, sweeps=_SWEEPS)
attend = functools.partial(xla.attend, sweeps=_SWEEPS)
