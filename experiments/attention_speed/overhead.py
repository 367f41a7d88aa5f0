"""Measure what a call of attention costs beside its kernel: checks, dispatch, allocation."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import typer
from rich.console import Console

from experiments.attention_speed.benchmark import BASELINE
from experiments.common.command import Output, current_command, show
from experiments.common.timing import conditions, interleave, thread_count
from sharpmax import attention, kernels
from sharpmax._attention.impl._framework import TORCH
from sharpmax._attention.temperature import table_of
from sharpmax._files import write_json
from sharpmax.policies import Exponential
from sharpmax.report._page.tables import Table

__all__ = ["overhead", "overhead_of_a_call"]

TARGET = 15.0
"""Largest overhead of one decoding step, in microseconds."""

_CALLS = 200


def overhead(
    context: typer.Context,
    output: Output = Path("build/attention_speed"),
) -> None:
    """Time one decoding step over a few keys, and the kernel alone on the same numbers.

    Takes a few seconds. Writes overhead.json to OUTPUT.
    """
    found = overhead_of_a_call()
    path = output / "overhead.json"
    write_json(path, {"command": current_command(context), **found})
    show(Console(), [table(found)], [path])


def overhead_of_a_call(seconds: float = 0.5) -> dict[str, Any]:
    """Time calls with 8 query heads on 2 key heads, one query and 16 keys, on one thread.

    Returns:
        Plain data for JSON: microseconds by name of the call.
    """
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(1, 8, 1, 64, generator=generator)
    key, value = torch.randn(2, 1, 2, 16, 64, generator=generator).unbind()
    policy = Exponential(1.0)
    encoded = table_of(policy, 8)
    assert encoded is not None
    form, columns = encoded
    arrays = query.numpy(), key.numpy(), value.numpy()

    def recorded() -> object:
        with torch.enable_grad():
            return attention(query, key, value, policy=policy, impl="cpu", enable_gqa=True)

    settings = (0.125, 0.0, -1, -1, 0, True)
    results = torch.empty_like(query), *[None] * 6
    inputs = query, key, value, None, None
    alone: list[Callable[[], object]] = []
    packing = TORCH._replace(
        run=lambda name, *structs: alone.append(partial(getattr(kernels.load(), name), *structs))
    )
    kernels.forward(packing, inputs, settings, (form, columns, None), results)
    calls: dict[str, Callable[[], object]] = {
        "the kernel alone": alone[0],
        "sharpmax.attention": lambda: attention(
            query, key, value, policy=policy, impl="cpu", enable_gqa=True
        ),
        "sharpmax.attention, gradients enabled": recorded,
        "sharpmax.attention, NumPy arrays": lambda: attention(
            *arrays, policy=policy, enable_gqa=True
        ),
        BASELINE: lambda: F.scaled_dot_product_attention(query, key, value, enable_gqa=True),
    }
    with torch.no_grad(), thread_count(1):
        timing = interleave(
            {name: _repeated(call) for name, call in calls.items()},
            baseline=BASELINE,
            seconds=seconds,
        )
    times = {name: 1e6 * best / _CALLS for name, best in timing.best.items()}
    kernel = times["the kernel alone"]
    return {
        "experiment": "attention overhead",
        **conditions(["numpy", "torch"]),
        "microseconds": times,
        "overhead": {k: t - kernel for k, t in times.items() if k.startswith("sharpmax")},
        "target": TARGET,
    }


def _repeated(call: Callable[[], object]) -> Callable[[], None]:
    def repeat() -> None:
        for _ in range(_CALLS):
            call()

    return repeat


def table(found: dict[str, Any]) -> Table:
    """Return one row per call."""
    rows = [
        [name, f"{time:.1f}", f"{found['overhead'][name]:.1f}" if name in found["overhead"] else ""]
        for name, time in found["microseconds"].items()
    ]
    return Table(
        ["call", "µs", "µs beside the kernel"],
        rows,
        caption=f"One query, 8 heads on 2, 16 keys, width 64, 1 thread. Target: {TARGET:g} µs. "
        "Written by `python -m experiments.attention_speed overhead`.",
    )
