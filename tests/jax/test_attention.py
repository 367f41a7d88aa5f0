"""Attention for JAX: JAX's own arguments, gradients by policies, and transformations.

The common tests of all implementations are in tests/attention.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sharpmax.jax
from sharpmax.jax._api import IMPLEMENTATIONS
from sharpmax.jax.impl import _pallas, _tiles, pallas_gpu, pallas_tpu
from sharpmax.jax.impl._pallas import Blocks
from sharpmax.policies import (
    Constant,
    EntropyTarget,
    Exponential,
    Hard,
    Identity,
    LogLength,
)

every_impl = pytest.mark.parametrize("impl", list(IMPLEMENTATIONS))


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several tiles, of which the last is cut off, also for small problems."""
    set_tiles(monkeypatch, 4, 5)
    monkeypatch.setattr(_pallas, "INTERPRET", True)


def set_tiles(monkeypatch: pytest.MonkeyPatch, queries: int, keys: int) -> None:
    blocks = Blocks(queries, keys)
    monkeypatch.setattr(_tiles, "QUERIES", queries)
    monkeypatch.setattr(_tiles, "KEYS", keys)
    monkeypatch.setattr(pallas_tpu, "BLOCKS", {512: blocks})
    monkeypatch.setattr(pallas_gpu, "LAUNCHES", {256: pallas_gpu.Launch(blocks, 4, 2)})


def made(dtype: str = "float32", queries: int = 9, keys: int = 11) -> list[jax.Array]:
    rng = np.random.default_rng(0)
    shapes = [(2, queries, 4, 8), (2, keys, 2, 8), (2, keys, 2, 8)]
    return [jnp.asarray(rng.normal(size=shape), dtype) for shape in shapes]


def numbers(*shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(1).normal(size=shape), "float32")


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal, window": {"is_causal": True, "local_window_size": 3, "scale": 0.7},
    "two sides": {"local_window_size": (2, 1), "bias": numbers(1, 1, 9, 11)},
    "mask, bias": {"mask": numbers(2, 1, 1, 11) > -1, "bias": numbers(4, 9, 11)},
    "lengths": {
        "query_seq_lengths": np.array([9, 5], "int32"),
        "key_value_seq_lengths": np.array([4, 11], "int32"),
    },
}


@every_impl
@pytest.mark.parametrize(
    ("name", "dtype"), [*((name, "float32") for name in OPTIONS), ("mask, bias", "bfloat16")]
)
def test_without_a_policy_it_is_jaxs_attention(impl: str, name: str, dtype: str) -> None:
    arrays, options = made(dtype), dict(OPTIONS[name], return_residual=True)
    ours = sharpmax.jax.attention(*arrays, implementation=impl, **options)
    theirs = jax.nn.dot_product_attention(*arrays, **options)
    seen = np.ones((2, 9), bool)
    if name == "lengths":  # theirs has -2.4e38 in rows that see nothing
        seen[1, 5:] = False
        assert np.isneginf(np.asarray(ours[1], "float32")[~seen]).all()
        assert not np.asarray(ours[0], "float32")[~seen].any()
    tolerance = 2e-6 if dtype == "float32" else 4e-2
    for one, other in zip(ours, theirs, strict=True):
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        difference = np.abs(np.asarray(one, "float32") - np.asarray(other, "float32"))
        assert difference[seen].max() < tolerance


def test_without_a_batch() -> None:
    arrays = [x[0] for x in made()]
    ours = sharpmax.jax.attention(*arrays, return_residual=True, return_statistics=True)
    theirs = jax.nn.dot_product_attention(*arrays, return_residual=True)
    for one, other in zip(ours[:2], theirs, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-6)
    assert ours[2].mass.shape == (9, 4)


KINDS = {
    "Exponential, causal": (Exponential(0.5), {"is_causal": True}),
    "target, capped": (EntropyTarget(0.7), {"logits_soft_cap": 1.5, "bias": numbers(1, 4, 9, 11)}),
    "at the limit": (EntropyTarget(0.0, 2.0), {}),
    "causal, capped": (
        Exponential(0.5),
        {"is_causal": True, "logits_soft_cap": 1.5, "bias": numbers(1, 4, 1, 11)},
    ),
    "hard, sink": (Hard(), {"sink": numbers(4)}),
    "one per head": (Exponential(jnp.array([0.1, 0.5, 1.0, 2.0])), OPTIONS["lengths"]),
}


@pytest.mark.parametrize(
    ("impl", "name"),
    [
        *((impl, name) for impl in ("cpu", "xla") for name in KINDS if name != "causal, capped"),
        *((impl, "causal, capped") for impl in IMPLEMENTATIONS if impl.startswith("pallas")),
    ],
)
def test_gradients_are_those_of_the_specification(impl: str, name: str) -> None:
    policy, options = KINDS[name]
    arrays = made()
    floating = {n: x for n, x in options.items() if n in ("bias", "sink")}
    rest = {n: x for n, x in options.items() if n not in floating}

    def loss(impl: str, arrays: Any, policy: Any, floating: Any) -> jax.Array:
        output = sharpmax.jax.attention(
            *arrays, policy=policy, implementation=impl, **floating, **rest
        )
        return (output * jnp.cos(jnp.arange(output.size)).reshape(output.shape)).sum()

    ours, theirs = (
        jax.jit(jax.grad(functools.partial(loss, impl), argnums=(0, 1, 2)))(
            arrays, policy, floating
        )
        for impl in (impl, "reference")
    )
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        size = 1.0 + float(jnp.abs(other).max())
        np.testing.assert_allclose(one, other, atol=5e-4 * size)
    assert any(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(theirs[0]))


def test_gradients_of_statistics_that_see_the_maximum() -> None:
    """A rule that reads the mass alone depends on the maximum of the row, ties included."""
    from dataclasses import dataclass

    from sharpmax.policies import Policy

    @dataclass(frozen=True, eq=False)
    class LargestWeight(Policy, register=False):
        def inverse_temperature(self, statistics: Any, tempered: Any = None) -> Any:
            return 2.0 - 1.0 / statistics.mass

    query, key, value = made()
    key = key.at[:, 3].set(key[:, 7])

    def loss(impl: str, query: jax.Array, key: jax.Array) -> jax.Array:
        output = sharpmax.jax.attention(
            query, key, value, policy=LargestWeight(), implementation=impl
        )
        return (output**2).sum()

    cpu, xla, exact = (
        jax.grad(functools.partial(loss, impl), (0, 1))(query, key)
        for impl in ("cpu", "xla", "reference")
    )
    for one, other, expected in zip(cpu, xla, exact, strict=True):
        np.testing.assert_allclose(one, expected, atol=1e-4)
        np.testing.assert_allclose(other, expected, atol=1e-4)


@pytest.mark.parametrize("impl", ["cpu", "xla"])
def test_vmap_checkpoint_and_export(impl: str) -> None:
    query, key, value = made()

    def attend(query: jax.Array, reference: jax.Array) -> jax.Array:
        return sharpmax.jax.attention(
            query, key, value, policy=Exponential(reference), implementation=impl
        )

    references = jnp.array([0.2, 1.0])
    mapped = jax.vmap(attend, (None, 0))(query, references)
    for one, reference in zip(mapped, references, strict=True):
        np.testing.assert_allclose(one, attend(query, reference), atol=1e-5)

    def loss(function: Any, query: jax.Array) -> jax.Array:
        return (function(query, references[0]) ** 2).sum()

    plain, saved = (
        jax.grad(functools.partial(loss, f))(query) for f in (attend, jax.checkpoint(attend))
    )
    np.testing.assert_allclose(plain, saved, atol=1e-6)
    # The kernels are a custom call, and JAX wants to hear that the reader has them, too.
    allowed = [jax.export.DisabledSafetyCheck.custom_call("sharpmax")]
    exported = jax.export.export(jax.jit(attend), disabled_checks=allowed)(query, references[0])
    again = jax.export.deserialize(exported.serialize())
    np.testing.assert_allclose(again.call(query, references[0]), mapped[0], atol=1e-5)


@every_impl
def test_hidden_numbers_may_be_anything_and_empty_rows_are_zeros(impl: str) -> None:
    query, key, value = made()
    mask = jnp.ones((9, 11), bool).at[:, 3].set(False).at[4].set(False)
    clean = sharpmax.jax.attention(
        query, key, value, mask=mask, policy=Exponential(0.5), implementation=impl
    )
    key, value = key.at[:, 3].set(jnp.nan), value.at[:, 3].set(jnp.inf)

    def loss(query: jax.Array) -> tuple[jax.Array, jax.Array]:
        output = sharpmax.jax.attention(
            query, key, value, mask=mask, policy=Exponential(0.5), implementation=impl
        )
        return (output**2).sum(), output

    gradient, output = jax.grad(loss, has_aux=True)(query)
    np.testing.assert_allclose(output, clean, atol=1e-6)
    assert not np.asarray(output[:, 4]).any()
    assert np.isfinite(gradient).all()
    # A value that is seen comes through.
    shown = sharpmax.jax.attention(query, value, value, implementation=impl)
    assert np.isnan(shown).any()


def test_statistics_alone() -> None:
    query, key, value = made()
    _, both = sharpmax.jax.attention(query, key, value, return_statistics=True)
    alone = sharpmax.jax.attention_statistics(query, key)
    for one, other in zip(alone, both, strict=True):
        np.testing.assert_array_equal(one, other)
    assert alone.count.shape == (2, 9, 4)


def test_a_scale_can_be_learned() -> None:
    arrays = made()
    ours, theirs = (
        jax.grad(lambda s, f=f: (f(*arrays, scale=s) ** 2).sum())(jnp.float32(0.3))
        for f in (sharpmax.jax.attention, jax.nn.dot_product_attention)
    )
    np.testing.assert_allclose(ours, theirs, rtol=1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"implementation": "fast"}, "implementation: expected one of"),
        ({"implementation": ()}, r"implementation: expected one of .*, got \(\)"),
        ({"policy": 2.0}, "policy: expected a sharpmax policy or None, got 2.0"),
        ({"mask": np.ones((9, 11))}, "mask: expected booleans, got float"),
        ({"bias": np.ones((3, 9, 11))}, "bias: expected a shape that broadcasts to"),
        ({"sink": np.ones(3, "float32")}, "sink: expected one logit per query head"),
        ({"scale": 1e300}, "scale: expected 0 or a normal number"),
        ({"logits_soft_cap": 0.0}, "logits_soft_cap: expected a number of at least"),
        ({"local_window_size": 1.5}, "local_window_size: expected integers, got 1.5"),
        ({"key_value_seq_lengths": np.ones(3, int)}, "key_value_seq_lengths: expected shape"),
        ({"policy": Constant([1.0, 2.0, 3.0])}, "for each of the 4 query heads, got 3"),
    ],
)
def test_what_is_wrong_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        sharpmax.jax.attention(*made(), **options)


def test_policies_are_pytrees() -> None:
    policy = LogLength(scale=2.0, train_length=16)
    doubled = jax.tree.map(lambda x: 2 * x, policy)
    assert doubled == LogLength(scale=4.0, train_length=16)
    assert jax.tree.leaves(Identity()) == []
