"""What Pallas kernels make of a tile, forward and backward."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from sharpmax.jax._extremes import FAR, decayed
from sharpmax.jax._problem import Array, Problem
from sharpmax.jax.impl import _tiles as tiles
from sharpmax.jax.impl._pallas import Sweep, Tile, product
from sharpmax.jax.impl.xla import Sweeps, weighed

# Forward. A key at -inf is hidden: it is neither a maximum nor has it weight.


def _measure(state: dict[str, Array], tile: Tile) -> dict[str, Array]:
    maximum, mass, moment, count = (state[name] for name in MEASURE.state)
    logits = tile.logits
    higher = jnp.maximum(maximum, logits.max(0, keepdims=True))
    shift = _distance(maximum, higher)
    decay = jnp.exp(shift)
    distance = _distance(logits, higher)
    weights = jnp.where(logits == -jnp.inf, 0.0, jnp.exp(distance))
    seen = (logits != -jnp.inf).sum(0, keepdims=True, dtype=jnp.int32)
    return {
        "maximum": higher,
        "mass": decay * mass + weights.sum(0, keepdims=True),
        "moment": decay * (moment + shift * mass) + (weights * distance).sum(0, keepdims=True),
        "count": count + seen,
    }


def _distance(value: Array, maximum: Array) -> Array:
    """value - maximum, bounded, and 0 where both are the same infinity."""
    return jnp.where(value == maximum, 0.0, jnp.maximum(value - maximum, -FAR))


MEASURE = Sweep(
    {"maximum": ("row", -jnp.inf), "mass": ("row", 0), "moment": ("row", 0), "count": ("count", 0)},
    _measure,
)


def _weights(tile: Tile, beta: Array, maximum: Array) -> tuple[Array, Array]:
    weights, distance = weighed(tile.logits, beta, maximum)
    return jnp.where(tile.logits == -jnp.inf, 0.0, weights), distance


def _temper(state: dict[str, Array], tile: Tile) -> dict[str, Array]:
    weights, distance = _weights(tile, *tile.rows)
    sums = (weights, weights * distance, weights * distance * distance)
    pairs = zip(TEMPER.state, sums, strict=True)
    return {name: state[name] + each.sum(0, keepdims=True) for name, each in pairs}


TEMPER = Sweep({"mass": ("row", 0), "moment": ("row", 0), "second": ("row", 0)}, _temper)


def _mix(state: dict[str, Array], tile: Tile) -> dict[str, Array]:
    """Mix values at a maximum that is known, or at the largest logit so far."""
    beta, value = tile.rows[0], tile.parts["value"]
    mass, mixture, more = state["mass"], state["mixture"], {}
    if "peak" in state:
        peak = jnp.maximum(state["peak"], tile.logits.max(0, keepdims=True))
        decay = decayed(beta, state["peak"], peak)
        mass, mixture, more = decay * mass, decay * mixture, {"peak": peak}
    else:
        peak = tile.rows[1]
    weights, _ = _weights(tile, beta, peak)
    return {
        "mass": mass + weights.sum(0, keepdims=True),
        "mixture": mixture + product(value, weights.astype(value.dtype), 0, 0),
        **more,
    }


def _mixed(state: dict[str, Array]) -> dict[str, Array]:
    mass = jnp.where(state["mass"] == 0, 1.0, state["mass"])
    return {**state, "mixture": state["mixture"] / mass}


KNOWN = Sweep({"mixture": ("mixture", 0), "mass": ("row", 0)}, _mix, _mixed)
ONLINE = KNOWN._replace(state={**KNOWN.state, "peak": ("row", -jnp.inf)})


# Backward, with what `weigh` of `_tiles.backward` makes of a tile.


def _gradients(weigh: Callable[..., Any], tile: Tile) -> tuple[Array | None, Array, Array | None]:
    """Weights, gradient by the products of queries and keys without the scale, and by beta."""
    by_weight = None
    if "by_output" in tile.parts:
        by_weight = product(tile.parts["value"], tile.parts["by_output"], 1, 1)
    weights, gradient, by_beta = weigh(tile.logits, tile.rows, by_weight)
    if tile.slope is not None:
        gradient = gradient * tile.slope
    hidden = tile.logits == -jnp.inf
    found = (None if x is None else jnp.where(hidden, 0.0, x) for x in (weights, gradient, by_beta))
    return tuple(found)  # type: ignore[return-value]


def _finite(array: Array) -> Array:
    """The array with 0 for what is infinite or NaN: it may be hidden, and 0 times it is NaN."""
    wide = array.astype(jnp.float32)
    return jnp.where(jnp.abs(wide) < jnp.inf, wide, 0.0).astype(array.dtype)


def _by_query(weigh: Callable[..., Any]) -> Sweep:
    def step(state: dict[str, Array], tile: Tile) -> dict[str, Array]:
        _, gradient, by_beta = _gradients(weigh, tile)
        key = _finite(tile.parts["key"])
        query = state["query"] + product(key, gradient.astype(key.dtype), 0, 0)
        beta = state["beta"]
        if by_beta is not None:
            beta = beta + by_beta.sum(0, keepdims=True)
        return {"query": query, "beta": beta}

    return Sweep({"query": ("of_query", 0), "beta": ("row", 0)}, step)


def _by_key(weigh: Callable[..., Any], has_values: bool) -> Sweep:
    def step(state: dict[str, Array], tile: Tile) -> dict[str, Array]:
        weights, gradient, _ = _gradients(weigh, tile)
        query = _finite(tile.parts["query"])
        found = {"key": state["key"] + product(gradient.astype(query.dtype), query, 1, 0)}
        if weights is not None:
            own = tile.parts["by_output"]
            found["value"] = state["value"] + product(weights.astype(own.dtype), own, 1, 0)
        return found

    state: dict[str, tuple[str, float]] = {"key": ("of_key", 0)}
    if has_values:
        state["value"] = ("of_value", 0)
    return Sweep(state, step, over_queries=True)


Run = Callable[..., tuple[Array, ...]]
"""Problem, sweep, rows and the gradient by the output -> results."""


def sweeps(run: Run) -> Sweeps:
    """Return the passes over all logits that "xla" makes its functions of."""

    def mix(problem: Problem, beta: Array, maximum: Array | None) -> tuple[Array, ...]:
        if maximum is None:
            output, mass, maximum = run(problem, ONLINE, (beta,))
        else:
            output, mass = run(problem, KNOWN, (beta, maximum))
        return output.astype(problem.query.dtype), maximum, mass

    return Sweeps(
        lambda problem: run(problem, MEASURE, ()),
        lambda problem, beta, maximum: run(problem, TEMPER, (beta, maximum)),
        mix,
        functools.partial(_backward, run),
    )


def _backward(
    run: Run,
    problem: Problem,
    rows: tuple[Array, ...],
    by_output: Array | None,
    weigh: Callable[..., Any],
) -> tuple[Problem, Array]:
    if by_output is not None:
        by_output = by_output.astype(problem.query.dtype)
    query, by_beta = run(problem, _by_query(weigh), rows, by_output)
    collected = run(problem, _by_key(weigh, by_output is not None), rows, by_output)
    found = dict(zip(("key", "value"), collected, strict=False), query=query)
    for name in ("query", "key"):
        found[name] = problem.scale * found[name]
    gradients = {name: x.astype(getattr(problem, name).dtype) for name, x in found.items()}
    if problem.bias is not None:
        # Collected in its own shape, however it broadcasts. XLA drops this if nobody asks for it.
        gradients["bias"] = tiles.backward(problem, rows, by_output, weigh)[0].bias
    return tiles.as_gradients(problem, gradients), by_beta
