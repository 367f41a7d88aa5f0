"""Where the time of attention goes: what grows with the width (products) and what does not."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from experiments.common.timing import interleave, thread_count
from sharpmax._files import machine, versions

__all__ = ["attention_profile"]

PEER = "scaled_dot_product_attention"


def attention_profile(
    length: int = 4096, widths: tuple[int, ...] = (32, 64, 128), seconds: float = 0.6, seed: int = 0
) -> dict[str, Any]:
    """Split the time of one head, full, on one thread, by a straight line through several widths.

    time = fixed + slope width. The slope is the products, 2 length^2 floating-point operations per
    column and product; what is fixed is everything else: exponentials, sums, reading and writing.

    Args:
        length: Number of queries and of keys.
        widths: The widths to time, two at least.
        seconds: How long each way is timed at each width.
        seed: Of the inputs.

    Returns:
        Plain data, ready for JSON: a record a way, with the rate of its products.
    """
    import torch
    import torch.nn.functional as F

    from sharpmax import attention, attention_statistics
    from sharpmax.policies import Paper

    times: dict[str, list[float]] = {}
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad(), thread_count(1):
        for width in widths:
            query, key, value = torch.randn(3, 1, 1, length, width, generator=generator).unbind()
            ways: dict[str, Callable[[], object]] = {
                PEER: partial(F.scaled_dot_product_attention, query, key, value),
                "sharpmax cpu": partial(
                    attention, query, key, value, policy=Paper(warn=False), impl="cpu"
                ),
                "sharpmax cpu, statistics": partial(attention_statistics, query, key, impl="cpu"),
            }
            timing = interleave(ways, peer=PEER, seconds=seconds)
            for name, shortest in timing.best.items():
                times.setdefault(name, []).append(shortest)
    records = []
    for name, best in times.items():
        slope, fixed = np.polyfit(widths, best, 1)
        products = 1 if name.endswith("statistics") else 2
        records.append(
            {
                "implementation": name,
                "seconds": {str(width): time for width, time in zip(widths, best, strict=True)},
                "fixed_seconds": float(fixed),
                "seconds_per_width": float(slope),
                "gflops_of_products": float(2 * products * length**2 / slope / 1e9),
            }
        )
    return {
        "command": "python benchmarks/attention_profile.py",
        "experiment": "where the time of attention goes",
        "versions": versions(),
        "machine": machine(),
        "settings": {"length": length, "widths": list(widths), "threads": 1, "seed": seed},
        "records": records,
    }
