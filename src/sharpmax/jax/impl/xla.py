"""Attend in tiles of queries and keys with plain JAX, on any backend, in linear memory.

No derivative goes through the loops: backward passes compute the logits of each tile again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from sharpmax._statistics import RowStatistics
from sharpmax.jax._extremes import FAR, decayed
from sharpmax.jax._problem import Array, Problem, without
from sharpmax.jax._temperature import through_statistics
from sharpmax.jax.impl import _tiles as tiles
from sharpmax.policies import Policy


class Sweeps(NamedTuple):
    """The passes over all logits. Other implementations bring their own."""

    measure: Callable[[Problem], tuple[Array, ...]]
    """Problem -> maximum, mass, moment, count."""
    temper: Callable[[Problem, Array, Array], tuple[Array, ...]]
    """Problem, beta, maximum -> mass, moment, second."""
    mix: Callable[[Problem, Array, Array | None], tuple[Array, ...]]
    """Problem, beta, maximum or None -> output, maximum, mass. What is infinite or NaN in the
    values may be taken as 0.
    """
    backward: Callable[..., tuple[Problem, Array]]
    """As `_tiles.backward`."""


def unsupported(problem: Problem, policy: Policy | None) -> str | None:
    """Serve everything."""
    return None


def measure(problem: Problem, sweeps: Sweeps | None = None) -> RowStatistics:
    """Measure all rows."""
    problem = without(problem, "value", "sink")
    if tiles.is_empty(problem):
        return _nothing(problem)
    return RowStatistics(*_measure(sweeps or TILES, problem))


def temper(
    problem: Problem, beta: Array, maximum: Array, sweeps: Sweeps | None = None
) -> tuple[Array, Array, Array]:
    """Return sums over the rows at the inverse temperature beta, relative to a maximum."""
    problem = without(problem, "value", "sink")
    if tiles.is_empty(problem):
        zeros = _nothing(problem).mass
        return zeros, zeros, zeros
    mass, moment, second = _temper(sweeps or TILES, problem, beta, maximum)
    return mass, moment, second


def attend(
    problem: Problem, beta: Array, maximum: Array | None = None, sweeps: Sweeps | None = None
) -> tuple[Array, Array, Array]:
    """Attend at the inverse temperature beta."""
    problem = without(problem, "sink")
    if tiles.is_empty(problem):
        assert problem.value is not None
        nothing = _nothing(problem)
        shape = (*problem.query.shape[:3], problem.value.shape[3])
        return jnp.zeros(shape, problem.query.dtype), nothing.maximum, nothing.mass
    output, maximum, mass = _attend(sweeps or TILES, problem, beta, maximum)
    return output, maximum, mass


def _nothing(problem: Problem) -> RowStatistics:
    zeros = jnp.zeros(problem.rows, problem.statistics_dtype)
    return RowStatistics(zeros - jnp.inf, zeros, zeros, zeros.astype(jnp.int32))


# Statistics.


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _measure(sweeps: Sweeps, problem: Problem) -> tuple[Array, ...]:
    return sweeps.measure(problem)


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


def _measure_forward(sweeps: Sweeps, problem: Problem) -> tuple[Any, Any]:
    statistics = sweeps.measure(problem)
    return statistics, (problem, statistics)


def _measure_backward(sweeps: Sweeps, kept: Any, given: Any) -> tuple[Problem]:
    problem, (maximum, mass, moment, _) = kept
    by_maximum, by_mass, by_moment, _ = given
    (constant, linear), to_maximum = through_statistics(
        mass, moment, by_maximum, by_mass, by_moment
    )
    ties = lax.cond(
        jnp.any(to_maximum != 0), lambda: _ties(problem, maximum), lambda: jnp.ones_like(mass)
    )

    def weigh(logits: Array, rows: tuple[Array, ...], _: None) -> tuple[None, Array, None]:
        peak, constant, linear, share = rows
        distance = jnp.where(logits == peak, 0.0, jnp.maximum(logits - peak, -FAR))
        gradient = jnp.exp(distance) * (constant + linear * distance)
        gradient += jnp.where(logits == peak, share, 0.0)
        return None, jnp.where(_is_finite(peak), gradient, 0.0), None

    rows = (maximum, constant, linear, to_maximum / jnp.maximum(ties, 1.0))
    return (sweeps.backward(problem, rows, None, weigh)[0],)


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


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _temper(sweeps: Sweeps, problem: Problem, beta: Array, maximum: Array) -> tuple[Array, ...]:
    return sweeps.temper(problem, beta, maximum)


def _tempered(problem: Problem, beta: Array, maximum: Array) -> tuple[Array, ...]:
    def step(
        state: tuple[Array, ...], logits: Array, rows: tuple[Array, ...], value: None
    ) -> tuple[Array, ...]:
        weights, distance = weighed(logits, *(row[..., None] for row in rows))
        sums = (weights, weights * distance, weights * distance * distance)
        return tuple(a + b.sum(-1) for a, b in zip(state, sums, strict=True))

    rows, _ = tiles.forward(
        problem, (beta, maximum), (0.0, 0.0, 0.0), step, lambda state, _: (state, None)
    )
    return rows


def _temper_forward(
    sweeps: Sweeps, problem: Problem, beta: Array, maximum: Array
) -> tuple[Any, Any]:
    return sweeps.temper(problem, beta, maximum), (problem, beta, maximum)


def _temper_backward(sweeps: Sweeps, kept: Any, given: Any) -> tuple[Problem, Array, None]:
    problem, beta, maximum = kept
    by_mass, by_moment, _ = given

    def weigh(logits: Array, rows: tuple[Array, ...], _: None) -> tuple[None, Array, Array]:
        beta, peak, by_mass, by_moment = rows
        weights, distance = weighed(logits, beta, peak)
        through = by_mass + by_moment * distance
        gradient = weights * (beta * through + by_moment)
        gradient = jnp.where(_is_finite(peak), gradient, 0.0)
        return None, gradient, weights * distance * through

    rows = (beta, maximum, by_mass, by_moment)
    gradients, by_beta = sweeps.backward(problem, rows, None, weigh)
    return gradients, by_beta, None


_temper.defvjp(_temper_forward, _temper_backward)


# The output.


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(
    sweeps: Sweeps, problem: Problem, beta: Array, maximum: Array | None
) -> tuple[Array, ...]:
    output, peak, mass = sweeps.mix(problem, beta, maximum)
    assert problem.value is not None
    odd = ~jnp.isfinite(problem.value).all()
    given = (problem, beta, peak, output)
    output = lax.cond(odd, _with_odd_values, lambda *given: given[-1], *given)
    return output, peak, mass


def _mix(problem: Problem, beta: Array, maximum: Array | None) -> tuple[Array, Array, Array]:
    def known(state: Any, logits: Array, rows: tuple[Array, ...], value: Array) -> Any:
        peak, mass, mixed = state
        weights, _ = weighed(logits, *(row[..., None] for row in rows))
        return peak, mass + weights.sum(-1), mixed + tiles.mix(weights, tiles.finite(value))

    def online(state: Any, logits: Array, rows: tuple[Array, ...], value: Array) -> Any:
        peak, mass, mixed = state
        higher = jnp.maximum(peak, logits.max(-1))
        decay = decayed(rows[0], peak, higher)
        weights, _ = weighed(logits, rows[0][..., None], higher[..., None])
        mass = decay * mass + weights.sum(-1)
        return higher, mass, decay[..., None] * mixed + tiles.mix(weights, tiles.finite(value))

    def finish(state: Any, rows: tuple[Array, ...]) -> tuple[tuple[Array, ...], Array]:
        peak, mass, mixed = state
        peak = peak if maximum is None else rows[1]
        mass = jnp.where(peak == -jnp.inf, 0.0, mass)
        scale = 1.0 / jnp.where(mass == 0, 1.0, mass)[..., None]
        return (peak, mass), jnp.where((mass == 0)[..., None], 0.0, mixed * scale)

    rows = (beta,) if maximum is None else (beta, maximum)
    step = online if maximum is None else known
    start = (-jnp.inf, 0.0, tiles.Mixed())
    (peak, mass), output = tiles.forward(problem, rows, start, step, finish)
    return output, peak, mass


def weighed(logits: Array, beta: Array, maximum: Array) -> tuple[Array, Array]:
    """exp(beta d) and d = e - maximum, which is bounded; the maximum is not below any logit.

    Also inside of kernels: all arrays broadcast.
    """
    distance = jnp.where(logits == maximum, 0.0, logits - maximum)
    hard = beta == jnp.inf
    soft = jnp.where(hard, 1.0, beta) * distance
    exponent = jnp.where(hard & (distance < 0), -jnp.inf, soft)
    return jnp.exp(exponent), jnp.maximum(distance, -FAR)


def _is_finite(array: Array) -> Array:
    """As `isfinite`, which kernels lack."""
    return jnp.abs(array) < jnp.inf


def _with_odd_values(problem: Problem, beta: Array, maximum: Array, output: Array) -> Array:
    """The output if values are infinite or NaN: those with a weight come through."""

    def step(state: Array, logits: Array, rows: tuple[Array, ...], value: Array) -> Array:
        weights, _ = weighed(logits, *(row[..., None] for row in rows))
        seen = jnp.where(logits == -jnp.inf, 0.0, weights != 0).astype(weights.dtype)
        kinds = jnp.concatenate([jnp.isnan(value), value == jnp.inf, value == -jnp.inf], -1)
        return state + tiles.mix(seen, kinds.astype(seen.dtype))

    def finish(state: Array, rows: tuple[Array, ...]) -> tuple[tuple[Array, ...], Array]:
        undefined, above, below = jnp.split(state > 0, 3, axis=-1)
        found = jnp.where(above, jnp.inf, jnp.where(below, -jnp.inf, 0.0))
        return (), jnp.where(undefined | (above & below), jnp.nan, found)

    _, odd = tiles.forward(problem, (beta, maximum), tiles.Mixed(3), step, finish)
    return jnp.where((odd == 0) | jnp.isnan(output), output, odd)


def _attend_forward(
    sweeps: Sweeps, problem: Problem, beta: Array, maximum: Array | None
) -> tuple[Any, Any]:
    output, peak, mass = _attend(sweeps, problem, beta, maximum)
    return (output, peak, mass), (problem, beta, peak, mass, output)


def _attend_backward(sweeps: Sweeps, kept: Any, given: Any) -> tuple[Problem, Array, None]:
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
        logits: Array, rows: tuple[Array, ...], by_weight: Array
    ) -> tuple[Array, Array, Array]:
        beta, peak, mass, drift = rows
        weights, distance = weighed(logits, beta, peak)
        weights = weights * jnp.where(mass == 0, 0.0, 1.0 / mass)
        through = weights * (by_weight - drift)
        held = (beta == jnp.inf) | ~_is_finite(peak)
        slope = jnp.where(held, 0.0, beta)
        return weights, slope * through, jnp.where(held, 0.0, through * distance)

    rows = (beta, maximum, mass, drift - by_mass * mass)
    gradients, by_beta = sweeps.backward(problem, rows, by_output, weigh)
    return gradients, by_beta, None


_attend.defvjp(_attend_forward, _attend_backward)

TILES = Sweeps(_measured, _tempered, _mix, tiles.backward)
