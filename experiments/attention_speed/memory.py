"""Measure the memory of one attention call beyond its inputs and its output."""

from __future__ import annotations

import torch
import torch.nn.functional as F

import sharpmax
from experiments.common.memory import growth
from sharpmax.policies import Exponential

__all__ = ["extra_memory"]

WARM_UP = 256
"""Queries and keys of the first call, which loads everything before the measurement."""


def extra_memory(ours: bool, length: int, width: int, heads: int, threads: int) -> int:
    """Return the peak memory of one call in this process, in bytes; use a process of its own.

    Args:
        ours: Whether to call `sharpmax.attention` or `scaled_dot_product_attention`.
        length: Number of queries and of keys.
        width: Width of queries, keys and values.
        heads: Number of heads.
        threads: Number of threads.
    """

    def call(tensors: torch.Tensor) -> torch.Tensor:
        if ours:
            return sharpmax.attention(*tensors, policy=Exponential(4.5), impl="cpu")
        return F.scaled_dot_product_attention(*tensors)

    torch.set_num_threads(threads)
    with torch.no_grad():
        call(torch.randn(3, 1, heads, WARM_UP, width))
        inputs = torch.randn(3, 1, heads, length, width)
        extra, output = growth(lambda: call(inputs))
    return max(extra - int(output.nbytes), 0)
