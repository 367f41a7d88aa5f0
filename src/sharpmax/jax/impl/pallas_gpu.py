"""Attend with Pallas kernels for GPUs, by way of Triton, forward; gradients are those of "xla".

One program has one block of queries and goes over the keys that these may see.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from sharpmax._statistics import RowStatistics
from sharpmax.jax._problem import Array, Problem
from sharpmax.jax.impl import _pallas, xla
from sharpmax.jax.impl._pallas import ATTEND, MEASURE, Blocks, Layout, Sweep
from sharpmax.policies import Policy

temper = xla.temper

LEAST = 16  # of every axis of a product


class Launch(NamedTuple):
    """A tile, and how Triton compiles it."""

    blocks: Blocks
    warps: int
    stages: int


LAUNCHES = {
    64: Launch(Blocks(64, 64), 4, 2),
    128: Launch(Blocks(64, 32), 4, 2),
    256: Launch(Blocks(32, 32), 4, 2),
}
"""By the largest width, a power of two."""


def shared_bytes(width: int, launch: Launch, bytes_each: int) -> int:
    """Return an upper bound of the shared memory of the attending kernel: its operands."""
    queries, keys = launch.blocks
    tiles = queries * width + launch.stages * keys * 2 * width + keys * queries
    return bytes_each * tiles


def unsupported(problem: Problem, policy: Policy | None) -> str | None:
    """Name what the kernels have no code for."""
    backend = jax.default_backend()
    if backend not in ("gpu", "cuda", "rocm") and not _pallas.INTERPRET:
        return f"it serves GPUs, and the default backend is {backend}"
    if problem.query.dtype == jnp.float64:
        return "query: the kernels compute in float32, got float64"
    if _width(problem) > max(LAUNCHES):
        return f"query: the kernels serve widths up to {max(LAUNCHES)}, got {_width(problem)}"
    return None


def measure(problem: Problem) -> RowStatistics:
    """Measure all rows."""
    return xla.measure(problem, _measured)


def attend(
    problem: Problem, beta: Array, maximum: Array | None = None
) -> tuple[Array, Array, Array]:
    """Attend at the inverse temperature beta."""
    return xla.attend(problem, beta, maximum, _mixed)


def _measured(problem: Problem) -> tuple[Array, ...]:
    return tuple(_run(problem, (), MEASURE))


def _mixed(problem: Problem, beta: Array, maximum: Array | None) -> tuple[Array, Array, Array]:
    rows = (beta,) if maximum is None else (beta, maximum)
    output, peak, mass = _run(problem, rows, ATTEND)
    return output, peak, mass


def _power(size: int) -> int:
    """The power of two that holds a size, as Triton wants it."""
    return max(LEAST, 1 << max(size - 1, 0).bit_length())


def _width(problem: Problem) -> int:
    widths = [problem.query.shape[3], 0 if problem.value is None else problem.value.shape[3]]
    return max(map(_power, widths))


def _run(problem: Problem, rows: tuple[Array, ...], sweep: Sweep) -> list[Array]:
    from jax.experimental.pallas import triton

    launch = next(launch for width, launch in LAUNCHES.items() if _width(problem) <= width)
    queries, keys = (
        min(block, _power(length))
        for block, length in zip(launch.blocks, (problem.rows[2], problem.keys), strict=True)
    )
    layout = Layout(problem, rows, Blocks(queries, keys), _power)
    width = 0 if layout.value is None else layout.value.shape[3]

    def kernel(*refs: Any) -> None:
        given, results = refs[: len(specs)], refs[len(specs) :]
        limits_ref, query_ref, key, value, bias, row_refs = layout.unpacked(given)
        query_block = pl.program_id(2)
        limits = [limits_ref[entry] for entry in range(3)]
        held = [row[...] for row in row_refs]
        query = query_ref[...]

        def visit(block: Any, state: tuple[Array, ...]) -> tuple[Array, ...]:
            at = pl.ds(block * keys, keys)
            added = None
            if bias is not None:
                added = bias[...] if bias.shape[0] == 1 else bias[at, :]
            logits = layout.logits(limits, query, key[at, :], added, query_block, block * keys)
            return sweep.step(state, logits, None if value is None else value[at, :], *held)

        first, last = layout.seen_keys(limits, query_block)
        start = sweep.start((1, queries), width, *held)
        bounds = (first // keys, (last + keys - 1) // keys)
        state = lax.fori_loop(*bounds, visit, start)
        for ref, entry in zip(results, sweep.finish(state), strict=True):
            ref[...] = entry

    def of_queries(b: Any, h: Any, i: Any) -> tuple[Any, ...]:
        return b, h, i, 0

    def of_keys(b: Any, h: Any, i: Any) -> tuple[Any, ...]:
        return b, h // layout.group, 0, 0

    def of_rows(b: Any, h: Any, i: Any) -> tuple[Any, ...]:
        return b, h, 0, i

    specs = [
        pl.BlockSpec((None, 4), lambda b, *_: (b, 0)),
        pl.BlockSpec((None, None, queries, layout.query.shape[3]), of_queries),
        pl.BlockSpec((None, None, *layout.key.shape[2:]), of_keys),
    ]
    if layout.value is not None:
        specs.append(pl.BlockSpec((None, None, *layout.value.shape[2:]), of_keys))
    if layout.bias is not None:
        shape = layout.bias.shape

        def of_bias(b: Any, h: Any, i: Any) -> tuple[Any, ...]:
            return tuple(0 if n == 1 else k for n, k in zip(shape, (b, h, 0, i), strict=True))

        columns = 1 if shape[3] == 1 else queries
        specs.append(pl.BlockSpec((None, None, shape[2], columns), of_bias))
    specs += [pl.BlockSpec((None, None, 1, queries), of_rows) for _ in rows]
    return _pallas.call(
        kernel,
        layout,
        sweep,
        grid=layout.grid,
        in_specs=specs,
        out_specs=[
            pl.BlockSpec((None, None, width if kind == "output" else 1, queries), of_rows)
            for kind in sweep.results
        ],
        compiler_params=triton.CompilerParams(num_warps=launch.warps, num_stages=launch.stages),
    )
