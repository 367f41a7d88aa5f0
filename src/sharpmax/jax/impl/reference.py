"""Specify attention: short, with materialised weights, on any device."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from sharpmax._statistics import Rows, RowStatistics
from sharpmax.jax._extremes import gap
from sharpmax.jax._problem import Array, Problem
from sharpmax.policies import Policy


def unsupported(problem: Problem, policy: Policy | None) -> str | None:
    """Serve everything."""
    return None


def measure(problem: Problem) -> RowStatistics:
    """Measure all rows."""
    measured = rows_of(problem).statistics
    return measured._replace(count=measured.count.astype(jnp.int32))


def temper(problem: Problem, beta: Array, maximum: Array) -> tuple[Array, Array, Array]:
    """Return sums over the rows at the inverse temperature beta, relative to a maximum."""
    rows = rows_of(problem)
    # The maximum of all devices may lie above the one that the gap is relative to.
    shift = gap(rows.statistics.maximum, maximum)
    weights = rows.unnormalised(beta) * jnp.exp(beta * shift)[..., None]
    distance = rows.gap + shift[..., None]
    moment = weights * distance
    return weights.sum(-1), moment.sum(-1), (moment * distance).sum(-1)


def attend(
    problem: Problem, beta: Array, maximum: Array | None = None
) -> tuple[Array, Array, Array]:
    """Attend at the inverse temperature beta."""
    rows = rows_of(problem)
    unnormalised = rows.unnormalised(beta)
    mass = unnormalised.sum(-1)
    weights = unnormalised / jnp.where(mass == 0, 1.0, mass)[..., None]
    # One, but with the derivative that makes the maximum of the mass a constant.
    held = jax.lax.stop_gradient(rows.statistics.maximum)
    constant = jnp.exp(jnp.where(jnp.isinf(beta), 0.0, beta) * gap(rows.statistics.maximum, held))
    return _mixed(problem, weights), held, mass * constant


def rows_of(problem: Problem) -> Rows:
    """Return the rows of logits, ready to be weighed at any temperature."""
    return Rows(*logits_and_visibility(problem))


def logits_and_visibility(problem: Problem) -> tuple[Array, int, Array]:
    """Return the arguments of `Rows`: logits [batch, heads, queries, keys], axis, visibility."""
    query = problem.query.astype(problem.statistics_dtype)
    key = jnp.repeat(problem.key.astype(problem.statistics_dtype), problem.group, axis=2)
    logits = _product(query, key, problem.scale)
    if problem.soft_cap:
        logits = problem.soft_cap * jnp.tanh(logits / problem.soft_cap)
    visible = jnp.ones(logits.shape, bool)
    queries, keys = jnp.arange(logits.shape[2]), jnp.arange(logits.shape[3])
    if (allowed := problem.visible(queries, keys)) is not None:
        visible &= allowed
    if problem.mask is not None:
        visible &= problem.mask
    if problem.bias is not None:
        bias, shown = problem.added(problem.bias)
        logits, visible = logits + bias, visible & shown
    return logits, -1, visible


def _product(query: Array, key: Array, scale: float) -> Array:
    """Return all products. Those of odd queries and keys have no gradient.

    They may be hidden, and would spoil the gradients of others.
    """
    odd_query = ~jnp.isfinite(query).all(-1)
    odd_key = ~jnp.isfinite(key).all(-1)
    clean = scale * jnp.einsum(
        "btnh,bsnh->bnts",
        jnp.where(odd_query[..., None], 0.0, query),
        jnp.where(odd_key[..., None], 0.0, key),
    )
    odd = odd_query.transpose(0, 2, 1)[..., None] | odd_key.transpose(0, 2, 1)[:, :, None]
    product = scale * jnp.einsum("btnh,bsnh->bnts", *jax.lax.stop_gradient((query, key)))
    return jnp.where(odd, product, clean)


def _mixed(problem: Problem, weights: Array) -> Array:
    """The weighted sum of the values. A value without weight is not there, be it NaN."""
    assert problem.value is not None
    value = jnp.repeat(problem.value.astype(weights.dtype), problem.group, axis=2)

    def mix(weights: Array, value: Array) -> Array:
        return jnp.einsum("bnts,bsnv->btnv", weights, value)

    output = mix(weights, jnp.where(jnp.isfinite(value), value, 0.0))
    seen = (weights != 0).astype(weights.dtype)
    kinds = (jnp.isnan(value), value == jnp.inf, value == -jnp.inf)
    undefined, above, below = (mix(seen, kind.astype(seen.dtype)) > 0 for kind in kinds)
    output = jnp.where(above, jnp.inf, jnp.where(below, -jnp.inf, output))
    undefined |= above & below
    undefined |= jnp.isnan(weights.sum(-1)).transpose(0, 2, 1)[..., None]
    return jnp.where(undefined, jnp.nan, output).astype(problem.query.dtype)
