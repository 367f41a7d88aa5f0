"""Call the CPU kernels: C++17 behind a C interface, without any framework in it.

`sharpmax.h` declares the interface. A caller brings a `Framework`, which says how to read its
arrays, and results that it has allocated; this module packs the structs of the interface.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from sharpmax.kernels._build import (
    CacheError,
    CompilationError,
    CompilerMissingError,
    failure,
    load,
    unavailable,
)

__all__ = [
    "TYPES",
    "CacheError",
    "CompilationError",
    "CompilerMissingError",
    "Framework",
    "backward",
    "failure",
    "forward",
    "instructions",
    "load",
    "row_gradient",
    "run",
    "statistics",
    "unavailable",
]

TYPES = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 3, "bool": 4}
"""The numbers of the types of arrays."""

# The structs of sharpmax.h, which consist of numbers of 64 bits.
_PROBLEM = struct.Struct("14q2d22q").pack
_POLICY = struct.Struct("5q").pack
_ROWS = struct.Struct("4q").pack
_RESULTS = struct.Struct("11q").pack
_UPSTREAM = struct.Struct("14q").pack
_TERMS = struct.Struct("4q").pack
_MOMENTS = struct.Struct("3q").pack
_GRADIENTS = struct.Struct("18q").pack

_NOTHING = (0, 0, 0, 0, 1)
_NO_DATA = (
    "sharpmax: the CPU attention expects arrays with memory of their own, and got one without, as "
    "a functional tensor or one whose storage was freed; pass a copy"
)


def instructions() -> str:
    """Return the vector instructions that the library chose, for example "avx512"."""
    found = load().sharpmax_instructions
    found.restype = ctypes.c_char_p
    return str(found().decode())


def run(function: str, *structs: bytes) -> None:
    """Call a function of the library.

    Raises:
        MemoryError: there is not enough memory.
        RuntimeError: it failed.
    """
    status: int = getattr(load(), function)(*structs)
    if status:
        if status == 1:
            raise RuntimeError(_NO_DATA)
        if status == 2:
            raise MemoryError("sharpmax: no memory for the CPU attention")
        raise RuntimeError(f"sharpmax: the CPU attention failed (status {status})")


class Framework(NamedTuple):
    """How to read the arrays of a framework, and the threads that its own operations run on."""

    types: Mapping[Any, int]
    """The number of each dtype."""
    described: Callable[[Any], tuple[int, ...]]
    """Of an array [batch, head, row, column] its address and its four strides in elements."""
    address: Callable[[Any], int]
    """Of a contiguous array; 0 of None."""
    threads: Callable[[], int]
    """How many threads to use; 0 for all."""
    parallel: int = 0
    """The address of a function like GOMP_parallel that runs them; 0 for the library's own."""
    run: Callable[..., None] = run
    """Calls a function of the library, given its name and its structs."""


def statistics(framework: Framework, inputs: tuple[Any, ...], settings: Any, rows: Any) -> None:
    """Measure the rows of `inputs`, (query, key, mask, sink), into maximum, mass, moment, count."""
    query, key, mask, sink = inputs
    problem = _problem(framework, settings, query, key, None, mask, sink)
    framework.run("sharpmax_statistics", problem, _ROWS(*map(framework.address, rows)))


def forward(
    framework: Framework,
    inputs: tuple[Any, ...],
    settings: Any,
    policy: tuple[int, Any, Any],
    results: tuple[Any, ...],
) -> None:
    """Attend with `inputs`, (query, key, value, mask, sink).

    Args:
        framework: that of the arrays.
        inputs: query, key, value, mask and sink, the last two or None.
        settings: scale, softcap, left, right, offset, whether the sink counts.
        policy: the number of the form, its parameters [heads or 1, columns] in float64, and beta.
        results: output, maximum, mass, moment, count, beta, log-mass; None for what is not wanted.
    """
    form, parameters, beta = policy
    address = framework.address
    heads, columns = parameters.shape
    packed = _POLICY(form, columns, columns if heads > 1 else 0, address(parameters), address(beta))
    problem = _problem(framework, settings, *inputs)
    output, *rows = results
    packed_results = _RESULTS(*framework.described(output), *map(address, rows))
    framework.run("sharpmax_forward", problem, packed, packed_results)


def row_gradient(
    framework: Framework,
    inputs: tuple[Any, ...],
    settings: Any,
    upstream: tuple[Any, ...],
    results: tuple[Any, ...],
) -> None:
    """Compute the gradient by beta and mean and variance of the logits of every row.

    `upstream` has the gradients by output and log-mass (or None), output, beta, log-mass, maximum.
    """
    problem = _problem(framework, settings, *inputs)
    moments = _MOMENTS(*map(framework.address, results))
    framework.run("sharpmax_row_gradient", problem, _upstream(framework, *upstream), moments)


def backward(
    framework: Framework,
    inputs: tuple[Any, ...],
    settings: Any,
    upstream: tuple[Any, ...],
    terms: tuple[Any, ...],
    results: tuple[Any, ...],
) -> None:
    """Compute gradients by query, key, value and, unless None, mask, sink and the beta of each row.

    `upstream` is that of `row_gradient`; `terms` are a0, c0, a1, c1 of the interface.
    """
    address = framework.address
    query, key, value, *others = results
    strided = (word for array in (query, key, value) for word in framework.described(array))
    framework.run(
        "sharpmax_backward",
        _problem(framework, settings, *inputs),
        _upstream(framework, *upstream),
        _TERMS(*map(address, terms)),
        _GRADIENTS(*strided, *map(address, others)),
    )


def _problem(
    framework: Framework, settings: Any, query: Any, key: Any, value: Any, mask: Any, sink: Any
) -> bytes:
    types, described, address, threads, parallel, _ = framework
    scale, softcap, left, right, offset, sink_counted = settings
    batches, heads, queries, width = query.shape
    _, key_heads, keys, _ = key.shape
    masked = _NOTHING if mask is None else described(mask)
    added = address(sink)
    # Without an address they would be none, and the result another one.
    if (mask is not None and not masked[0] and 0 not in mask.shape) or (
        sink is not None and not added and heads
    ):
        raise RuntimeError(_NO_DATA)
    return _PROBLEM(
        batches,
        heads,
        key_heads,
        queries,
        keys,
        width,
        0 if value is None else value.shape[3],
        types[query.dtype],
        0 if mask is None else types[mask.dtype],
        left,
        right,
        offset,
        sink_counted,
        threads(),
        scale,
        softcap,
        *described(query),
        *described(key),
        *(_NOTHING if value is None else described(value)),
        *masked,
        added,
        parallel,
    )


def _upstream(
    framework: Framework,
    gradient: Any,
    of_logmass: Any,
    output: Any,
    beta: Any,
    logmass: Any,
    maximum: Any,
) -> bytes:
    rows = map(framework.address, (beta, logmass, maximum, of_logmass))
    return _UPSTREAM(*framework.described(gradient), *framework.described(output), *rows)
