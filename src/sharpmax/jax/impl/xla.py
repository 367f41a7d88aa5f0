"""Attend in tiles of queries and keys with plain JAX, on any backend, in linear memory.

No derivative goes through the loops: backward passes compute the logits of each tile again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from sharpmax._statistics import RowStatistics
from sharpmax.jax._extremes import FAR, decayed
from sharpmax.jax._problem import Array, Problem, without
from sharpmax.jax._temperature import through_statistics
from sharpmax.jax.impl import _tiles as tiles
from sharpmax.policies import Policy

Measured = Callable[[Problem], tuple[Array, ...]]
"""Problem -> maximum, mass, moment, count."""
Mixed = Callable[[Problem, Array, Array | None], tuple[Array, Array, Array]]
"""Problem, beta, maximum or None -> output, maximum, mass."""


def unsupported(problem: Problem, policy: Policy | None) -> str | None:
    """Serve everything."""
    return None


def measure(problem: Problem, measured: Measured | None = None) -> RowStatistics:
    """Measure all rows. Other implementations bring their own forward pass, `measured`."""
    problem = without(problem, "value", "sink")
    if tiles.is_empty(problem):
        return _nothing(problem)
    return RowStatistics(*_measure(measured or _measured, problem))


def temper(problem: Problem, beta: Array, maximum: Array) -> tuple[Array, Array, Array]:
    """Return sums over the rows at the inverse temperature beta, relative to a maximum."""
    problem = without(problem, "value", "sink")
    if tiles.is_empty(problem):
        zeros = _nothing(problem).mass
        return zeros, zeros, zeros
    mass, moment, second = _temper(problem, beta, maximum)
    return mass, moment, second


def attend(
    problem: Problem, beta: Array, maximum: Array | None = None, mixed: Mixed | None = None
) -> tuple[Array, Array, Array]:
    """Attend at the inverse temperature beta.

    Other implementations bring their own forward pass, `mixed`, which takes what is infinite or NaN
    in the values as 0.
    """
    problem = without(problem, "sink")
    if tiles.is_empty(problem):
        assert problem.value is not None
        nothing = _nothing(problem)
        shape = (*problem.query.shape[:3], problem.value.shape[3])
        return jnp.zeros(shape, problem.query.dtype), nothing.maximum, nothing.mass
    output, maximum, mass = _attend(mixed or _mix, problem, beta, maximum)
    return output, maximum, mass


def _nothing(problem: Problem) -> RowStatistics:
    zeros = jnp.zeros(problem.rows, problem.statistics_dtype)
    return RowStatistics(zeros - jnp.inf, zeros, zeros, zeros.astype(jnp.int32))


# Statistics.


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _measure(measured: Measured, problem: Problem) -> tuple[Array, ...]:
    return measured(problem)


def _measured(problem: Problem) -> tuple[Array, ...]:
    def step(
        state: RowStatistics, logits: Array, rows: tuple[Array, ...], value: None
    ) -> RowStatistics:
        return state.merge(_statistics(logits))

    start = RowStatistics(-jnp.inf, 0.0, 0.0, 0)
    rows, _ = tiles.forward(problem, (), start, step, lambda state, _: (tuple(state), None))
    return rows


def _statistics(logits: Array) -> RowStatistics:
    """Statistics of the rows of a tile, where -inf is not visible."""
    maximum = logits.max(-1)
    # Equal infinities are no distance apart. An empty row is corrected below.
    peak = maximum[..., None]
    distance = jnp.where(logits == peak, 0.0, jnp.maximum(logits - peak, -FAR))
    weights = jnp.exp(distance)
    occupied = maximum != -jnp.inf
    return RowStatistics(
        maximum,
        jnp.where(occupied, weights.sum(-1), 0.0),
        jnp.where(occupied, (weights * distance).sum(-1), 0.0),
        (logits != -jnp.inf).sum(-1, dtype=jnp.int32),
    )


def _measure_forward(measured: Measured, problem: Problem) -> tuple[Any, Any]:
    statistics = measured(problem)
    return statistics, (problem, statistics)


def _measure_backward(_: Measured, kept: Any, given: Any) -> tuple[Problem]:
    problem, (maximum, mass, moment, _) = kept
    by_maximum, by_mass, by_moment, _ = given
    (constant, linear), to_maximum = through_statistics(
        mass, moment, by_maximum, by_mass, by_moment
    )
    ties = lax.cond(
        jnp.any(to_maximum != 0), lambda: _ties(problem, maximum), lambda: jnp.ones_like(mass)
    )

    def weigh(logits: Array, rows: tuple[Array, ...], *_: None) -> tuple[None, Array, None]:
        peak, constant, linear, share = (row[..., None] for row in rows)
        distance = jnp.where(logits == peak, 0.0, jnp.maximum(logits - peak, -FAR))
        gradient = jnp.exp(distance) * (constant + linear * distance)
        gradient += jnp.where(logits == peak, share, 0.0)
        return None, jnp.where(jnp.isfinite(peak), gradient, 0.0), None

    rows = (maximum, constant, linear, to_maximum / jnp.maximum(ties, 1.0))
    return (tiles.backward(problem, rows, None, weigh)[0],)


def _ties(problem: Problem, maximum: Array) -> Array:
    """How many logits of each row are its maximum."""

    def step(state: Array, logits: Array, rows: tuple[Array, ...], value: None) -> Array:
        return state + (logits == rows[0][..., None]).sum(-1).astype(state.dtype)

    (ties,), _ = tiles.forward(
        problem, (maximum,), jnp.float32(0.0), step, lambda state, _: ((state,), None)
    )
    return ties.astype(maximum.dtype)


_measure.defvjp(_measure_forward, _measure_backward)


# Sums at a temperature.


@jax.custom_vjp
def _temper(problem: Problem, beta: Array, maximum: Array) -> tuple[Array, ...]:
    def step(
        state: tuple[Array, ...], logits: Array, rows: tuple[Array, ...], value: None
    ) -> tuple[Array, ...]:
        weights, distance = _weights(logits, *rows)
        sums = (weights, weights * distance, weights * distance * distance)
        return tuple(a + b.sum(-1) for a, b in zip(state, sums, strict=True))

    rows, _ = tiles.forward(
        problem, (beta, maximum), (0.0, 0.0, 0.0), step, lambda state, _: (state, None)
    )
    return rows


def _temper_forward(problem: Problem, beta: Array, maximum: Array) -> tuple[Any, Any]:
    return _temper(problem, beta, maximum), (problem, beta, maximum)


def _temper_backward(kept: Any, given: Any) -> tuple[Problem, Array, None]:
    problem, beta, maximum = kept
    by_mass, by_moment, _ = given

    def weigh(logits: Array, rows: tuple[Array, ...], *_: None) -> tuple[None, Array, Array]:
        beta, peak, by_mass, by_moment = rows
        weights, distance = _weights(logits, beta, peak)
        through = by_mass[..., None] + by_moment[..., None] * distance
        gradient = weights * (beta[..., None] * through + by_moment[..., None])
        gradient = jnp.where(jnp.isfinite(peak)[..., None], gradient, 0.0)
        return None, gradient, (weights * distance * through).sum(-1)

    rows = (beta, maximum, by_mass, by_moment)
    gradients, by_beta = tiles.backward(problem, rows, None, weigh)
    return gradients, by_beta, None


_temper.defvjp(_temper_forward, _temper_backward)


# The output.


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(
    mixed: Mixed, problem: Problem, beta: Array, maximum: Array | None
) -> tuple[Array, ...]:
    output, maximum, mass = mixed(problem, beta, maximum)
    assert problem.value is not None
    odd = ~jnp.isfinite(problem.value).all()
    given = (problem, beta, maximum, output)
    output = lax.cond(odd, _with_odd_values, lambda *given: given[-1], *given)
    return output, maximum, mass


def _mix(
    problem: Problem, beta: Array, maximum: Array | None, seen: bool = False
) -> tuple[Array, Array, Array]:
    """Output, maximum and mass; if `seen`, weights that are not zero count as 1."""

    def known(state: Any, logits: Array, rows: tuple[Array, ...], value: Array) -> Any:
        peak, mass, mixed = state
        weights, _ = _weights(logits, *rows)
        if seen:
            weights = (weights != 0).astype(weights.dtype)
        return peak, mass + weights.sum(-1), mixed + tiles.mix(weights, value)

    def online(state: Any, logits: Array, rows: tuple[Array, ...], value: Array) -> Any:
        peak, mass, mixed = state
        higher = jnp.maximum(peak, logits.max(-1))
        decay = decayed(rows[0], peak, higher)
        weights, _ = _weights(logits, rows[0], higher)
        mass = decay * mass + weights.sum(-1)
        return higher, mass, decay[..., None] * mixed + tiles.mix(weights, value)

    def finish(state: Any, rows: tuple[Array, ...]) -> tuple[tuple[Array, ...], Array]:
        peak, mass, mixed = state
        peak = peak if maximum is None else rows[1]
        mass = jnp.where(peak == -jnp.inf, 0.0, mass)
        scale = 1.0 if seen else 1.0 / jnp.where(mass == 0, 1.0, mass)[..., None]
        return (peak, mass), jnp.where((mass == 0)[..., None], 0.0, mixed * scale)

    rows = (beta,) if maximum is None else (beta, maximum)
    step = online if maximum is None else known
    (peak, mass), output = tiles.forward(problem, rows, (-jnp.inf, 0.0, tiles.MIXED), step, finish)
    return output, peak, mass


def _weights(logits: Array, beta: Array, maximum: Array) -> tuple[Array, Array]:
    """exp(beta d) and d = e - maximum, which is bounded; the maximum is not below any logit."""
    peak, beta = maximum[..., None], beta[..., None]
    distance = jnp.where(logits == peak, 0.0, logits - peak)
    hard = jnp.isinf(beta)
    soft = jnp.where(hard, 1.0, beta) * distance
    exponent = jnp.where(hard & (distance < 0), -jnp.inf, soft)
    return jnp.exp(exponent), jnp.maximum(distance, -FAR)


def _with_odd_values(problem: Problem, beta: Array, maximum: Array, output: Array) -> Array:
    """The output if values are infinite or NaN: those with a weight come through."""
    value = problem.value
    assert value is not None
    kinds = [jnp.isnan(value), value == jnp.inf, value == -jnp.inf]
    marks = jnp.concatenate(kinds, -1).astype(problem.statistics_dtype)
    found, _, _ = _mix(tiles.with_value(problem, marks), beta, maximum, seen=True)
    undefined, above, below = jnp.split(found > 0, 3, axis=-1)
    undefined |= jnp.isnan(output)
    output = jnp.where(above, jnp.inf, jnp.where(below, -jnp.inf, output))
    return jnp.where(undefined | (above & below), jnp.nan, output)


def _attend_forward(
    mixed: Mixed, problem: Problem, beta: Array, maximum: Array | None
) -> tuple[Any, Any]:
    output, peak, mass = _attend(mixed, problem, beta, maximum)
    return (output, peak, mass), (problem, beta, peak, mass, output)


def _attend_backward(_: Mixed, kept: Any, given: Any) -> tuple[Problem, Array, None]:
    problem, beta, maximum, mass, output = kept
    by_output, _, by_mass = given
    # An output that is infinite or NaN has no derivative.
    by_output = jnp.where(jnp.isfinite(output), by_output, 0)
    precise = problem.statistics_dtype
    drift = jnp.einsum(
        "btnv,btnv->bnt",
        by_output.astype(precise),
        jnp.where(jnp.isfinite(output), output, 0).astype(precise),
    )

    def weigh(
        logits: Array, rows: tuple[Array, ...], by_output: Array, value: Array
    ) -> tuple[Array, Array, Array]:
        beta, peak, mass, drift = rows
        weights, distance = _weights(logits, beta, peak)
        weights = weights * jnp.where(mass == 0, 0.0, 1.0 / mass)[..., None]
        through = weights * (tiles.product(by_output, value) - drift[..., None])
        held = jnp.isinf(beta) | ~jnp.isfinite(peak)
        slope = jnp.where(held, 0.0, beta)[..., None]
        by_beta = jnp.where(held, 0.0, (through * distance).sum(-1))
        return weights, slope * through, by_beta

    rows = (beta, maximum, mass, drift - by_mass * mass)
    gradients, by_beta = tiles.backward(problem, rows, by_output, weigh)
    return gradients, by_beta, None


_attend.defvjp(_attend_forward, _attend_backward)
