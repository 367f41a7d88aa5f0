"""Compose attention from its two primitives, on one device or on several.

An implementation provides `measure` and `attend` (see `sharpmax.jax.impl`) for the keys that lie on
its device. This module adds the policy between them, sinks and the other devices, once for all
implementations, in plain JAX: gradients through the temperature, to the parameters of the policy
and across devices are those of this composition.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sharpmax._statistics import RowStatistics
from sharpmax.jax._extremes import decayed, gap
from sharpmax.jax._problem import Array, Problem, vary_with
from sharpmax.policies import Form, Policy


class Result(NamedTuple):
    """What attention gives: rows have the axes [batch, heads, queries]."""

    output: Array
    """[batch, queries, heads, value width]."""
    log_mass: Array
    """log sum exp(beta e), the sink included; -inf for a row that sees nothing."""
    statistics: RowStatistics | None


@np.errstate(over="ignore")  # a beta beyond the range of single precision is infinite
def attend(implementation: Any, problem: Problem, policy: Policy, measured: bool) -> Result:
    """Attend at the temperature of a policy.

    Statistics that neither the caller (`measured`) nor the policy needs are not computed.

    Raises:
        ValueError: for parameters that do not fit the number of heads.
    """
    policy.check_heads(problem.query.shape[2])
    if hasattr(implementation, "fused") and problem.axis_name is None:
        result = _fused(implementation, problem, policy, measured)
        if result is not None:
            return result
    statistics, maximum = None, None
    beta = None if measured else _constant(policy, problem)
    if beta is None:
        here = implementation.measure(problem)
        statistics = _complete(problem, here)
        maximum = lax.stop_gradient(here.maximum)

        def tempered(beta: Array) -> tuple[Array, Array]:
            assert statistics is not None
            return _tempered(implementation, problem, beta, statistics)

        beta = policy.over_queries().of_statistics(statistics, tempered)
    local = vary_with(problem, beta)
    output, maximum, mass = implementation.attend(problem, local, maximum)
    output, log_mass = _joined(problem, output, beta, lax.stop_gradient(maximum), mass)
    return Result(output, log_mass, lax.stop_gradient(statistics))


def _fused(implementation: Any, problem: Problem, policy: Policy, measured: bool) -> Result | None:
    """Attend in one pass, if the policy has a closed form."""
    found = policy.kernel_form()
    if found is None:
        return None
    exact = jnp.result_type(float)
    columns = [jnp.atleast_1d(jnp.asarray(column, exact)) for column in found.columns]
    table = jnp.stack(jnp.broadcast_arrays(*columns), -1) if columns else jnp.zeros((1, 0), exact)
    if problem.sink is not None:
        problem = replace(problem, sink=vary_with(problem, problem.sink))
    done = implementation.fused(problem, found.form, vary_with(problem, table), measured)
    if done is None:
        return None
    output, maximum, statistics, beta, relative = done
    log_mass = jnp.where(maximum == 0, 0.0, beta * maximum) + relative
    return Result(output, log_mass, lax.stop_gradient(statistics))


def measure(implementation: Any, problem: Problem) -> RowStatistics:
    """Measure the rows, over all devices and with the sink; without gradient."""
    statistics: RowStatistics = lax.stop_gradient(
        _complete(problem, implementation.measure(problem))
    )
    return statistics


def _constant(policy: Policy, problem: Problem) -> Array | None:
    """Return beta of all rows, if the policy reads nothing of them."""
    found = policy.kernel_form()
    if found is None or found.form not in (Form.CONSTANT, Form.HARD):
        return None
    if any(isinstance(column, jax.core.Tracer) for column in found.columns):
        return None  # it may be differentiated, and rows that see nothing must not move it
    ones = jnp.ones(problem.rows, problem.statistics_dtype)
    beta: Array = policy.over_queries().of_statistics(RowStatistics(ones, ones, ones, ones))
    return beta


def _complete(problem: Problem, here: RowStatistics) -> RowStatistics:
    """Statistics of whole rows: those of all devices, and the sink."""
    if problem.axis_name is not None:
        here = _over_devices(here, problem.axis_name)
    if problem.sink is not None:
        sink = jnp.broadcast_to(problem.sink[:, None], problem.rows).astype(here.mass.dtype)
        there = sink != -jnp.inf
        one = there.astype(sink.dtype)
        alone = RowStatistics(sink, one, jnp.zeros_like(sink), there.astype(here.count.dtype))
        here = here.merge(alone)
    return here


def through_statistics(
    mass: Array, moment: Array, by_maximum: Array, by_mass: Array, by_moment: Array
) -> tuple[tuple[Array, Array], Array]:
    """Turn gradients by maximum, mass and moment into gradients by the logits.

    Returns:
        a and c of exp(d) (a + c d), where d = e - maximum, and the gradient that goes to the
        largest logit, evenly to those that tie.
    """
    # Mass and moment also change with the maximum. For the entropy that cancels: where only
    # rounding is left, there is no dependence on the maximum.
    parts = (by_maximum, -by_mass * mass, -by_moment * (moment + mass))
    to_maximum = parts[0] + parts[1] + parts[2]
    rounding = 64 * jnp.finfo(mass.dtype).eps * sum(jnp.abs(part) for part in parts)
    to_maximum = jnp.where((mass > 0) & (jnp.abs(to_maximum) > rounding), to_maximum, 0.0)
    occupied = mass > 0
    terms = jnp.where(occupied, by_mass + by_moment, 0.0), jnp.where(occupied, by_moment, 0.0)
    return terms, to_maximum


def _over_devices(here: RowStatistics, axis: str) -> RowStatistics:
    """Merge the statistics of all devices along a mesh axis."""
    largest = lax.pmax(lax.stop_gradient(here.maximum), axis)
    # The same number, with a derivative: evenly by the devices that have the maximum.
    mine = (here.maximum == largest) & jnp.isfinite(largest)
    shares = lax.psum(mine.astype(largest.dtype), axis)
    total = lax.psum(jnp.where(mine, here.maximum, 0.0), axis)
    maximum = jnp.where(shares > 0, total / jnp.where(shares > 0, shares, 1.0), largest)
    distance = gap(here.maximum, maximum)
    factor = jnp.exp(distance)
    mass, moment, count = lax.psum(
        (factor * here.mass, factor * (here.moment + distance * here.mass), here.count), axis
    )
    return RowStatistics(maximum, mass, moment, count)


def _tempered(
    implementation: Any, problem: Problem, beta: Array, statistics: RowStatistics
) -> tuple[Array, Array]:
    """Entropy of whole rows at beta, and the variance of their logits."""
    maximum = lax.stop_gradient(statistics.maximum)
    local = (vary_with(problem, beta), vary_with(problem, maximum))
    sums = implementation.temper(problem, *local)
    if problem.axis_name is not None:
        sums = lax.psum(sums, problem.axis_name)
    mass, moment, second = sums
    if problem.sink is not None:
        distance = gap(problem.sink[:, None].astype(maximum.dtype), maximum)
        share = jnp.where(problem.sink[:, None] == -jnp.inf, 0.0, jnp.exp(beta * distance))
        mass, moment, second = mass + share, moment + share * distance, second + share * distance**2
    mass = jnp.where(mass == 0, 1.0, mass)
    mean = moment / mass
    return jnp.log(mass) - beta * mean, jnp.maximum(second / mass - mean * mean, 0.0)


def _joined(
    problem: Problem, output: Array, beta: Array, maximum: Array, mass: Array
) -> tuple[Array, Array]:
    """Output and log-mass of whole rows, from those of the keys here."""
    if problem.axis_name is not None:
        largest = lax.pmax(maximum, problem.axis_name)
        here = decayed(beta, maximum, largest) * mass
        mass = lax.psum(here, problem.axis_name)
        share = here / jnp.where(mass == 0, 1.0, mass)
        output = _weighed(output, share, problem.axis_name)
        maximum = largest
    if problem.sink is not None:
        sink = jnp.broadcast_to(problem.sink[:, None].astype(mass.dtype), mass.shape)
        largest = jnp.maximum(maximum, lax.stop_gradient(sink))
        kept = decayed(beta, maximum, largest) * mass
        mass = kept + jnp.where(sink == -jnp.inf, 0.0, decayed(beta, sink, largest))
        output = _weighed(output, kept / jnp.where(mass == 0, 1.0, mass), None)
        maximum = largest
    # At beta = inf this is 0 * inf where the maximum is 0: the mass counts the maxima.
    scaled = jnp.where(maximum == 0, 0.0, beta * maximum)
    log_mass = scaled + jnp.log(jnp.where(mass == 0, 1.0, mass))
    return output, jnp.where(mass == 0, -jnp.inf, log_mass)


def _weighed(output: Array, share: Array, axis: str | None) -> Array:
    """Multiply rows of the output by their shares, and sum over devices, in full precision."""
    share = share.transpose(0, 2, 1)[..., None]
    # Rows without a share may hold anything.
    weighed = jnp.where(share == 0, 0.0, share * output.astype(share.dtype))
    if axis is not None:
        weighed = lax.psum(weighed, axis)
    return weighed.astype(output.dtype)
