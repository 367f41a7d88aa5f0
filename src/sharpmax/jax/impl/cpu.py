"""Attend with the C++ kernels, which XLA calls as foreign functions, on CPUs.

A wheel brings the kernels; otherwise they are compiled on first use. Derivatives that nobody asks
for are not computed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_derivatives import SymbolicZero

from sharpmax import kernels
from sharpmax._statistics import RowStatistics
from sharpmax.jax._extremes import gap
from sharpmax.jax._problem import Array, Problem, without
from sharpmax.jax._temperature import through_statistics
from sharpmax.jax.impl import _calls as calls
from sharpmax.jax.impl import _tiles as tiles
from sharpmax.jax.impl import xla
from sharpmax.jax.impl._calls import Upstream
from sharpmax.policies import Form, Policy


def unsupported(problem: Problem, policy: Policy | None) -> str | None:
    """Name what the kernels have no code for."""
    if jax.default_backend() != "cpu":
        return f"it serves CPUs, and the default backend is {jax.default_backend()}"
    if any(side is not None and side < 0 for side in (problem.left, problem.right)):
        return "local_window_size: the kernels have no windows with a negative side"
    return kernels.unavailable()


def prepare() -> str | None:
    """Compile the kernels unless that has been done, and make them known to XLA."""
    return kernels.failure() or calls.registered()


def measure(problem: Problem) -> RowStatistics:
    """Measure all rows."""
    problem, seen = _seen(without(problem, "value", "sink"))
    if tiles.is_empty(problem):
        return xla.measure(problem)
    return _hidden(RowStatistics(*_measure(problem)), seen)


def temper(problem: Problem, beta: Array, maximum: Array) -> tuple[Array, Array, Array]:
    """Return sums over the rows at the inverse temperature beta, relative to a maximum."""
    problem, seen = _seen(without(problem, "value", "sink"))
    if tiles.is_empty(problem):
        return xla.temper(problem, beta, maximum)
    sums = _temper(problem, beta, maximum)
    mass, moment, second = (x if seen is None else jnp.where(seen, x, 0.0) for x in sums)
    return mass, moment, second


def attend(
    problem: Problem, beta: Array, maximum: Array | None = None
) -> tuple[Array, Array, Array]:
    """Attend at the inverse temperature beta."""
    problem, seen = _seen(without(problem, "sink"))
    if tiles.is_empty(problem):
        return xla.attend(problem, beta, maximum)
    output, maximum, mass = _attend(problem, beta)
    if seen is None:
        return output, maximum, mass
    shown = seen.transpose(0, 2, 1)[..., None]
    return jnp.where(shown, output, 0), *_hidden_rows(seen, maximum, mass)


def fused(
    problem: Problem, form: Form, table: Array, measured: bool
) -> tuple[Array, Array, RowStatistics | None, Array, Array] | None:
    """Measure and attend in one pass, at the temperature of a closed form.

    Returns:
        Output, maximum, statistics if `measured`, beta and the log-mass relative to beta * maximum.
        The output alone has derivatives: in query, key, value, bias, sink and the table. None for a
        problem without logits.
    """
    problem, seen = _seen(problem)
    if tiles.is_empty(problem):
        return None
    output, maximum, beta, log_mass, *sums = _fused(form, measured, problem, table)
    if seen is not None:
        output = jnp.where(seen.transpose(0, 2, 1)[..., None], output, 0)
        maximum, *sums = _hidden_rows(seen, maximum, *sums)
        log_mass = jnp.where(seen, log_mass, -jnp.inf)
    statistics = RowStatistics(maximum, *sums) if measured else None
    return output, maximum, statistics, beta, log_mass


# Queries beyond their lengths see nothing. The kernels do not know that: their rows are replaced.


def _seen(problem: Problem) -> tuple[Problem, Array | None]:
    """The problem without lengths of queries, and which rows lie within them."""
    if problem.query_lengths is None:
        return problem, None
    seen = jnp.arange(problem.query.shape[1]) < problem.query_lengths[:, None]
    query = jnp.where(seen[:, :, None, None], problem.query, 0)
    return replace(problem, query=query, query_lengths=None), seen[:, None, :]


def _hidden(statistics: RowStatistics, seen: Array | None) -> RowStatistics:
    return statistics if seen is None else RowStatistics(*_hidden_rows(seen, *statistics))


def _hidden_rows(seen: Array, maximum: Array, *sums: Array) -> tuple[Array, ...]:
    return jnp.where(seen, maximum, -jnp.inf), *(jnp.where(seen, x, 0) for x in sums)


# Derivatives.


def _differentiable(
    forward: Callable[..., Any], backward: Callable[..., Any], static: tuple[int, ...] = ()
) -> Callable[[Callable[..., tuple[Array, ...]]], Callable[..., tuple[Array, ...]]]:
    """Give a function derivatives that are told what is asked for."""

    def wrap(function: Callable[..., tuple[Array, ...]]) -> Callable[..., tuple[Array, ...]]:
        differentiable = jax.custom_vjp(function, nondiff_argnums=static)
        differentiable.defvjp(forward, backward, symbolic_zeros=True)
        # `shard_map` knows what is asked for only under `jit`.
        return jax.jit(differentiable, static_argnums=static)

    return wrap


# Statistics.


def _measure_forward(problem: Any) -> tuple[Any, Any]:
    problem, wants_bias = _given(problem)
    measured = tuple(calls.statistics(problem))
    return measured, (problem, measured, wants_bias)


def _measure_backward(kept: Any, given: Any) -> tuple[Problem]:
    problem, (maximum, mass, moment, _), wants_bias = kept
    by_maximum, by_mass, by_moment = map(_full, given[:3])
    terms, to_maximum = through_statistics(mass, moment, by_maximum, by_mass, by_moment)

    # At beta = inf the weights are those of the largest logits, evenly where these tie.
    def largest() -> tuple[Array, Array]:
        _, _, beta, log_mass = calls.forward(problem, Form.HARD, None, None, False)
        return beta, log_mass

    beta, log_mass = lax.cond(
        jnp.any(to_maximum != 0), largest, lambda: (jnp.ones_like(mass), jnp.log(mass))
    )
    upstream = Upstream(None, None, None, beta, log_mass, maximum)
    of_logits = (*terms, to_maximum, jnp.zeros_like(to_maximum))
    return (calls.backward(problem, upstream, of_logits, wants_bias is not None),)


@_differentiable(_measure_forward, _measure_backward)
def _measure(problem: Problem) -> tuple[Array, ...]:
    return tuple(calls.statistics(problem))


# Sums at a temperature.


def _tempered(problem: Problem, beta: Array, maximum: Array) -> tuple[Any, Any]:
    _, here, _, log_mass = calls.forward(problem, Form.GIVEN, None, beta, False)
    upstream = Upstream(None, None, None, beta, log_mass, here)
    _, mean, variance = calls.row_gradient(problem, upstream)
    shift = gap(here, maximum)
    mass = jnp.exp(log_mass + beta * shift)
    distance = jnp.where(here == -jnp.inf, 0.0, mean - here + shift)
    sums = (mass, mass * distance, mass * (variance + distance * distance))
    return sums, (upstream, shift)


def _temper_forward(problem: Any, beta: Any, maximum: Any) -> tuple[Any, Any]:
    problem, wants_bias = _given(problem)
    sums, kept = _tempered(problem, beta.value, maximum.value)
    return sums, (problem, sums, kept, wants_bias)


def _temper_backward(kept: Any, given: Any) -> tuple[Problem, Array, None]:
    problem, (mass, moment, second), (upstream, shift), wants_bias = kept
    by_mass, by_moment = map(_full, given[:2])
    beta = upstream.beta
    constant = mass * (beta * (by_mass + by_moment * shift) + by_moment)
    finite = jnp.isfinite(upstream.maximum)
    terms = (
        None,
        None,
        jnp.where(finite, constant, 0.0),
        jnp.where(finite, mass * beta * by_moment, 0.0),
    )
    gradients = calls.backward(problem, upstream, terms, wants_bias is not None)
    return gradients, by_mass * moment + by_moment * second, None


@_differentiable(_temper_forward, _temper_backward)
def _temper(problem: Problem, beta: Array, maximum: Array) -> tuple[Array, ...]:
    sums: tuple[Array, ...] = _tempered(problem, beta, maximum)[0]
    return sums


# The output at a given beta.


def _attend_forward(problem: Any, beta: Any) -> tuple[Any, Any]:
    problem, wants_bias = _given(problem)
    output, maximum, _, log_mass = calls.forward(problem, Form.GIVEN, None, beta.value, False)
    result = (output, maximum, jnp.exp(log_mass))
    upstream = Upstream(None, None, output, beta.value, log_mass, maximum)
    return result, (problem, upstream, wants_bias, _flag(beta.perturbed))


def _attend_backward(kept: Any, given: Any) -> tuple[Problem, Array | None]:
    problem, upstream, wants_bias, wants_beta = kept
    by_output, _, by_mass = given
    if not isinstance(by_mass, SymbolicZero):
        through = by_mass * jnp.exp(upstream.log_mass)
        upstream = upstream._replace(
            of_log_mass=jnp.where(upstream.log_mass == -jnp.inf, 0, through)
        )
    upstream = _from_output(upstream, by_output)
    by_beta = None if wants_beta is None else calls.row_gradient(problem, upstream)[0]
    return calls.backward(problem, upstream, (None,) * 4, wants_bias is not None), by_beta


@_differentiable(_attend_forward, _attend_backward)
def _attend(problem: Problem, beta: Array) -> tuple[Array, ...]:
    output, maximum, _, log_mass = calls.forward(problem, Form.GIVEN, None, beta, False)
    return output, maximum, jnp.exp(log_mass)


# The output at the beta of a closed form.


def _fused_forward(form: Form, measured: bool, problem: Any, table: Any) -> tuple[Any, Any]:
    problem, wants_bias = _given(problem)
    result = tuple(calls.forward(problem, form, table.value, None, True))
    kept = (problem, table.value, result, wants_bias, _flag(table.perturbed))
    return result if measured else result[:4], kept


def _fused_backward(
    form: Form, measured: bool, kept: Any, given: Any
) -> tuple[Problem, Array | None]:
    problem, table, result, wants_bias, wants_table = kept
    output, maximum, beta, log_mass, mass, moment, count = result
    upstream = _from_output(Upstream(None, None, output, beta, log_mass, maximum), given[0])
    terms: tuple[Array | None, ...] = (None,) * 4
    by_table = None
    fixed = form in (Form.CONSTANT, Form.LENGTH)  # beta does not depend on the logits
    if form != Form.HARD and not (fixed and wants_table is None):
        by_beta, mean, variance = calls.row_gradient(problem, upstream)
        by_beta = jnp.where(count == 0, 0.0, by_beta)
        if form == Form.TARGET:
            entropy = RowStatistics(maximum, mass, moment, count).entropy()
            distance = mean - maximum
            terms, by_table = _through_target(table, beta, by_beta, distance, variance, entropy)
        else:

            def rule(table: Array, mass: Array, moment: Array) -> Array:
                columns = [column[:, None] for column in table.T.astype(mass.dtype)]
                value = form.evaluate(columns, RowStatistics(maximum, mass, moment, count))
                return jnp.broadcast_to(value, mass.shape)

            _, pull = jax.vjp(rule, table, mass, moment)
            by_table, by_mass, by_moment = pull(by_beta)
            if not fixed:
                (a0, c0), _ = through_statistics(
                    mass, moment, jnp.zeros_like(by_mass), by_mass, by_moment
                )
                terms = (a0, c0, None, None)
    return calls.backward(problem, upstream, terms, wants_bias is not None), by_table


def _through_target(
    table: Array, beta: Array, by_beta: Array, distance: Array, variance: Array, entropy: Array
) -> tuple[tuple[Array | None, ...], Array]:
    """Turn the gradient by a beta that solves H(beta e) = target into that by logits and table.

    Its derivative by e_j is -beta p_j (e_j - mean) / Var, by the target -1 / (beta Var). Rows that
    are left alone have none, and at the limit beta follows the limit alone.
    """
    target, limit = (column[:, None] for column in table.T.astype(beta.dtype))
    solved = (beta > 1.0) & (beta < limit) & (variance > 0.0)
    inverse = jnp.where(solved, 1.0 / jnp.where(solved, variance, 1.0), 0.0)
    slope = -by_beta * beta * inverse
    shift = jnp.where(solved, distance, 0.0)
    at_limit = (beta >= limit) & (entropy > target)
    rows = jnp.stack([-by_beta * inverse / beta, jnp.where(at_limit, by_beta, 0.0)], -1)
    by_table = rows.sum((0, 2)) if len(table) > 1 else rows.sum((0, 1, 2))[None]
    by_table = by_table.astype(table.dtype)
    return (None, None, -slope * shift, slope), by_table


@_differentiable(_fused_forward, _fused_backward, static=(0, 1))
def _fused(form: Form, measured: bool, problem: Problem, table: Array) -> tuple[Array, ...]:
    return tuple(calls.forward(problem, form, table, None, measured))


# Derivatives that are asked for.


def _flag(wanted: bool) -> tuple[()] | None:
    """A boolean that is structure, not an array."""
    return () if wanted else None


def _given(problem: Any) -> tuple[Problem, tuple[()] | None]:
    """The problem of a rule that knows what is differentiated, and whether the bias is."""
    wants_bias = problem.bias is not None and problem.bias.perturbed
    values: Problem = jax.tree.map(lambda leaf: leaf.value, problem)
    return values, _flag(wants_bias)


def _full(gradient: Any) -> Array:
    if isinstance(gradient, SymbolicZero):
        return jnp.zeros(gradient.shape, gradient.dtype)
    return gradient


def _from_output(upstream: Upstream, by_output: Any) -> Upstream:
    """What gradients start from. An output that is infinite or NaN has no derivative."""
    if isinstance(by_output, SymbolicZero) or upstream.output is None:
        return upstream._replace(gradient=None, output=None)
    finite = jnp.isfinite(upstream.output)
    return upstream._replace(
        gradient=jnp.where(finite, by_output, 0), output=jnp.where(finite, upstream.output, 0)
    )
