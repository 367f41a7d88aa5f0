"""Measure the memory of one attention call beyond its inputs and its output."""

from __future__ import annotations

from typing import Any

import torch

import sharpmax
from experiments.attention_speed.device import plain_attention
from experiments.common.memory import growth
from sharpmax.policies import Exponential

__all__ = ["extra_memory"]

WARM_UP = 256
"""Queries and keys of the first call, which loads everything before the measurement."""


def extra_memory(
    impl: str,
    length: int,
    width: int,
    heads: int,
    threads: int,
    device: str = "cpu",
    dtype: str = "float32",
) -> int:
    """Return the peak memory of one call in this process, in bytes; use a process of its own.

    Args:
        impl: That of `sharpmax.attention`; "" calls `scaled_dot_product_attention`.
        length: Number of queries and of keys.
        width: Width of queries, keys and values.
        heads: Number of heads.
        threads: Number of threads.
        device: Where to run. The memory is that of the device.
        dtype: That of the inputs.
    """
    attention: Any = sharpmax.attention

    def call(tensors: torch.Tensor) -> torch.Tensor:
        if impl:
            found: torch.Tensor = attention(*tensors, policy=Exponential(4.5), impl=impl)
            return found
        return plain_attention(device)(*tensors)

    torch.set_num_threads(threads)
    kind: dict[str, Any] = {"device": device, "dtype": getattr(torch, dtype)}
    with torch.no_grad():
        call(torch.randn(3, 1, heads, WARM_UP, width, **kind))
        inputs = torch.randn(3, 1, heads, length, width, **kind)
        if device == "cpu":
            extra, output = growth(lambda: call(inputs))
        else:
            torch.cuda.reset_peak_memory_stats(device)
            before = torch.cuda.memory_allocated(device)
            output = call(inputs)
            extra = torch.cuda.max_memory_allocated(device) - before
    return max(extra - int(output.nbytes), 0)
