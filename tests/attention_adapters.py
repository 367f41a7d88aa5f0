"""Attention of other rooms, called like `sharpmax.attention` on tensors.

With an adapter, NumPy arrays, JAX and ranks go through the tests that every implementation goes
through. It refuses as an implementation does: f"impl={impl!r}: {argument}: why".
"""

from __future__ import annotations

import atexit
import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch
from torch import Tensor

import sharpmax
import sharpmax.jax
from distributed_calls import attend_by_rank
from gloo import Pool, RankFailedError
from sharpmax.distributed._call import METHODS
from sharpmax.distributed._layout import Layout, even_layout
from sharpmax.jax._api import IMPLEMENTATIONS
from sharpmax.jax.impl import _pallas, _tiles, pallas_gpu, pallas_tpu
from sharpmax.jax.impl._pallas import Blocks
from sharpmax.policies import Policy

RANKS = 2
NAMES = [
    "numpy",
    *(f"jax {name}" for name in IMPLEMENTATIONS),
    *(f"ranks {method}" for methods in METHODS.values() for method in methods),
]
"""What an adapter reaches."""

Given = dict[str, Any]
"""The arguments of a call, by the names of `sharpmax.attention`."""
Result = Any
"""The output, the statistics, or both, as they were asked for."""


def adapted(impl: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Result:
    """Call an adapter in place of `sharpmax.attention` or `sharpmax.attention_statistics`."""
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    room, _, name = impl.partition(" ")
    try:
        return {"numpy": _numpy, "jax": _jax, "ranks": _ranks}[room](name, dict(bound.arguments))
    except _RefusedError as refused:
        raise NotImplementedError(f"impl={impl!r}: {refused}") from None


class _RefusedError(Exception):
    """Say which argument is not served: "argument: why"."""


def _as_asked(given: Given, output: Tensor | None, statistics: sharpmax.RowStatistics) -> Result:
    if output is None:
        return statistics
    return (output, statistics) if given["return_statistics"] else output


# NumPy.


def _numpy(_: str, given: Given) -> Result:
    if any(isinstance(x, Tensor) and x.requires_grad for x in given.values()):
        raise _RefusedError("query: arrays have no gradient")
    arrays = {name: _array(x) for name, x in given.items()} | {"impl": "cpu"}
    if "value" not in given:
        return _statistics(sharpmax.attention_statistics(**arrays))
    found = sharpmax.attention(**arrays)
    if not given["return_statistics"]:
        return _tensor(found)
    return _tensor(found[0]), _statistics(found[1])


def _array(value: Any) -> Any:
    """A tensor as an array with the same layout; NumPy knows bfloat16 by `ml_dtypes`."""
    if not isinstance(value, Tensor):
        return value
    if value.dtype != torch.bfloat16:
        return value.numpy()
    return value.view(torch.int16).numpy().view(ml_dtypes.bfloat16)


def _tensor(array: Any) -> Tensor:
    array = np.asarray(array)
    array = array if array.flags.writeable else array.copy()
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _statistics(rows: Any) -> sharpmax.RowStatistics:
    maximum, mass, moment, count = map(_tensor, rows)
    return sharpmax.RowStatistics(maximum, mass, moment, count.long())


# JAX.

_QUICKLY = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
"""Compilation takes nearly all the time of a test."""


def _jax(name: str, given: Given) -> Result:
    for argument in ("dropout_p", "detach_temperature", "normaliser"):
        if given.get(argument):
            raise _RefusedError(f"{argument}: JAX has none")
    if given["sink"] is not None and given["sink_role"] == "apart":
        raise _RefusedError("sink: JAX has none that stands apart")
    arrays, options = _jax_arguments(given)
    policy = given.get("policy") if "value" in given else "none: statistics alone"
    with _settings(arrays):
        call = _jax_call(name, repr(policy), tuple(arrays), tuple(options.items()), policy)
        output, *rows = _Differentiated.apply(call, *arrays.values())
    statistics = _statistics(x.transpose(-1, -2) for x in rows)
    return _as_asked(given, output.transpose(-2, -3) if "value" in given else None, statistics)


def _jax_arguments(given: Given) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Arrays and options with the names and layouts of JAX."""
    shown = {name: given[name] for name in ("query", "key", "value") if name in given}
    arrays = {name: x.transpose(-2, -3) for name, x in shown.items()}
    scale = given["scale"]
    options: dict[str, Any] = {
        "scale": float(scale) if isinstance(scale, Tensor) else scale,
        "logits_soft_cap": given["softcap"],
    }
    causal, window = bool(given["is_causal"]), given["window"]
    visible = None
    if given["alignment"] == "upper_left":
        reach = None if window is None else window - 1
        options |= {"is_causal": causal, "local_window_size": reach}
    else:
        queries, keys = shown["query"].shape[-2], shown["key"].shape[-2]
        distance = torch.arange(keys) - torch.arange(queries)[:, None] - keys + queries
        visible = distance <= 0 if causal else torch.ones_like(distance, dtype=torch.bool)
        if window is not None:
            visible = visible & (distance.abs() < window)
    mask = given["attn_mask"]
    if mask is not None and mask.dtype == torch.bool:
        visible = mask if visible is None else mask & visible
    elif mask is not None:
        arrays["bias"] = mask
    if visible is not None:
        arrays["mask"] = visible
    if given["sink"] is not None:
        arrays["sink"] = given["sink"]
    return arrays, options


@functools.lru_cache(maxsize=64)
def _jax_call(
    name: str, _: str, names: tuple[str, ...], options: tuple[Any, ...], policy: Policy | None
) -> tuple[Any, Any]:
    """Output and statistics, and the gradients by a gradient of the output, both compiled."""

    def forward(*arrays: jax.Array) -> tuple[Any, Any]:
        arguments = dict(zip(names, arrays, strict=True)) | dict(options)
        try:
            if "value" not in arguments:
                found = sharpmax.jax.attention_statistics(**arguments, implementation=name)
                return jnp.zeros(()), found
            return sharpmax.jax.attention(
                **arguments, implementation=name, policy=policy, return_statistics=True
            )
        except NotImplementedError as error:
            raise _RefusedError(str(error).split(": ", 2)[2]) from None

    def backward(floating: dict[int, jax.Array], rest: dict[int, jax.Array], upstream: Any) -> Any:
        def output(floating: dict[int, jax.Array]) -> Any:
            return forward(*(x for _, x in sorted((floating | rest).items())))[0]

        return jax.vjp(output, floating)[1](upstream)[0]

    return tuple(jax.jit(function, compiler_options=_QUICKLY) for function in (forward, backward))


class _Differentiated(torch.autograd.Function):
    """Functions of JAX arrays as one of tensors; statistics have no gradient."""

    @staticmethod
    def forward(ctx: Any, call: tuple[Any, Any], *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.call, ctx.tensors = call, tensors
        output, rows = call[0](*map(_of_torch, tensors))
        entries = tuple(map(_tensor, rows))
        ctx.mark_non_differentiable(*entries)
        return (_tensor(output), *entries)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, upstream: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        with _settings(dict(enumerate(ctx.tensors))):
            arrays = dict(enumerate(map(_of_torch, ctx.tensors)))
            floating = {k: x for k, x in arrays.items() if x.dtype != bool}
            rest = {k: x for k, x in arrays.items() if x.dtype == bool}
            found = ctx.call[1](floating, rest, _of_torch(upstream))
        return (None, *(_tensor(found[k]) if k in found else None for k in arrays))


@contextmanager
def _settings(tensors: dict[Any, Tensor]) -> Iterator[None]:
    """Numbers of 64 bits where a tensor has them; kernels interpreted, with several tiles."""
    blocks = Blocks(40, 100)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_pallas, "INTERPRET", True)
        patch.setattr(_tiles, "QUERIES", blocks.queries)
        patch.setattr(_tiles, "KEYS", blocks.keys)
        patch.setattr(pallas_tpu, "BLOCKS", {512: blocks})
        patch.setattr(pallas_gpu, "LAUNCHES", {256: pallas_gpu.Launch(blocks, 4, 2)})
        with jax.enable_x64(any(x.dtype == torch.float64 for x in tensors.values())):
            yield


def _of_torch(tensor: Tensor) -> jax.Array:
    return jnp.asarray(_array(tensor.detach().contiguous()))


# Ranks.


@functools.cache
def _pool() -> Pool:
    pool = Pool(RANKS)
    atexit.register(pool.close)
    return pool


def _ranks(method: str, given: Given) -> Result:
    if given.get("normaliser") or given.get("dropout_p"):
        raise _RefusedError("dropout_p: ranks have none")
    if given["sink"] is not None:  # shares of its gradient add up before they are rounded
        wide = torch.promote_types(given["query"].dtype, torch.float32)
        given = given | {"sink": given["sink"].to(wide)}
    tensors = {name: x for name, x in given.items() if isinstance(x, Tensor)}
    options = {k: x for k, x in given.items() if k not in ("dropout_p", "normaliser", *tensors)}
    cut = _Cut(method, given["query"].shape[2], given["key"].shape[2])
    sharded = "sharded" if method in METHODS["sharded"] else "replicated"
    options |= {"method": method, "query_placement": sharded, "impl": "auto"}
    output, *rows = _Spread.apply(cut, tuple(tensors), options, *tensors.values())
    return _as_asked(given, output if "value" in given else None, _statistics(rows))


class _Cut:
    """Which rows and keys each rank holds."""

    def __init__(self, method: str, queries: int, keys: int) -> None:
        self.keys = even_layout(keys, RANKS, "contiguous")
        self.queries = even_layout(queries, RANKS, "contiguous")
        self.sharded = method in METHODS["sharded"]

    def axis(self, name: str, tensor: Tensor) -> tuple[int, Layout] | None:
        """The axis of a tensor that is spread, and how; None if every rank has all of it."""
        if name in ("key", "value"):
            return 2, self.keys
        if name == "query" and self.sharded:
            return 2, self.queries
        if name == "attn_mask":
            layout = self.queries if self.sharded else self.keys
            axis = tensor.ndim - (2 if self.sharded else 1)
            if axis >= 0 and tensor.shape[axis] == layout.total:
                return axis, layout
        return None

    def part(self, name: str, tensor: Tensor, rank: int) -> Tensor:
        spread = self.axis(name, tensor)
        return (
            tensor if spread is None else tensor.index_select(spread[0], spread[1].positions(rank))
        )

    def rows(self, parts: list[Tensor]) -> Tensor:
        """The whole of what has one entry per row."""
        if self.sharded:
            return torch.cat(parts, 2)
        for other in parts[1:]:
            assert torch.equal(parts[0].nan_to_num(), other.nan_to_num())
        return parts[0]

    def gradient(self, name: str, parts: list[Tensor], like: Tensor) -> Tensor:
        spread = self.axis(name, like)
        if spread is not None:
            return torch.cat(parts, spread[0])
        # With rows of its own each rank has a share; otherwise ranks agree, but for a mask.
        return sum(parts) if self.sharded or name == "attn_mask" else parts[0]


class _Spread(torch.autograd.Function):
    """Attention over ranks as a function of whole tensors."""

    @staticmethod
    def forward(
        ctx: Any, cut: _Cut, names: tuple[str, ...], options: Given, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.cut, ctx.names, ctx.options, ctx.tensors = cut, names, options, tensors
        found = _by_rank(ctx, None)
        output, *rows = (cut.rows(list(parts)) for parts in zip(*found, strict=True))
        ctx.mark_non_differentiable(*rows)
        return (output, *rows)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, upstream: Tensor, *_: Tensor) -> tuple[Any, ...]:
        found = _by_rank(ctx, upstream)
        whole = [
            None if parts[0] is None else ctx.cut.gradient(name, list(parts), tensor)
            for name, tensor, parts in zip(
                ctx.names, ctx.tensors, zip(*found, strict=True), strict=True
            )
        ]
        return (None, None, None, *whole)


def _by_rank(ctx: Any, upstream: Tensor | None) -> list[tuple[Any, ...]]:
    given = dict(zip(ctx.names, (x.detach() for x in ctx.tensors), strict=True))
    per_rank = []
    for rank in range(RANKS):
        parts = {name: ctx.cut.part(name, x, rank) for name, x in given.items()}
        share = None if upstream is None else ctx.cut.part("query", upstream, rank)
        per_rank.append((parts, ctx.options, share))
    try:
        return _pool().call(attend_by_rank, *per_rank)
    except RankFailedError as error:
        kind, text = next(iter(error.raised.values()))
        if kind == "NotImplementedError":
            raise _RefusedError(text.splitlines()[0].split(": ", 1)[1]) from None
        raise
