"""Describe calls of the C++ kernels to XLA, which runs them as foreign functions.

A call is a list of arrays and the structs of `sharpmax.h`, which have the number of an array in
place of its address. `kernels/xla.cpp` reads them.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sharpmax import kernels
from sharpmax.jax._problem import Array, Problem, vary_alike
from sharpmax.policies import Form

_TARGET = "sharpmax"
_FUNCTIONS = (
    "sharpmax_statistics",
    "sharpmax_forward",
    "sharpmax_row_gradient",
    "sharpmax_backward",
)
_TYPES = {jnp.dtype(name): number for name, number in kernels.TYPES.items()}


@functools.cache
def registered() -> str | None:
    """Make the kernels known to XLA; say why that failed, or None."""
    library = kernels.load()
    if not hasattr(library, "sharpmax_xla"):
        return "the library of the kernels was compiled without jaxlib, and has no entry for JAX"
    jax.ffi.register_ffi_target(_TARGET, jax.ffi.pycapsule(library.sharpmax_xla), platform="cpu")
    return None


class Operand(NamedTuple):
    """An array of a call, with the axes [batch, head, row, column]."""

    number: int
    """Its place in the call, from 1."""
    shape: tuple[int, ...]
    dtype: Any
    strides: tuple[int, ...]

    def by_position(self) -> Operand:
        """[batch, row, head, column] as [batch, head, row, column]."""
        return self._replace(
            shape=tuple(self.shape[axis] for axis in (0, 2, 1, 3)),
            strides=tuple(self.strides[axis] for axis in (0, 2, 1, 3)),
        )

    def broadcast(self, shape: tuple[int, ...]) -> Operand:
        """Repeat axes of length 1."""
        pairs = zip(self.shape, self.strides, strict=True)
        strides = tuple(0 if size == 1 else stride for size, stride in pairs)
        return self._replace(shape=shape, strides=strides)


class Call:
    """One call: first its arguments are given, then its results are made."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._arguments: list[Array] = []
        self._results: list[tuple[tuple[int, ...], Any]] = []
        self._words = b""
        self.framework = kernels.Framework(
            _TYPES,
            lambda operand: (operand.number, *operand.strides),
            lambda operand: 0 if operand is None else operand.number,
            lambda: 0,  # XLA's number
            run=self._keep,
        )
        self.query = self.positions(problem.query)
        self.key = self.positions(problem.key)
        self.first_key = 0
        if problem.first_key is not None:
            self.first_key = self.rows(problem.first_key.astype(jnp.int32)).number

    # Arguments.

    def rows(self, array: Array | None) -> Any:
        """Give a contiguous array."""
        if array is None:
            return None
        self._arguments.append(array)
        return _contiguous(len(self._arguments), array.shape, array.dtype)

    def positions(self, array: Array) -> Operand:
        """Give an array [batch, positions, heads, width]."""
        operand: Operand = self.rows(array)
        return operand.by_position()

    def value(self) -> Operand:
        """Give the values; if there are none, zeros of width one that take no memory."""
        if self.problem.value is not None:
            return self.positions(self.problem.value)
        return self.nothing(*self.key.shape[:3])

    def nothing(self, *shape: int) -> Operand:
        """Give zeros of width one that take no memory."""
        operand: Operand = self.rows(jnp.zeros((1, 1, 1, 1), self.problem.query.dtype))
        return operand._replace(shape=(*shape, 1), strides=(0, 0, 0, 1))

    def mask(self) -> Operand | None:
        """Give mask, bias and lengths of keys as one array."""
        mask = mask_of(self.problem, lengths=True)
        if mask is None:
            return None
        operand: Operand = self.rows(mask)
        return operand.broadcast((*self.problem.rows, self.problem.keys))

    def settings(self) -> tuple[float, float, int, int, int, bool]:
        problem = self.problem
        left, right = (-1 if side is None else side for side in (problem.left, problem.right))
        return problem.scale, problem.soft_cap, left, right, 0, problem.sink is not None

    # Results.

    def made(self, shape: tuple[int, ...], dtype: Any) -> Operand:
        """Make a contiguous result."""
        self._results.append((shape, dtype))
        return _contiguous(len(self._arguments) + len(self._results), shape, jnp.dtype(dtype))

    def made_rows(self, count: int) -> list[Operand]:
        """Make results with one number per row."""
        return [self.made(self.problem.rows, self.problem.statistics_dtype) for _ in range(count)]

    def made_count(self) -> Operand:
        """Make 64-bit integers, as pairs of 32 bits: JAX has them only if it is asked to."""
        return self.made((*self.problem.rows, 2), jnp.int32)

    def made_positions(self, like: tuple[int, ...]) -> Operand:
        return self.made(like, self.problem.query.dtype).by_position()

    def _keep(self, function: str, *structs: bytes) -> None:
        header = np.array([_FUNCTIONS.index(function), self.first_key], np.int64)
        self._words = header.tobytes() + b"".join(structs)

    def run(self) -> list[Array]:
        """Run the kernel that was described."""
        arguments = vary_alike(self._arguments)
        # Inside of `shard_map`, what a result is includes where it lies and over which axes of the
        # mesh it varies.
        kind = jax.typeof(arguments[0])
        mesh = kind.sharding.mesh
        place = None if mesh.empty else jax.sharding.NamedSharding(mesh, jax.P())
        results = [
            jax.ShapeDtypeStruct(*made, sharding=place, manual_axis_type=kind.manual_axis_type)
            for made in self._results
        ]
        call = jax.ffi.ffi_call(_TARGET, results, vmap_method="broadcast_all")
        return list(call(*arguments, call=np.frombuffer(self._words, np.int64)))


def _contiguous(number: int, shape: tuple[int, ...], dtype: Any) -> Operand:
    strides, size = [], 1
    for length in reversed(shape):
        strides.append(size)
        size *= length
    return Operand(number, tuple(shape), dtype, tuple(reversed(strides)))


def mask_of(problem: Problem, lengths: bool) -> Array | None:
    """Return mask, bias and lengths of keys: booleans, or numbers to add; -inf hides a key.

    The axes are [batch, heads, queries, keys], each of which may be 1. Lengths are optional.
    """
    mask = problem.mask
    if lengths and problem.key_lengths is not None:
        positions = replace(problem, left=None, right=None, query_lengths=None)
        allowed = positions.visible(jnp.arange(1), jnp.arange(problem.keys))
        mask = allowed if mask is None else mask & allowed
    if problem.bias is None or mask is None:
        return mask if problem.bias is None else problem.bias
    return jnp.where(mask, problem.bias, -jnp.inf)


# The four functions of the interface.


def statistics(problem: Problem) -> list[Array]:
    """Maximum, mass, moment and count of all rows."""
    call = Call(problem)
    inputs = (call.query, call.key, call.mask(), call.rows(problem.sink))
    results = (*call.made_rows(3), call.made_count())
    kernels.statistics(call.framework, inputs, call.settings(), results)
    *rows, count = call.run()
    return [*rows, count[..., 0]]


def forward(
    problem: Problem, form: Form, table: Array | None, beta: Array | None, measured: bool
) -> list[Array]:
    """Output, maximum, beta and log-mass; if `measured`, then mass, moment and count."""
    call = Call(problem)
    inputs = _inputs(call)
    parameters = call.rows(table) if table is not None and table.size else None
    if parameters is None:
        parameters = Operand(0, (1, 0), None, ())
    policy = (int(form), parameters, call.rows(beta))
    output = call.made_positions((*problem.query.shape[:3], inputs[2].shape[3]))
    maximum, of_beta, log_mass = call.made_rows(3)
    rows: tuple[Any, ...] = (None, None, None)
    if measured:
        rows = (*call.made_rows(2), call.made_count())
    results = (output, maximum, *rows, of_beta, log_mass)
    kernels.forward(call.framework, inputs, call.settings(), policy, results)
    returned = call.run()
    if measured:
        returned[-1] = returned[-1][..., 0]
    return returned


class Upstream(NamedTuple):
    """What gradients start from: those by output and log-mass, and what the forward pass gave."""

    gradient: Array | None
    """None if nothing depends on the output."""
    of_log_mass: Array | None
    output: Array | None
    beta: Array
    log_mass: Array
    maximum: Array


def row_gradient(problem: Problem, upstream: Upstream) -> list[Array]:
    """The gradient by beta, and mean and variance of the logits of each row."""
    call = Call(problem)
    inputs, given = _inputs(call), _given(call, upstream)
    results = tuple(call.made_rows(3))
    kernels.row_gradient(call.framework, inputs, call.settings(), given, results)
    return call.run()


def backward(
    problem: Problem, upstream: Upstream, terms: tuple[Array | None, ...], wants_bias: bool
) -> Problem:
    """Gradients by the arrays of the problem, None for those that have none."""
    call = Call(problem)
    inputs, given = _inputs(call), _given(call, upstream)
    of_terms = tuple(call.rows(term) for term in terms)
    results: dict[str, Any] = {
        "query": call.made_positions(problem.query.shape),
        "key": call.made_positions(problem.key.shape),
        "value": call.made_positions((*problem.key.shape[:3], inputs[2].shape[3])),
    }
    precise = problem.statistics_dtype
    if wants_bias:
        results["bias"] = call.made((*problem.rows, problem.keys), precise)
    if problem.sink is not None:
        results["sink"] = call.made(problem.sink.shape, precise)
    written = tuple(map(results.get, ("query", "key", "value", "bias", "sink", "beta")))
    kernels.backward(call.framework, inputs, call.settings(), given, of_terms, written)
    gradients = dict(zip(results, call.run(), strict=True))
    if problem.value is None:
        del gradients["value"]
    if wants_bias:
        assert problem.bias is not None
        single = [axis for axis in range(4) if problem.bias.shape[axis] == 1]
        summed = gradients["bias"].sum(single, keepdims=True)
        gradients["bias"] = summed.astype(problem.bias.dtype)
    nothing: dict[str, Any] = dict.fromkeys(
        ("value", "bias", "mask", "sink", "query_lengths", "key_lengths", "first_key")
    )
    return replace(problem, **nothing | gradients)


def _inputs(call: Call) -> tuple[Any, ...]:
    return call.query, call.key, call.value(), call.mask(), call.rows(call.problem.sink)


def _given(call: Call, upstream: Upstream) -> tuple[Any, ...]:
    gradient, of_log_mass, output, *rows = upstream
    if gradient is None or output is None:
        zeros = call.nothing(*call.query.shape[:3])
        gradient, output = zeros, zeros
    else:
        gradient, output = call.positions(gradient), call.positions(output)
    return gradient, call.rows(of_log_mass), output, *map(call.rows, rows)
