"""Attend with Pallas kernels for TPUs, forward and backward.

One step of the grid is one tile. The last axis of the grid goes over the tiles of a block of
queries, or of keys, and is sequential; what the block has gathered stays in VMEM meanwhile.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from sharpmax.jax._problem import Array, Problem
from sharpmax.jax.impl import _pallas, xla
from sharpmax.jax.impl._pallas import Blocks, Layout, Sweep
from sharpmax.jax.impl._sweeps import sweeps
from sharpmax.policies import Policy

LANES = 128

SEMANTICS: Any = ("parallel", "parallel", "parallel", "arbitrary")
"""Blocks may be spread over the cores of a chip, the tiles of a block may not."""

BLOCKS = {128: Blocks(256, 512), 256: Blocks(256, 256), 512: Blocks(128, 256)}
"""By the largest width. `vmem_bytes` is what they take; a core has 16 MiB by default."""


def vmem_bytes(width: int, value_width: int, blocks: Blocks) -> int:
    """Return the VMEM of the largest kernel, in bytes, at four bytes per number.

    That is the backward pass by keys and values, with a bias. The pipeline has two buffers for each
    array. A tile has about six copies in flight: logits, distances, weights, their gradient, that
    of the logits, and one that is being computed.
    """
    wide, wide_value = (-(-size // LANES) * LANES for size in (width, value_width))
    queries, keys = blocks
    arrays = (queries + keys) * (wide + wide_value) + keys * queries + 4 * 8 * queries
    results = keys * (wide + wide_value)
    return 4 * (2 * (arrays + results) + results + 6 * keys * queries)


def unsupported(problem: Problem, policy: Policy | None) -> str | None:
    """Name what the kernels have no code for."""
    backend = jax.default_backend()
    if backend != "tpu" and not (_pallas.INTERPRET or _pallas.ELSEWHERE):
        return f"it serves TPUs, and the default backend is {backend}"
    if problem.query.dtype not in (jnp.float32, jnp.bfloat16):
        return f"query: TPUs compute in float32 and bfloat16, got {problem.query.dtype}"
    if _width(problem) > max(BLOCKS):
        return f"query: the kernels serve widths up to {max(BLOCKS)}, got {_width(problem)}"
    return None


def _width(problem: Problem) -> int:
    width = max(problem.query.shape[3], 0 if problem.value is None else problem.value.shape[3])
    return int(width)


def _run(
    problem: Problem, sweep: Sweep, rows: tuple[Array, ...], by_output: Array | None = None
) -> tuple[Array, ...]:
    from jax.experimental.pallas import tpu as pltpu

    blocks = next(blocks for width, blocks in BLOCKS.items() if _width(problem) <= width)
    # The last axes of a block are whole lanes: fewer keys or queries fill one block.
    least = min(LANES, *blocks)
    queries, keys = (
        min(block, -(-length // least) * least)
        for block, length in zip(blocks, (problem.rows[2], problem.keys), strict=True)
    )
    blocks = Blocks(queries, keys)
    layout = Layout(problem, sweep, rows, by_output, blocks, lambda width: width)
    names = list(layout.arrays)
    steps = layout.key_blocks
    if sweep.over_queries:
        steps = layout.group * layout.query_blocks

    def tile(head: Any, block: Any, step: Any) -> tuple[Any, Any, Any]:
        """Query head, block of queries and block of keys."""
        if not sweep.over_queries:
            return head, block, step
        count = jnp.int32(layout.query_blocks)
        return head * layout.group + jax.lax.div(step, count), jax.lax.rem(step, count), block

    def kernel(*refs: Any) -> None:
        arrays = dict(zip(names, refs, strict=False))
        results = refs[len(names) : len(names) + len(sweep.state)]
        scratch = dict(zip(sweep.state, refs[len(names) + len(results) :], strict=True))
        batch, step = pl.program_id(0), pl.program_id(3)
        _, i, j = tile(pl.program_id(1), pl.program_id(2), step)
        limits_ref = arrays.pop("limits")
        limits = [limits_ref[batch, entry] for entry in range(3)]

        def keep(state: dict[str, Array]) -> None:
            for name, entry in state.items():
                scratch[name][...] = entry

        @pl.when(step == 0)
        def start() -> None:
            keep(layout.start())

        @pl.when(layout.is_seen(limits, i, j))
        def take() -> None:
            state = {name: ref[...] for name, ref in scratch.items()}
            parts = {name: ref[...] for name, ref in arrays.items()}
            keep(layout.step(state, limits, parts, i, j))

        @pl.when(step == steps - 1)
        def finish() -> None:
            state = {name: ref[...] for name, ref in scratch.items()}
            for ref, entry in zip(results, layout.finish(state), strict=True):
                ref[...] = entry

    def spec(name: str) -> Any:
        if name == "limits":
            return pl.BlockSpec(memory_space=pltpu.SMEM)
        return pl.BlockSpec(
            (None, None, *layout.block(name)),
            lambda b, head, block, step: layout.place(name, b, *tile(head, block, step)),
        )

    return _pallas.call(
        kernel,
        layout,
        grid=(*layout.grid, steps),
        in_specs=[spec(name) for name in names],
        out_specs=[spec(kind) for kind in sweep.kinds],
        scratch_shapes=[pltpu.VMEM(entry.shape, entry.dtype) for entry in layout.start().values()],
        compiler_params=pltpu.CompilerParams(dimension_semantics=SEMANTICS),
    )


_SWEEPS = sweeps(_run)
measure = functools.partial(xla.measure, sweeps=_SWEEPS)
temper = functools.partial(xla.temper, sweeps=_SWEEPS)
attend = functools.partial(xla.attend, sweeps=_SWEEPS)
