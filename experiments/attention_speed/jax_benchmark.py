"""Time `sharpmax.jax.attention` against JAX's attention and the paper's code, and its memory.

All of them run in turn on the same inputs, jitted, with as many threads as JAX uses.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

import sharpmax.jax
from experiments.attention_speed.inputs import Shape, make_inputs
from experiments.common.memory import growth, measure_apart
from experiments.common.timing import Step, interleave, machine_line, read_benchmark, verdict
from sharpmax.jax._api import Implementation
from sharpmax.policies import Exponential, Paper
from sharpmax.report._page.tables import Table

__all__ = ["FILE", "extra_memory", "figure_4", "jax_plan", "jax_tables"]

FILE = "jax.json"
BASELINE = "jax.nn.dot_product_attention"
PUBLISHED = "paper's Figure 4"
OWN: tuple[Implementation, ...] = ("cpu", "xla")
HEADS, WIDTH = 8, 64
POLICY = Paper(warn=False)

TARGETS = {
    ("cpu", "forward", BASELINE): (0.5, 0.25),
    ("cpu", "forward and backward", BASELINE): (0.7, 0.4),
    ("xla", "forward", PUBLISHED): (1.0, 0.7),
}
"""Target and stretch target of the ratio to a peer."""

MEMORY_TARGETS, MEMORY_LENGTH = (64.0, 16.0), 16384


def figure_4(query: Any, key: Any, value: Any, *, is_causal: bool) -> Any:
    """Compute attention as the paper's Figure 4 does, over all logits at once.

    The inputs are [batch, length, heads, width]. The sequence of array operations is that of the
    published code: softmax, its entropy with 1e-9 inside the logarithm, the polynomial, softmax.
    """
    logits = jnp.einsum("btnh,bsnh->bnts", query, key) / math.sqrt(query.shape[-1])
    if is_causal:
        seen = jnp.tril(jnp.ones(logits.shape[-2:], bool))
        logits = jnp.where(seen, logits, -jnp.inf)
    plain = jax.nn.softmax(logits, axis=-1)
    entropy = jnp.sum(-plain * jnp.log(plain + Paper.GUARD), axis=-1, keepdims=True)
    polynomial = jnp.polyval(jnp.array(Paper.COEFFICIENTS), entropy)
    beta = jnp.where(entropy > Paper.THRESHOLD, jnp.maximum(polynomial, 1.0), 1.0)
    return jnp.einsum("bnts,bsnh->btnh", jax.nn.softmax(beta * logits, axis=-1), value)


def _functions(is_causal: bool) -> dict[str, Callable[..., Any]]:
    own: dict[str, Callable[..., Any]] = {
        name: partial(
            sharpmax.jax.attention, policy=POLICY, is_causal=is_causal, implementation=name
        )
        for name in OWN
    }
    plain = partial(jax.nn.dot_product_attention, is_causal=is_causal)
    return {BASELINE: plain, PUBLISHED: partial(figure_4, is_causal=is_causal), **own}


def jax_plan(quick: bool) -> dict[str, Step]:
    """Return the steps of the benchmark, by name."""
    lengths, seconds = ((256,), 0.01) if quick else ((2048, 4096), 0.6)
    memory = (1024,) if quick else (MEMORY_LENGTH // 2, MEMORY_LENGTH)
    steps: dict[str, Step] = {}
    for length, is_causal in itertools.product(lengths, (True, False)):
        mask = "causal" if is_causal else "full"
        steps[f"{length:,} keys, {mask}"] = partial(_time, length, is_causal, seconds)
    for length, name in itertools.product(memory, OWN):
        steps[f"memory: {name}, {length:,} keys"] = partial(_memory, name, length)
    return steps


def _time(length: int, is_causal: bool, seconds: float) -> dict[str, list[dict[str, Any]]]:
    shape = Shape(
        queries=length, keys=length, width=WIDTH, heads=HEADS, key_heads=HEADS, is_causal=is_causal
    )
    inputs = make_inputs(shape)
    arrays = [
        jnp.asarray(x.transpose(1, 2).contiguous().numpy())
        for x in (inputs.query, inputs.key, inputs.value)
    ]
    upstream = jax.random.normal(jax.random.key(1), arrays[0].shape)
    functions = _functions(is_causal)
    expected = jax.jit(functions[PUBLISHED])(*arrays)
    records = []
    for work in ("forward", "forward and backward"):
        calls = {}
        for name, function in functions.items():
            compiled = jax.jit(function)
            if name in OWN and work == "forward":
                difference = float(jnp.abs(compiled(*arrays) - expected).max())
                if not difference < 0.02:
                    raise AssertionError(f"{name}: differs from Figure 4 by {difference:.2g}")
            if work != "forward":

                def loss(*arrays: Any, function: Callable[..., Any] = function) -> Any:
                    return (function(*arrays) * upstream).sum()

                compiled = jax.jit(jax.grad(loss, (0, 1, 2)))
            calls[name] = partial(_finished, compiled, arrays)
        timing = interleave(calls, baseline=BASELINE, seconds=seconds)
        records += [
            {
                "implementation": name,
                "work": work,
                "length": length,
                "causal": is_causal,
                "heads": HEADS,
                "width": WIDTH,
                "policy": POLICY.to_dict() if name in OWN else None,
                "seconds": timing.best[name],
                "rounds": timing.rounds[name],
                "ratios": {
                    peer: timing.best[name] / timing.best[peer] for peer in (BASELINE, PUBLISHED)
                },
            }
            for name in calls
        ]
    return {"records": records}


def _finished(function: Callable[..., Any], arrays: list[Any]) -> None:
    jax.block_until_ready(function(*arrays))


def extra_memory(name: Implementation, length: int) -> int:
    """Return the peak memory of one call in this process, in bytes; use a process of its own.

    It is what the process grows by beyond its inputs, without the output.
    """
    call = jax.jit(partial(sharpmax.jax.attention, policy=Exponential(4.5), implementation=name))
    inputs = jax.block_until_ready(
        jax.random.normal(jax.random.key(0), (3, 1, length, HEADS, WIDTH))
    )
    arrays = jax.block_until_ready([inputs[0], inputs[1], inputs[2]])
    compiled = call.lower(*arrays).compile()
    small = jnp.ones((1, 256, HEADS, WIDTH))
    jax.block_until_ready(call(small, small, small))
    extra, output = growth(lambda: jax.block_until_ready(compiled(*arrays)))
    return max(extra - int(output.nbytes), 0)


def _memory(name: str, length: int) -> dict[str, list[dict[str, Any]]]:
    extra = measure_apart(extra_memory, name, length)
    if extra is None:
        return {"memory": []}
    entry = {"implementation": name, "length": length, "heads": HEADS, "width": WIDTH}
    return {"memory": [entry | {"mebibytes": extra / 2**20}]}


def jax_tables(results: Path) -> dict[str, Table]:
    """Return the tables of a run, by the names that documents use, if there is one."""
    if not (results / FILE).exists():
        return {}
    result = read_benchmark(results / FILE)
    return {"attention-jax": _table(result)}


def _table(result: dict[str, Any]) -> Table:
    rows = []
    for (name, work, peer), (target, stretch) in TARGETS.items():
        found = {
            (record["length"], record["causal"]): record["ratios"][peer]
            for record in result["records"]
            if (record["implementation"], record["work"]) == (name, work)
        }
        cells = [f"{ratio:.2f}" for ratio in found.values()]
        rows.append([f"`{name}`, {work}", peer, *cells, *_judged(found.values(), target, stretch)])
        header = [
            f"{length // 1024}k, {'causal' if causal else 'full'}"
            if length >= 1024
            else f"{length}, {'causal' if causal else 'full'}"
            for length, causal in found
        ]
    for entry in result["memory"]:
        bounds = [bound * entry["length"] / MEMORY_LENGTH for bound in MEMORY_TARGETS]
        cells = [f"{entry['mebibytes']:.1f} MiB", *[""] * (len(header) - 1)]
        label = f"`{entry['implementation']}`, extra memory, {entry['length']:,} keys"
        rows.append([label, "", *cells, *_judged([entry["mebibytes"]], *bounds)])
    where = machine_line(result, {"jax": "JAX", "jaxlib": "jaxlib"})
    return Table(
        ["work", "peer", *header, "target", "stretch target", "verdict"],
        rows,
        title="sharpmax.jax.attention, time relative to a peer",
        caption=f"float32, {HEADS} heads, width {WIDTH}, {where}. "
        f"Written by `{result['command']}`.",
        words=2,
    )


def _judged(values: Any, target: float, stretch: float) -> list[str]:
    worst = max(values)
    met = "stretch target met" if worst <= stretch else verdict(worst, target)
    return [f"≤ {target:g}", f"≤ {stretch:g}", met]
