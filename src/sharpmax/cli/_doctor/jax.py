"""Check and time the implementations of `sharpmax.jax.attention`, on JAX's default device."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import sharpmax.jax
from sharpmax.cli._doctor.problems import Array, Problem, Result, upstream
from sharpmax.cli._doctor.timing import best_times
from sharpmax.jax import _problem as checked
from sharpmax.jax._api import IMPLEMENTATIONS
from sharpmax.policies import Exponential

PACKAGES = ("numpy", "jax", "jaxlib", "flax")


def facts() -> dict[str, str]:
    """Describe what attention in JAX can run on."""
    return {"devices of JAX": ", ".join(dict.fromkeys(each.device_kind for each in jax.devices()))}


def devices() -> list[str]:
    """Return the platform that JAX would use."""
    return [jax.default_backend()]


def missing(name: str, _: str) -> str | None:
    """Say why an implementation cannot serve, or None. Builds what it needs."""
    array = jnp.zeros((1, 1, 1, 8))
    problem = checked.check(
        array, array, array, None, None, scale=None, is_causal=False, query_seq_lengths=None,
        key_value_seq_lengths=None, local_window_size=None, logits_soft_cap=None, sink=None,
        axis_name=None,
    )  # fmt: skip
    implementation = IMPLEMENTATIONS[name]
    reason: str | None = implementation.unsupported(problem, None)
    if reason is None and hasattr(implementation, "prepare"):
        reason = implementation.prepare()
    return reason


def solve(problem: Problem, name: str, _: str) -> Result:
    """Run a problem, with products of float32 that are not rounded to less.

    Raises:
        NotImplementedError: the implementation does not serve it.
    """
    if problem.sink_apart:
        raise NotImplementedError("sink: in JAX it is always one more key")
    turned = ("query", "key", "value")
    given = {
        key: jnp.asarray(array.transpose(1, 0, 2)[None] if key in turned else array, problem.dtype)
        for key, array in problem.arrays.items()
    }
    reach = None if problem.window is None else problem.window - 1
    window = None if reach is None else (reach, 0 if problem.is_causal else reach)
    bias = given.get("bias")

    def attend(given: dict[str, Any]) -> Any:
        return sharpmax.jax.attention(
            given["query"],
            given["key"],
            given["value"],
            bias=given["bias"][None] if bias is not None else None,
            mask=None if problem.mask is None else jnp.asarray(problem.mask)[None, None],
            policy=problem.policy,
            is_causal=problem.is_causal,
            local_window_size=window,
            logits_soft_cap=problem.softcap,
            sink=given.get("sink"),
            implementation=name,  # type: ignore[arg-type]  # one of those registered
            return_statistics=True,
        )

    def loss(given: dict[str, Any]) -> Any:
        output, statistics = attend(given)
        gradient = jnp.asarray(upstream(problem).transpose(1, 0, 2)[None], "float32")
        return jnp.sum(output.astype("float32") * gradient), (output, statistics)

    gradients = {}
    with jax.default_matmul_precision("highest"):
        if problem.gradients:
            differentiated = jax.jit(jax.value_and_grad(loss, has_aux=True))
            (_, (output, statistics)), gradients = differentiated(given)
        else:
            compiled = jax.jit(attend)
            output, statistics = compiled(given)
            if not jnp.array_equal(output, compiled(given)[0]):
                raise ArithmeticError("the same call gave two different outputs")
    return Result(
        _by_head(output),
        _plain(statistics.entropy())[0].T,
        _plain(statistics.count)[0].T,
        {key: _by_head(g) if key in turned else _plain(g) for key, g in gradients.items()},
    )


def timings(ready: list[tuple[str, str]]) -> dict[str, Callable[[], dict[str, float]]]:
    """Return what to time, by title: each gives seconds per call, that of JAX's own first."""
    names = [name for name, _ in ready if name != "reference"]
    device = jax.default_backend()
    dtype, width, length = ("float32", 64, 1024) if device == "cpu" else ("bfloat16", 128, 8192)
    title = f"prefill, {length:,} tokens, width {width}, {dtype}, {device}, JAX"
    return {title: partial(_time, names, dtype, width, length)} if names else {}


def _time(names: list[str], dtype: str, width: int, length: int) -> dict[str, float]:
    query, key, value = jax.random.normal(jax.random.key(0), (3, 1, length, 8, width), dtype)
    plain = jax.jit(partial(jax.nn.dot_product_attention, is_causal=True))
    calls = {"jax.nn.dot_product_attention": partial(_finished, plain, query, key, value)}
    for name in names:
        attend: Any = partial(sharpmax.jax.attention, is_causal=True, policy=Exponential(4.0))
        compiled = jax.jit(partial(attend, implementation=name))
        calls[name] = partial(_finished, compiled, query, key, value)
    return best_times(calls, lambda: None)


def _finished(call: Callable[..., Any], *arrays: Any) -> None:
    jax.block_until_ready(call(*arrays))


def _by_head(array: Any) -> Array:
    return np.transpose(_plain(array)[0], (1, 0, 2))


def _plain(array: Any) -> Array:
    return np.asarray(array.astype("float32")).astype(np.float64)
