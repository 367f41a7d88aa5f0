"""The attention function of Flax's modules."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sharpmax.jax import flax_attention_fn
from sharpmax.policies import Exponential

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def test_nnx() -> None:
    nnx = pytest.importorskip("flax.nnx")

    def layer(function: object) -> object:
        return nnx.MultiHeadAttention(
            4, 16, decode=False, rngs=nnx.Rngs(0), attention_fn=function, dropout_rate=0.1
        )

    x = jax.random.normal(jax.random.key(0), (2, 7, 16))
    mask = nnx.make_causal_mask(jnp.ones((2, 7)))
    plain = layer(nnx.dot_product_attention)(x, mask=mask, deterministic=True)
    ours = layer(flax_attention_fn())(x, mask=mask, deterministic=True)
    np.testing.assert_allclose(ours, plain, atol=1e-5)
    sharp = layer(flax_attention_fn(Exponential(0.5)))(x, mask=mask, deterministic=True)
    assert np.abs(sharp - plain).max() > 1e-3
    with pytest.raises(NotImplementedError, match="dropout_rate: expected 0 in training"):
        layer(flax_attention_fn())(x, deterministic=False, rngs=nnx.Rngs(1))


def test_linen() -> None:
    linen = pytest.importorskip("flax.linen")
    x = jax.random.normal(jax.random.key(0), (2, 7, 16))
    mask = linen.make_causal_mask(jnp.ones((2, 7)))
    plain = linen.MultiHeadDotProductAttention(num_heads=4)
    weights = plain.init(jax.random.key(0), x)
    ours = linen.MultiHeadDotProductAttention(num_heads=4, attention_fn=flax_attention_fn())
    np.testing.assert_allclose(
        ours.apply(weights, x, mask=mask), plain.apply(weights, x, mask=mask), atol=1e-5
    )
