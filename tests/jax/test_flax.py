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
    # Causal by the call, by the options or by the mask, it is the same.
    for function in (flax_attention_fn(), flax_attention_fn(is_causal=True)):
        causal = layer(function)(x, is_causal=True, deterministic=True)
        np.testing.assert_allclose(causal, plain, atol=1e-5)
    causal = layer(flax_attention_fn(is_causal=True))(x, deterministic=True)
    np.testing.assert_allclose(causal, plain, atol=1e-5)


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
    dropping = linen.MultiHeadDotProductAttention(
        num_heads=4, attention_fn=flax_attention_fn(), dropout_rate=0.1
    )
    with pytest.raises(NotImplementedError, match="dropout_rate: expected 0 in training"):
        dropping.apply(weights, x, deterministic=False, rngs={"dropout": jax.random.key(1)})
    quantised = linen.MultiHeadDotProductAttention(
        num_heads=4,
        attention_fn=flax_attention_fn(),
        qk_attn_weights_einsum_cls=lambda: jnp.einsum,
        attn_weights_value_einsum_cls=lambda: jnp.einsum,
    )
    with pytest.raises(NotImplementedError, match="qk_attn_weights_einsum: expected None"):
        quantised.apply(weights, x)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"dropout_rate": 0.1}, "dropout_rate: expected 0"),  # which is not deterministic
        ({"precision": "highest"}, "precision: expected None, got 'highest'"),
        ({"module": object()}, "module: the weights are not computed"),
    ],
)
def test_what_is_not_done_is_refused(option: dict[str, object], message: str) -> None:
    x = jnp.ones((2, 7, 4, 8))
    with pytest.raises(NotImplementedError, match=message):
        flax_attention_fn()(x, x, x, **option)
