"""Attend with Pallas kernels for TPUs: forward passes; gradients are those of "xla".

One step of the grid is one tile. The last axis of the grid goes over the keys and is sequential;
what a block of queries has gathered stays in VMEM meanwhile.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from sharpmax._statistics import RowStatistics
from sharpmax.jax._problem import Array, Problem
from sharpmax.jax.impl import _pallas, xla
from sharpmax.jax.impl._pallas import ATTEND, MEASURE, Blocks, Layout, Sweep
from sharpmax.policies import Policy

temper = xla.temper

LANES = 128

BLOCKS = {128: Blocks(256, 512), 256: Blocks(256, 256), 512: Blocks(128, 256)}
"""By the largest width. `vmem_bytes` is what they take; a core has 16 MiB by default."""


def vmem_bytes(width: int, value_width: int, blocks: Blocks) -> int:
    """Return the VMEM of the attending kernel with a bias, in bytes, at four bytes per number.

    The pipeline has two buffers for each array. A tile has about four copies in flight: logits,
    distances, weights, and one that is being computed.
    """
    wide, wide_value = (-(-size // LANES) * LANES for size in (width, value_width))
    queries, keys = blocks
    arrays = queries * wide + keys * (wide + wide_value) + keys * queries
    results = queries * (value_width + 2 * 8 + 2 * 8)  # rows take eight sublanes
    scratch = queries * (value_width + 2 * 8)
    return 4 * (2 * (arrays + results) + scratch + 4 * keys * queries)


def unsupported(problem: Problem, policy: Policy | None) -> str | None:
    """Name what the kernels have no code for."""
    backend = jax.default_backend()
    if backend != "tpu" and not _pallas.INTERPRET:
        return f"it serves TPUs, and the default backend is {backend}"
    if problem.query.dtype not in (jnp.float32, jnp.bfloat16):
        return f"query: TPUs compute in float32 and bfloat16, got {problem.query.dtype}"
    if _width(problem) > max(BLOCKS):
        return f"query: the kernels serve widths up to {max(BLOCKS)}, got {_width(problem)}"
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


def _width(problem: Problem) -> int:
    width = max(problem.query.shape[3], 0 if problem.value is None else problem.value.shape[3])
    return int(width)


def _run(problem: Problem, rows: tuple[Array, ...], sweep: Sweep) -> list[Array]:
    from jax.experimental.pallas import tpu as pltpu

    blocks = next(blocks for width, blocks in BLOCKS.items() if _width(problem) <= width)
    # The last axes of a block are whole lanes: fewer keys or queries fill one block.
    least = min(LANES, *blocks)
    queries, keys = (
        min(block, -(-length // least) * least)
        for block, length in zip(blocks, (problem.rows[2], problem.keys), strict=True)
    )
    layout = Layout(problem, rows, Blocks(queries, keys), lambda width: width)
    width = 0 if layout.value is None else layout.value.shape[3]
    steps = layout.key_blocks

    def kernel(*refs: Any) -> None:
        given = refs[: len(specs)]
        results = refs[len(specs) : len(specs) + len(sweep.results)]
        scratch = refs[len(specs) + len(sweep.results) :]
        limits_ref, query, key, value, bias, row_refs = layout.unpacked(given)
        batch, query_block, step = pl.program_id(0), pl.program_id(2), pl.program_id(3)
        limits = [limits_ref[batch, entry] for entry in range(3)]
        held = [row[...] for row in row_refs]

        @pl.when(step == 0)
        def _() -> None:
            for ref, entry in zip(scratch, sweep.start((1, queries), width, *held), strict=True):
                ref[...] = entry

        @pl.when(layout.is_seen(limits, query_block, step))
        def _() -> None:
            added = None if bias is None else bias[...]
            logits = layout.logits(limits, query[...], key[...], added, query_block, step * keys)
            values = None if value is None else value[...]
            state = sweep.step(tuple(ref[...] for ref in scratch), logits, values, *held)
            for ref, entry in zip(scratch, state, strict=True):
                ref[...] = entry

        @pl.when(step == steps - 1)
        def _() -> None:
            state = tuple(ref[...] for ref in scratch)
            for ref, entry in zip(results, sweep.finish(state), strict=True):
                ref[...] = entry

    def of_queries(b: Any, h: Any, i: Any, j: Any) -> tuple[Any, ...]:
        return b, h, i, 0

    def of_keys(b: Any, h: Any, i: Any, j: Any) -> tuple[Any, ...]:
        return b, h // layout.group, j, 0

    def of_rows(b: Any, h: Any, i: Any, j: Any) -> tuple[Any, ...]:
        return b, h, 0, i

    specs = [
        pl.BlockSpec(memory_space=pltpu.SMEM),
        pl.BlockSpec((None, None, queries, layout.query.shape[3]), of_queries),
        pl.BlockSpec((None, None, keys, layout.key.shape[3]), of_keys),
    ]
    if layout.value is not None:
        specs.append(pl.BlockSpec((None, None, keys, width), of_keys))
    if layout.bias is not None:
        shape = layout.bias.shape

        def of_bias(*at: Any) -> tuple[Any, ...]:
            b, h, i, j = at
            return tuple(0 if n == 1 else k for n, k in zip(shape, (b, h, j, i), strict=True))

        tile = tuple(1 if n == 1 else k for n, k in zip(shape[2:], (keys, queries), strict=True))
        specs.append(pl.BlockSpec((None, None, *tile), of_bias))
    specs += [pl.BlockSpec((None, None, 1, queries), of_rows) for _ in rows]
    kept = jax.eval_shape(
        lambda *held: sweep.start((1, queries), width, *held),
        *[jax.ShapeDtypeStruct((1, queries), jnp.float32) for _ in rows],
    )
    return _pallas.call(
        kernel,
        layout,
        sweep,
        grid=(*layout.grid, steps),
        in_specs=specs,
        out_specs=[
            pl.BlockSpec((None, None, width if kind == "output" else 1, queries), of_rows)
            for kind in sweep.results
        ],
        scratch_shapes=[pltpu.VMEM(entry.shape, entry.dtype) for entry in kept],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "parallel", "arbitrary")
        ),
    )
