"""Split the time of attention into what grows with the width (products) and what does not."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import numpy as np
import torch

from experiments.attention_speed.benchmark import BASELINE, Settings
from experiments.attention_speed.device import finished, plain_attention
from experiments.common.timing import conditions, interleave, thread_count
from sharpmax import attention, attention_statistics
from sharpmax.policies import Paper

__all__ = ["attention_profile"]


def attention_profile(
    length: int = 4096,
    widths: tuple[int, ...] = (32, 64, 128),
    seconds: float = 0.6,
    seed: int = 0,
    settings: Settings = Settings(),  # noqa: B008  (frozen)
) -> dict[str, Any]:
    """Fit a line through the times at several widths, for one head, full, on one thread.

    time = fixed + slope · width. The slope is the products: 2 length² floating-point operations
    per column and product. The fixed part is everything else: exponentials, sums, memory access.

    Args:
        length: Number of queries and of keys.
        widths: The widths to time, at least two.
        seconds: Time that each implementation may use at each width.
        seed: Seed of the inputs.
        settings: Device, implementation and dtype.

    Returns:
        Plain data for JSON: one record per implementation, with the rate of its products.
    """
    times: dict[str, list[float]] = {}
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad(), thread_count(1):
        for width in widths:
            query, key, value = torch.randn(3, 1, 1, length, width, generator=generator).unbind()
            kind = (settings.device, getattr(torch, settings.dtype))
            query, key, value = (x.to(*kind) for x in (query, key, value))
            policy, impl, ours = Paper(warn=False), cast("Any", settings.impl), settings.ours
            calls: dict[str, Callable[[], object]] = {
                BASELINE: partial(plain_attention(settings.device), query, key, value),
                ours: partial(attention, query, key, value, policy=policy, impl=impl),
                f"{ours}, statistics": partial(attention_statistics, query, key, impl=impl),
            }
            calls = {name: finished(call, settings.device) for name, call in calls.items()}
            timing = interleave(calls, baseline=BASELINE, seconds=seconds)
            for name, best in timing.best.items():
                times.setdefault(name, []).append(best)
    records = []
    for name, best_times in times.items():
        slope, fixed = np.polyfit(widths, best_times, 1)
        products = 1 if name.endswith("statistics") else 2
        records.append(
            {
                "implementation": name,
                "seconds": dict(zip(map(str, widths), best_times, strict=True)),
                "fixed_seconds": float(fixed),
                "seconds_per_width": float(slope),
                "gflops_of_products": float(2 * products * length**2 / slope / 1e9),
            }
        )
    return {
        "experiment": "attention profile",
        **conditions(["numpy", "torch"]),
        "settings": {"length": length, "widths": list(widths), "threads": 1, "seed": seed},
        "records": records,
    }
