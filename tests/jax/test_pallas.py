"""Pallas kernels as far as they can be checked without their hardware."""

from __future__ import annotations

import functools
from contextlib import nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.pallas.mosaic.interpret import interpret_pallas_call
from jax.experimental.pallas import tpu

import sharpmax.jax
from sharpmax.jax.impl import _pallas, pallas_gpu, pallas_tpu
from sharpmax.jax.impl._pallas import Blocks
from sharpmax.policies import Constant, Exponential

LOWERED = (("pallas_tpu", "tpu"), ("pallas_gpu", "cuda"), ("pallas_gpu", "rocm"))


@pytest.mark.parametrize(("impl", "platform"), LOWERED)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_kernels_lower_for_their_hardware(
    impl: str, platform: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_pallas, "ELSEWHERE", True)
    arrays = [jax.ShapeDtypeStruct((1, 600, heads, 64), dtype) for heads in (4, 2, 2)]

    def loss(*arrays: Any) -> jax.Array:
        output = sharpmax.jax.attention(
            *arrays,
            policy=Exponential(1.0),
            bias=jnp.zeros((1, 4, 1, 600)),
            local_window_size=100,
            logits_soft_cap=30.0,
            key_value_seq_lengths=jnp.array([500]),
            implementation=impl,
        )
        return output.astype(jnp.float32).sum()

    chip = jax.sharding.AbstractDevice("TPU v5", num_cores=1, platform="tpu")
    mesh = jax.sharding.AbstractMesh((1,), ("x",), abstract_device=chip)
    gradient = jax.jit(jax.grad(loss, (0, 1, 2)))
    with jax.sharding.use_abstract_mesh(mesh) if platform == "tpu" else nullcontext():
        lowered = gradient.trace(*arrays).lower(lowering_platforms=(platform,))
    kernel = "tpu_custom_call" if platform == "tpu" else "__gpu$xla.gpu.triton"
    # Measure and attend, each with a pass by queries and one by keys behind it.
    assert lowered.as_text().count(f"@{kernel}") == 6


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Simulate a TPU of two cores; return what it finds of each kernel."""
    parameters = tpu.InterpretParams(
        detect_races=True,
        out_of_bounds_reads="raise",
        uninitialized_memory="nan",
        num_cores_or_threads=2,
    )
    monkeypatch.setattr(_pallas, "INTERPRET", parameters)
    monkeypatch.setattr(pallas_tpu, "BLOCKS", {512: Blocks(8, 8)})
    found: list[Any] = []
    kind = interpret_pallas_call.RaceDetectionState

    def recorded(**options: Any) -> Any:
        found.append(kind(**options))
        return found[-1]

    monkeypatch.setattr(interpret_pallas_call, "RaceDetectionState", recorded)
    return found


def arrays() -> list[jax.Array]:
    rng = np.random.default_rng(0)
    shapes = [(1, 9, 2, 8), (1, 11, 1, 8), (1, 11, 1, 8)]
    return [jnp.asarray(rng.normal(size=shape), "float32") for shape in shapes]


def test_the_simulator_finds_no_race_and_no_stray_read(simulated: list[Any]) -> None:
    """Reads out of bounds raise, and memory that nobody has written is NaN."""

    def loss(impl: str, *arrays: jax.Array) -> tuple[jax.Array, jax.Array]:
        output = sharpmax.jax.attention(
            *arrays, policy=Exponential(0.5), is_causal=True, implementation=impl
        )
        return (output * jnp.cos(jnp.arange(output.size)).reshape(output.shape)).sum(), output

    ours, exact = (
        jax.jit(jax.grad(functools.partial(loss, impl), (0, 1, 2), has_aux=True))(*arrays())
        for impl in ("pallas_tpu", "reference")
    )
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(exact), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)
    assert [state.races_found for state in simulated] == [False] * 6


@pytest.mark.parametrize("planted", [False, True])
def test_the_simulator_finds_a_race(
    planted: bool, simulated: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys that are spread over the cores of a TPU race for the output."""
    if planted:
        monkeypatch.setattr(pallas_tpu, "SEMANTICS", ("parallel",) * 4)
    query, key, value = arrays()
    one_block = sharpmax.jax.attention(
        query[:, :8, :1], key, value, policy=Constant(2.0), implementation="pallas_tpu"
    )
    jax.block_until_ready(one_block)
    assert [state.races_found for state in simulated] == [planted]


def test_the_tiles_fit_their_memory() -> None:
    for width, blocks in pallas_tpu.BLOCKS.items():
        assert pallas_tpu.vmem_bytes(width, width, blocks) <= 16 * 2**20
    for width, launch in pallas_gpu.LAUNCHES.items():
        assert pallas_gpu.shared_bytes(width, launch, 2) <= 99 * 2**10
