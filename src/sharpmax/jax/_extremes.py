"""Differences and decays of logits that may be infinite, and of betas that may be."""

from __future__ import annotations

import jax.numpy as jnp

from sharpmax.jax._problem import Array

FAR = 1e18
"""exp(-FAR) is zero, and the square of it is finite in single precision."""


def gap(value: Array, maximum: Array) -> Array:
    """value - maximum, where value <= maximum; 0 if both are the same infinity."""
    infinite = jnp.isinf(value) | jnp.isinf(maximum)
    finite = jnp.where(infinite, 0.0, value) - jnp.where(infinite, 0.0, maximum)
    finite = jnp.maximum(finite, -FAR)
    return jnp.where(infinite, jnp.where(value == maximum, 0.0, -FAR), finite)


def decayed(beta: Array, value: Array, maximum: Array) -> Array:
    """exp(beta (value - maximum)), also for an infinite beta."""
    distance = gap(value, maximum)
    hard = jnp.isinf(beta)
    soft = jnp.exp(jnp.where(hard, 1.0, beta) * distance)
    return jnp.where(hard & (distance < 0), 0.0, soft)
