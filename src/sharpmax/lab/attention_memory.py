"""How much memory a call of attention takes beyond its inputs and its output.

Measured in a process of its own, whose largest size so far the system remembers.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

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
    if not Path("/proc/self/statm").exists():
        return None
    arguments = {"length": length, "width": width, "heads": heads, "threads": threads}
    done = subprocess.run(
        [sys.executable, "-m", __name__, implementation, json.dumps(arguments)],
        # What is freed goes back to the system at once, so that no call is served from what an
        # earlier one has left behind.
        env=os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return int(done.stdout)


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
        # The largest size so far may be one of the past, under which a call could hide: so the
        # present size is brought up to it first.
        ballast = [torch.ones(max(_peak() - _present(), 0) + (1 << 20), dtype=torch.uint8)]
        before = _peak()
        output = call(*inputs)
        after = _peak()
    del ballast
    return max(after - before - int(output.nbytes), 0)


def _peak() -> int:
    """The largest resident size so far, in bytes.

    From the status of the process: what `resource.getrusage` says begins with the size of the
    parent, which holds the inputs of the benchmark.
    """
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name == "VmHWM":
            return int(value.split()[0]) * 1024
    raise OSError("/proc/self/status does not tell the largest resident size")


def _present() -> int:
    """The resident size, in bytes."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    sys.stdout.write(f"{_measure(sys.argv[1], **json.loads(sys.argv[2]))}\n")
