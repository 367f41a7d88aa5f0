"""Problems to check implementations with, and their solution in double precision, in NumPy.

All numbers have eight significant bits, so that every dtype holds them exactly.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from sharpmax._statistics import Rows
from sharpmax.policies import (
    EntropyTarget,
    Exponential,
    Hard,
    Identity,
    LogLength,
    Monotone,
    Policy,
)

Array = npt.NDArray[np.float64]
Dtype = Literal["float32", "bfloat16", "float16"]

EPSILON: dict[Dtype, float] = {"float32": 2.0**-23, "bfloat16": 2.0**-7, "float16": 2.0**-10}
_HEADS, _KEY_HEADS = 4, 2
_STEP = 1e-5


@dataclass(frozen=True, eq=False)
class Problem:
    """One call of attention.

    Attributes:
        title: What is special about it.
        policy: The policy.
        arrays: query, key and value [heads, length, width]; where there are any, bias [heads,
            queries, keys] and sink [heads].
        dtype: That of the arrays.
        is_causal: Whether a query sees no later key.
        window: As in `sharpmax.attention`.
        softcap: Likewise.
        mask: Booleans [queries, keys], or None.
        sink_apart: Whether the sink stands apart.
        gradients: Whether to check gradients too.
    """

    title: str
    policy: Policy
    arrays: dict[str, Array]
    dtype: Dtype = "float32"
    is_causal: bool = False
    window: int | None = None
    softcap: float | None = None
    mask: npt.NDArray[np.bool_] | None = None
    sink_apart: bool = False
    gradients: bool = False


class Result(NamedTuple):
    """What an implementation made of a problem; `gradients` of the sum of output x `upstream`."""

    output: Array
    entropy: Array
    seen: Array
    gradients: dict[str, Array]


def _made(queries: int, keys: int, width: int = 64, value_width: int = 0) -> dict[str, Array]:
    generator = np.random.default_rng(queries + keys)
    shapes = {
        "query": (_HEADS, queries, width),
        "key": (_KEY_HEADS, keys, width),
        "value": (_KEY_HEADS, keys, value_width or width),
    }
    arrays = {name: _eight_bits(generator.normal(size=shape)) for name, shape in shapes.items()}
    return arrays | {"query": 2.0 * arrays["query"]}


def _eight_bits(numbers: Array) -> Array:
    """Round to eight significant bits; numbers that float16 would not hold exactly become 0."""
    mantissa, exponent = np.frexp(numbers)
    rounded = np.ldexp(np.round(mantissa * 256) / 256, exponent)
    return np.where(np.abs(rounded) < 2.0**-6, 0.0, rounded)


@functools.cache
def problems() -> tuple[Problem, ...]:
    """Return them all. Each serves several features, since a GPU compiles kernels for each."""
    generator = np.random.default_rng(0)
    sink = _eight_bits(generator.normal(size=_HEADS))
    bias = _eight_bits(generator.normal(size=(_HEADS, 70, 70)))
    mask = generator.random((130, 130)) < 0.7
    mask[[0, 77]] = False
    exponential = Exponential(1.0)
    prefill = Problem(
        "causal, gradients", exponential, _made(160, 160), is_causal=True, gradients=True
    )
    hidden = _made(130, 130)
    hidden["key"][:, -1] = hidden["value"][:, -1] = np.nan
    mask[:, -1] = False
    return (
        prefill,
        replace(prefill, title="causal, gradients, bfloat16", dtype="bfloat16"),
        replace(prefill, title="causal, float16", dtype="float16", gradients=False),
        Problem("decode, bfloat16", exponential, _made(1, 1000, 128), "bfloat16"),
        Problem("decode", LogLength(8), _made(1, 1000, 128)),
        Problem("plain softmax", Identity(), _made(160, 160), is_causal=True),
        Problem(
            "bias, softcap, window, odd widths, gradients",
            exponential,
            _made(70, 70, 40, 24) | {"bias": bias},
            is_causal=True,
            window=50,
            softcap=5.0,
            gradients=True,
        ),
        Problem("boolean mask, rows that see nothing, hidden NaN", exponential, hidden, mask=mask),
        Problem(
            "sink, gradients",
            Monotone((0.5, 1.0, 2.0), (1.0, 1.5, 4.0)),
            _made(70, 70) | {"sink": sink},
            gradients=True,
        ),
        Problem("sink apart", exponential, _made(70, 70) | {"sink": sink}, sink_apart=True),
        Problem("EntropyTarget, gradients", EntropyTarget(1.5), _made(160, 160), gradients=True),
        Problem("Hard", Hard(), _made(160, 160)),
    )


def upstream(problem: Problem) -> Array:
    """Return the gradient of the output that gradients are checked with."""
    shape = (*problem.arrays["query"].shape[:2], problem.arrays["value"].shape[2])
    return _eight_bits(np.random.default_rng(1).normal(size=shape))


def faults(problem: Problem, found: Result) -> list[str]:
    """Say where a result differs from the definition by more than rounding explains."""
    exact = _solution(problem)
    size = float(np.nanmax(np.abs(problem.arrays["value"])))
    # Single precision gathers some roundings; the dtype rounds weights, values and the result.
    allowed = (512 * EPSILON["float32"] + 4 * EPSILON[problem.dtype]) * size
    if isinstance(problem.policy, EntropyTarget):
        allowed += 1e-3 * size  # what its documented tolerance, 1e-4 nats, can move
    said = []
    for name, ours, truth, tolerance in (
        ("output", found.output, exact.output, allowed),
        ("entropy", found.entropy, exact.entropy, 1e-4),
        ("number of visible keys", found.seen, exact.seen, 0.0),
    ):
        error = float(np.max(np.abs(ours - truth)))
        if not error <= tolerance:  # also if it is NaN
            said.append(f"{name} differs by {error:.2g}, more than {tolerance:.2g}")
    return said + _gradient_faults(problem, found)


def _gradient_faults(problem: Problem, found: Result) -> list[str]:
    """Compare gradients with finite differences of the definition along random directions."""
    said = []
    for number, (name, gradient) in enumerate(found.gradients.items()):
        array = problem.arrays[name]
        direction = np.random.default_rng(number).normal(size=array.shape)
        loss = [
            float(np.sum(upstream(problem) * _solution(_with(problem, name, moved)).output))
            for moved in (array + _STEP * direction, array - _STEP * direction)
        ]
        exact, ours = (loss[0] - loss[1]) / (2 * _STEP), float(np.sum(gradient * direction))
        size = float(np.linalg.norm(gradient)) + abs(exact)
        relative = abs(ours - exact) / size if size else 0.0
        tolerance = 4096 * EPSILON["float32"] + 4 * EPSILON[problem.dtype]
        if isinstance(problem.policy, EntropyTarget):
            tolerance += 1e-2
        if not relative <= tolerance:
            share = f"{relative:.2g} of its size, more than {tolerance:.2g}"
            said.append(f"gradient of {name} differs by {share}")
    return said


def _with(problem: Problem, name: str, array: Array) -> Problem:
    return replace(problem, arrays=problem.arrays | {name: array})


def _solution(problem: Problem) -> Result:
    """Attend in double precision, by the definition in docs/attention.md."""
    arrays = problem.arrays
    query, group = arrays["query"], _HEADS // _KEY_HEADS
    key, value = (np.repeat(arrays[name], group, axis=0) for name in ("key", "value"))
    visible = _visible(problem)
    # What is hidden may hold anything, and does not count.
    seen = np.any(visible, axis=0, keepdims=True)[..., None]
    key, value = (np.where(seen, array, 0.0) for array in (key, value))
    logits = query @ key.transpose(0, 2, 1) / math.sqrt(query.shape[2])
    if problem.softcap:
        logits = problem.softcap * np.tanh(logits / problem.softcap)
    logits = logits + arrays.get("bias", 0.0)
    sink = arrays.get("sink")
    if sink is not None and not problem.sink_apart:
        rows = query.shape[1]
        logits = np.concatenate(
            [logits, np.broadcast_to(sink[:, None, None], (_HEADS, rows, 1))], 2
        )
        visible = np.concatenate([visible, np.ones((rows, 1), dtype=bool)], 1)
        value = np.concatenate([value, np.zeros((_HEADS, 1, value.shape[2]))], 1)
    measured = Rows(logits, -1, visible)
    beta: Any = problem.policy.over_queries().of_rows(measured)
    beta = np.broadcast_to(beta, measured.statistics.mass.shape)
    output = measured.weights(beta) @ value
    if sink is not None and problem.sink_apart:
        output = output / (1.0 + np.exp(sink[:, None] - measured.logsumexp(beta)))[..., None]
    statistics = measured.statistics
    return Result(output, statistics.entropy(), statistics.count, {})


def _visible(problem: Problem) -> npt.NDArray[np.bool_]:
    """Return which keys each query sees, [queries, keys]."""
    queries, keys = problem.arrays["query"].shape[1], problem.arrays["key"].shape[1]
    distance = np.arange(queries)[:, None] - np.arange(keys)[None]
    visible = np.ones((queries, keys), dtype=bool)
    if problem.is_causal:
        visible &= distance >= 0
    if problem.window is not None:
        visible &= np.abs(distance) < problem.window
    return visible if problem.mask is None else visible & problem.mask
