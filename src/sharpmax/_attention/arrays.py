"""Attend with NumPy arrays: the kernels, without any framework and without gradients."""

from __future__ import annotations

import functools
import math
import os
import weakref
from typing import Any, NamedTuple

import numpy as np

from sharpmax import kernels
from sharpmax._arrays import broadcast
from sharpmax._attention.settings import Settings, check_heads, equal, resolve
from sharpmax._statistics import RowStatistics
from sharpmax.policies import Form, Hard, Identity, Policy
from sharpmax.policies._parameter import as_numbers

Array = np.ndarray[Any, Any]

_PLAIN = Identity()
_NO_COLUMNS = np.zeros((1, 0))
_NUMBERS = (int, float, str, np.ndarray, type(None))
_SMALLEST = {kind: float(np.finfo(kind).tiny) for kind in (np.float32, np.float64)}


class _Problem(NamedTuple):
    """The arrays of one attention as the kernels read them: [batch, heads, length, width]."""

    query: Array
    key: Array
    value: Array | None
    mask: Array | None
    sink: Array | None
    settings: Settings
    leading: tuple[int, ...]
    """The axes before the queries that the caller expects."""

    def rows(self, *width: int) -> Array:
        """Make an array with one number per row."""
        return np.empty((*self.query.shape[:3], *width), _row_dtype(self.query))

    def unfold(self, result: Array) -> Array:
        """Return a result [batch, heads, queries, ...] with the axes of the caller."""
        return result.reshape(*self.leading, *result.shape[2:])


def attention(
    query: Array,
    key: Array,
    value: Array,
    attn_mask: Array | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
    policy: Policy | None,
    softcap: float | None,
    sink: Array | None,
    window: int | None,
    impl: str,
    return_statistics: bool,
    alignment: str,
    sink_role: str,
    _detach_temperature: bool,
    normaliser: object,
) -> Array | tuple[Array, RowStatistics]:
    """Serve `sharpmax.attention` of arrays."""
    policy = _PLAIN if policy is None else policy
    if not isinstance(policy, Policy):
        raise TypeError(f"policy: expected a sharpmax policy or None, got {policy!r}")
    for name, given in (("dropout_p", dropout_p), ("normaliser", normaliser)):
        if given:
            raise NotImplementedError(f"impl={impl!r}: {name}: only torch tensors have it")
    if isinstance(policy, Hard) and sink is not None and sink_role == "apart":
        raise ValueError("sink_role: expected 'key' with Hard, since beta is infinite")
    problem = _check(
        query, key, value, attn_mask, is_causal, scale, enable_gqa, softcap, sink, window,
        alignment, sink_role,
    )  # fmt: skip
    _prepare(impl)
    output, statistics = _attend(problem, policy.current(), return_statistics)
    if statistics is None:
        return problem.unfold(output)
    return problem.unfold(output), RowStatistics(*map(problem.unfold, statistics))


def attention_statistics(
    query: Array,
    key: Array,
    attn_mask: Array | None,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
    softcap: float | None,
    sink: Array | None,
    window: int | None,
    impl: str,
    alignment: str,
    sink_role: str,
) -> RowStatistics:
    """Serve `sharpmax.attention_statistics` of arrays."""
    problem = _check(
        query, key, None, attn_mask, is_causal, scale, enable_gqa, softcap, sink, window,
        alignment, sink_role,
    )  # fmt: skip
    _prepare(impl)
    return RowStatistics(*map(problem.unfold, _measure(problem)))


# Policies.


def _attend(
    problem: _Problem, policy: Policy, measured: bool
) -> tuple[Array, RowStatistics | None]:
    found = _table_of(policy, problem.query.shape[1])
    if found is None:
        statistics = _measure(problem)
        tempered = functools.partial(_temper, problem)
        beta = policy.over_queries().of_statistics(statistics, tempered)
        output, *_ = _forward(problem, Form.GIVEN, _NO_COLUMNS, np.ascontiguousarray(beta))
        return output, statistics if measured else None
    if not measured and type(policy).check_statistics is Policy.check_statistics:
        return _forward(problem, *found, None, measured=False)[0], None
    output, *rows, _, _ = _forward(problem, *found, None)
    statistics = RowStatistics(*rows)
    policy.check_statistics(statistics)
    return output, statistics if measured else None


_tables: dict[int, tuple[weakref.ref[Policy], tuple[Form, Array], int]] = {}
"""By the identity of a policy: the form, the table of parameters that kernels read, its rows."""


def _table_of(policy: Policy, heads: int) -> tuple[Form, Array] | None:
    """The closed form of a policy and its columns; None for a policy without one.

    A policy of numbers does not change, so it is encoded once.
    """
    key = id(policy)
    known = _tables.get(key)
    if known is not None and known[0]() is policy and known[2] in (1, heads):
        return known[1]
    policy.check_heads(heads)
    found = policy.kernel_form()
    if found is None:
        return None
    columns = np.broadcast_arrays(*(np.atleast_1d(as_numbers(x)) for x in found.columns))
    table = np.ascontiguousarray(np.stack(columns, -1)) if columns else _NO_COLUMNS
    if table.ndim > 2:
        raise ValueError(f"policy: expected parameters with one axis, over heads, got {policy!r}")
    if all(isinstance(value, _NUMBERS) for value in vars(policy).values()):
        reference = weakref.ref(policy, lambda _: _tables.pop(key, None))
        _tables[key] = reference, (found.form, table), len(table)
    return found.form, table


def _forward(
    problem: _Problem, form: Form, table: Array, beta: Array | None, measured: bool = True
) -> tuple[Any, ...]:
    """Output, maximum, mass, moment, count, beta, log-mass; the output alone unless `measured`."""
    query, key, value, mask, sink, settings, _ = problem
    width = 0 if value is None else value.shape[3]
    output = np.empty((*query.shape[:3], width), query.dtype)
    rows: tuple[Any, ...] = (None,) * 6
    if measured:
        rows = *_empty_statistics(problem), problem.rows(), problem.rows()
    results = output, *rows
    inputs = query, key, value, mask, sink
    kernels.forward(_NUMPY, inputs, settings, (form, table, beta), results)
    return results


def _measure(problem: _Problem) -> RowStatistics:
    query, key, _, mask, sink, settings, _ = problem
    results = _empty_statistics(problem)
    counted = sink if settings.sink_counted else None
    kernels.statistics(_NUMPY, (query, key, mask, counted), settings, results)
    return RowStatistics(*results)


def _temper(problem: _Problem, beta: Array) -> tuple[Array, Array]:
    """Entropy and variance of all rows at the inverse temperature beta, for `needs_logits`."""
    sink = problem.sink if problem.settings.sink_counted else None
    problem = problem._replace(value=None, sink=sink)
    beta = np.broadcast_to(beta, problem.query.shape[:3])
    beta = np.ascontiguousarray(beta, _row_dtype(problem.query))
    output, maximum, _, _, count, _, logmass = _forward(problem, Form.GIVEN, _NO_COLUMNS, beta)
    by_beta, mean, variance = problem.rows(), problem.rows(), problem.rows()
    inputs = problem.query, problem.key, None, problem.mask, sink
    upstream = output, None, output, beta, logmass, maximum
    kernels.row_gradient(_NUMPY, inputs, problem.settings, upstream, (by_beta, mean, variance))
    gap = np.where(count == 0, 0.0, mean) - np.where(count == 0, 0.0, maximum)
    return np.where(count == 0, 0.0, logmass - beta * gap), variance


def _empty_statistics(problem: _Problem) -> tuple[Array, ...]:
    count = np.empty(problem.query.shape[:3], np.int64)
    return problem.rows(), problem.rows(), problem.rows(), count


# Arguments.


def _check(
    query: Any,
    key: Any,
    value: Any,
    mask: Any,
    is_causal: bool,
    scale: Any,
    enable_gqa: bool,
    softcap: Any,
    sink: Any,
    window: Any,
    alignment: str,
    sink_role: str,
) -> _Problem:
    """Check every argument, and bring arrays [..., heads, length, width] to four axes."""
    given = {"query": query, "key": key} | ({} if value is None else {"value": value})
    arrays = {name: _floating(name, array, query) for name, array in given.items()}
    ranks = {array.ndim for array in arrays.values()}
    has_heads = max(ranks) > 2
    if 2 in ranks:
        arrays = {name: array if array.ndim > 2 else array[None] for name, array in arrays.items()}
    try:
        shapes = {array.shape[:-3] for array in arrays.values()}
        leading = shapes.pop() if len(shapes) == 1 else np.broadcast_shapes(*shapes)
    except ValueError:
        came = ", ".join(str(np.shape(array)) for array in given.values())
        raise ValueError(
            f"query, key, value: expected leading axes that broadcast, got shapes {came}"
        ) from None
    counts = {array.shape[-3] for array in arrays.values()}
    if not enable_gqa and len(counts) == 2 and 1 in counts:
        (heads,) = counts - {1}
        arrays = {
            name: np.broadcast_to(array, (*array.shape[:-3], heads, *array.shape[-2:]))
            for name, array in arrays.items()
        }
    folded = {name: _one_batch(array, leading) for name, array in arrays.items()}
    query, key, value = folded["query"], folded["key"], folded.get("value")
    batch, heads, queries, width = query.shape
    key_heads, keys = key.shape[1:3]
    equal("key: width", key.shape[3], width)
    check_heads(heads, key_heads, enable_gqa)
    if value is not None:
        equal("value: heads", value.shape[1], key_heads)
        equal("value: length", value.shape[2], keys)
    settings = resolve(
        queries,
        keys,
        width,
        _SMALLEST[_row_dtype(query)],
        is_causal=is_causal,
        alignment=alignment,
        scale=scale,
        softcap=softcap,
        sink_role=sink_role,
        window=window,
    )
    return _Problem(
        query,
        key,
        value,
        None if mask is None else _check_mask(mask, leading, (batch, heads, queries, keys)),
        None if sink is None else _check_sink(sink, query),
        settings,
        (*leading, heads) if has_heads else leading,
    )


def _floating(name: str, array: Any, query: Any) -> Any:
    _check_type(name, array)
    kind = _name(array.dtype)
    if kind not in _FLOATING:
        raise TypeError(f"{name}: expected one of {', '.join(_FLOATING)}, got {array.dtype}")
    if kind != _name(query.dtype):
        raise TypeError(f"{name}: expected the dtype of query, {query.dtype}, got {array.dtype}")
    if array.ndim < 2:
        raise ValueError(f"{name}: expected shape [..., heads, length, width], got {array.shape}")
    return array


def _check_type(name: str, array: Any) -> None:
    if type(array) is np.ndarray:
        return
    if not isinstance(array, np.ndarray) or isinstance(array, np.ma.MaskedArray):
        raise TypeError(f"{name}: expected a NumPy array, got {type(array).__name__}")


def _check_mask(mask: Any, leading: tuple[int, ...], shape: tuple[int, ...]) -> Array:
    _check_type("attn_mask", mask)
    if mask.dtype.name not in kernels.TYPES:
        raise TypeError(f"attn_mask: expected a boolean or floating array, got {mask.dtype}")
    if len(leading) > 1 and mask.ndim > 3:
        mask = _one_batch(mask, leading)
    return _readable(broadcast("attn_mask", mask, shape), any_column=True)


def _check_sink(sink: Any, query: Array) -> Array:
    if not isinstance(sink, np.ndarray) or sink.dtype.name not in _FLOATING:
        raise TypeError(f"sink: expected a floating array, got {getattr(sink, 'dtype', sink)!r}")
    if sink.shape != (query.shape[1],):
        raise ValueError(
            f"sink: expected one logit per query head, shape ({query.shape[1]},), got {sink.shape}"
        )
    return np.ascontiguousarray(sink, _row_dtype(query))


def _one_batch(array: Array, leading: tuple[int, ...]) -> Array:
    """Broadcast the leading axes, join them into one, and make the kernels able to read it."""
    if len(leading) == 1 and array.shape[:-3] == leading:
        return _readable(array)
    array = np.broadcast_to(array, (*leading, *array.shape[-3:]))
    return _readable(array.reshape(math.prod(leading), *array.shape[-3:]))


def _readable(array: Array, any_column: bool = False) -> Array:
    """The array, or a copy where its layout is none that the kernels read."""
    size, flags = array.itemsize, array.flags
    whole = flags.aligned and (
        flags.c_contiguous or all(x >= 0 and x % size == 0 for x in array.strides)
    )
    if not array.dtype.isnative:
        return array.astype(array.dtype.newbyteorder("="))
    if whole and (any_column or array.strides[3] == size or array.shape[3] < 2):
        return array
    return array.copy()


# How the kernels read arrays.

_FLOATING = [name for name in kernels.TYPES if name != "bool"]


def _prepare(impl: str) -> None:
    """Load the kernels, or raise an error that says why nothing can serve."""
    if impl not in ("auto", "cpu"):
        raise NotImplementedError(f"impl={impl!r}: only 'cpu' and 'auto' serve NumPy arrays")
    reason = kernels.failure()
    if reason is not None:
        raise NotImplementedError(f"impl={impl!r}: {reason}")


def _row_dtype(query: Array) -> type[np.floating[Any]]:
    return np.float64 if query.dtype == np.float64 else np.float32


def _described(array: Array) -> tuple[int, ...]:
    size = array.itemsize
    batch, head, row, column = array.strides
    last = column // size if array.shape[3] > 1 else 1
    return _address(array), batch // size, head // size, row // size, last


def _address(array: Array | None) -> int:
    # Three times as fast as `array.ctypes.data`.
    return 0 if array is None else int(array.__array_interface__["data"][0])


@functools.cache
def _name(dtype: Any) -> str:
    """The name of a dtype, which NumPy puts together each time."""
    return str(dtype.name)


@functools.cache
def _threads() -> int:
    """What OMP_NUM_THREADS says, as NumPy's own products heed it; 0 for all."""
    first = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return int(first) if first.isdecimal() else 0


class _Types(dict[Any, int]):
    """The numbers of the dtypes by their names: bfloat16 is a type of another package."""

    def __missing__(self, dtype: Any) -> int:
        return kernels.TYPES[_name(dtype)]


_NUMPY = kernels.Framework(_Types(), _described, _address, _threads)
