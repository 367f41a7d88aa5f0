"""Keys and values that are spread over four devices."""

from __future__ import annotations

import os
import subprocess
import sys

PROGRAM = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, PartitionSpec as P
import sharpmax.jax
from sharpmax.policies import EntropyTarget, Exponential, Identity
mesh = Mesh(np.array(jax.devices()), ("k",))
assert mesh.size == 4
rng = np.random.default_rng(0)
query = jnp.asarray(rng.normal(size=(2, 6, 4, 8)), "float32")
key, value = (jnp.asarray(rng.normal(size=(2, 12, 2, 8)), "float32") for _ in range(2))
bias = jnp.asarray(rng.normal(size=(1, 4, 6, 12)), "float32")
sink = jnp.asarray(rng.normal(size=4), "float32")

def attend(axis, policy, options, query, key, value, bias, sink):
    return sharpmax.jax.attention(
        query, key, value, bias, policy=policy, sink=sink, axis_name=axis, return_residual=True,
        **options)

shards = (P(), P(None, "k"), P(None, "k"), P(None, None, None, "k"), P())
lengths = jnp.array([12, 7])
for policy, options, checked in (
    (Exponential(0.5), {"is_causal": True, "implementation": "xla"}, True),
    (Exponential(0.5), {"is_causal": True, "implementation": "cpu"}, True),
    (EntropyTarget(0.8), {"implementation": "cpu"}, True),
    (Exponential(0.5), {"implementation": "cpu"}, False),
    (EntropyTarget(0.8), {"implementation": "reference"}, True),
    (Exponential(0.5), {"key_value_seq_lengths": lengths, "implementation": "reference"}, False),
):
    def loss(function, policy, *arrays):
        output, residual = function(policy, *arrays)
        return (output * jnp.cos(jnp.arange(output.size)).reshape(output.shape)).sum(), residual

    def here(policy, *arrays):
        return attend(None, policy, options, *arrays)

    def spread(policy, *arrays):
        return jax.shard_map(
            lambda policy, *arrays: attend("k", policy, options, *arrays),
            mesh=mesh, in_specs=(P(), *shards), out_specs=P(), check_vma=checked,
        )(policy, *arrays)

    arrays = (query, key, value, bias, sink)
    one, other = (
        jax.jit(jax.value_and_grad(
            lambda *given, f=f: loss(f, *given), argnums=range(6), has_aux=True
        ))(policy, *arrays)
        for f in (here, spread)
    )
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        size = 1 + float(jnp.abs(a).max())
        precision = 2e-3 if isinstance(policy, EntropyTarget) else 1e-5
        np.testing.assert_allclose(a, b, atol=precision * size)
    print(policy, "agrees")

# Over a batch, with a bias that is the same on every device.
many = jnp.asarray(rng.normal(size=(4, 6, 2, 8)), "float32")
square = bias[:, :2, :, :6]
for name in ("xla", "cpu"):
    def plain(q, b):
        return sharpmax.jax.attention(
            q, q, q, b, policy=Exponential(0.5), sink=sink[:2], implementation=name)
    spread = jax.shard_map(plain, mesh=mesh, in_specs=(P("k"), P()), out_specs=P("k"))
    def summed(f, b):
        return (f(many, b) ** 2).sum()
    one, other = (jax.jit(jax.grad(lambda b, f=f: summed(f, b)))(square) for f in (spread, plain))
    np.testing.assert_allclose(one, other, atol=1e-4)
    print(name, "over a batch agrees")
np.testing.assert_allclose(spread(many, square), plain(many, square), atol=1e-5)
print("without jit it agrees")
"""


def test_four_devices_give_what_one_gives() -> None:
    environment = os.environ | {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.count("agrees") == 9
