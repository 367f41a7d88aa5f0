"""How much memory a call of attention takes beyond its inputs and its output.

Measured in a process of its own, whose largest size so far the system remembers.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from experiments.common.memory import growth, measure_apart

__all__ = ["IMPLEMENTATIONS", "extra_memory"]

IMPLEMENTATIONS = ("sharpmax", "scaled_dot_product_attention")
"""What can be measured."""

WARM_UP = 256
"""Queries and keys of the call that loads everything before the measurement."""


def extra_memory(
    implementation: str, *, length: int, width: int, heads: int, threads: int
) -> int | None:
    """Bytes that one call takes at its peak, beyond inputs and output.

    Args:
        implementation: One of `IMPLEMENTATIONS`.
        length: Number of queries, and of keys.
        width: Of queries, keys and values.
        heads: Number of heads.
        threads: Number of threads.

    Returns:
        The bytes, or None where the system does not tell (it has to be Linux).

    Raises:
        ValueError: There is no such implementation.
        subprocess.CalledProcessError: The measuring process failed.
    """
    if implementation not in IMPLEMENTATIONS:
        expected = ", ".join(IMPLEMENTATIONS)
        raise ValueError(f"implementation: expected one of {expected}, got {implementation!r}")
    arguments = {"length": length, "width": width, "heads": heads, "threads": threads}
    return measure_apart(__name__, implementation, arguments)


def _measure(implementation: str, length: int, width: int, heads: int, threads: int) -> int:
    """In the process of its own."""
    import torch

    import sharpmax
    from sharpmax.policies import Exponential

    def call(query: Any, key: Any, value: Any) -> Any:
        if implementation == "sharpmax":
            return sharpmax.attention(query, key, value, policy=Exponential(4.5), impl="cpu")
        return torch.nn.functional.scaled_dot_product_attention(query, key, value)

    torch.set_num_threads(threads)
    with torch.no_grad():
        call(*(torch.randn(1, heads, WARM_UP, width) for _ in range(3)))
        inputs = [torch.randn(1, heads, length, width) for _ in range(3)]
        extra, output = growth(lambda: call(*inputs))
    return max(extra - int(output.nbytes), 0)


if __name__ == "__main__":
    chosen, settings = json.loads(sys.argv[1])
    sys.stdout.write(f"{_measure(chosen, **settings)}\n")
