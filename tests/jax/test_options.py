"""Random options of `jax.nn.dot_product_attention`, all together: outputs, residual, gradients."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sharpmax.jax

QUICKLY = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
"""Compilation takes nearly all the time."""
TOLERANCE = {"float32": 2e-5, "bfloat16": 6e-2}  # jitted on a CPU, theirs has no float16


def drawn(rng: np.random.Generator) -> tuple[list[jax.Array], dict[str, Any]]:
    """Query, key, value and options; each option is there in half of the draws."""
    dtype = rng.choice(list(TOLERANCE))
    batch, queries, keys, key_heads, group, width = (
        int(rng.choice(sizes)) for sizes in ((1, 3), (1, 9, 12), (2, 9, 11), (1, 2), (1, 3), (4, 8))
    )
    heads = key_heads * group
    shapes = [(batch, queries, heads, width)] + 2 * [(batch, keys, key_heads, width)]
    arrays = [jnp.asarray(2 * rng.normal(size=shape), dtype) for shape in shapes]
    if batch == 1 and rng.random() < 0.5:
        arrays = [x[0] for x in arrays]

    def broadcasting() -> list[int]:
        return [int(rng.choice([1, n])) for n in (batch, heads, queries, keys)]

    windows = [0, 2, (3, 1), (0, 4), (-1, 2)]
    every: dict[str, Any] = {
        "is_causal": True,
        "local_window_size": windows[rng.integers(len(windows))],
        "scale": float(rng.normal()),
        "bias": jnp.asarray(rng.normal(size=broadcasting()), rng.choice([dtype, "float32"])),
        "mask": jnp.asarray(rng.random(broadcasting()) < 0.7),
        "query_seq_lengths": jnp.asarray(rng.integers(0, queries + 1, batch), "int32"),
        "key_value_seq_lengths": jnp.asarray(rng.integers(0, keys + 1, batch), "int32"),
    }
    return arrays, {name: x for name, x in every.items() if rng.random() < 0.5}


@pytest.mark.parametrize("implementation", ["cpu", "xla", "reference"])
@pytest.mark.parametrize("seed", range(4))
def test_it_is_jaxs_attention_with_any_options(seed: int, implementation: str) -> None:
    rng = np.random.default_rng([seed, len(implementation)])
    arrays, options = drawn(rng)
    negative = min(np.ravel(options.get("local_window_size", 0))) < 0
    names = [implementation, "xla"] if negative else implementation  # "cpu" refuses these

    def run(function: Any, arrays: Any, options: Any, **chosen: Any) -> Any:
        output, residual = function(*arrays, **options, **chosen, return_residual=True)
        # Rows that see no key: theirs average all values, or have a finite residual.
        seen = jnp.isfinite(ours[1][1]) if ours else residual > -jnp.inf
        weights = jnp.cos(jnp.arange(output.size)).reshape(output.shape) * seen[..., None]
        return (output * weights).sum(dtype="float32"), (output, residual)

    def differentiated(function: Any, **chosen: Any) -> Any:
        rest = {name: x for name, x in options.items() if name != "bias"}
        floating = {name: x for name, x in options.items() if name == "bias"}

        def loss(arrays: Any, floating: Any) -> Any:
            return run(function, arrays, floating | rest, **chosen)

        compiled = jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True)).lower(arrays, floating)
        (_, found), gradients = compiled.compile(compiler_options=QUICKLY)(arrays, floating)
        return gradients, found

    ours: Any = None
    ours = differentiated(sharpmax.jax.attention, implementation=names)
    theirs = differentiated(jax.nn.dot_product_attention)
    seen = np.isfinite(ours[1][1])
    tolerance = TOLERANCE[str(arrays[0].dtype)]
    for one, other in zip(ours[1], theirs[1], strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        mine, other = (np.asarray(x, "float64")[seen] for x in (one, other))
        np.testing.assert_allclose(mine, other, atol=tolerance, rtol=tolerance)
        assert one.ndim == seen.ndim or not np.asarray(one, "float64")[~seen].any()
    for one, other in zip(jax.tree.leaves(ours[0]), jax.tree.leaves(theirs[0]), strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        mine, other = (np.asarray(x, "float64") for x in (one, other))
        size = 1 + np.abs(other).max(initial=0.0)
        np.testing.assert_allclose(mine, other, atol=10 * tolerance * size)
