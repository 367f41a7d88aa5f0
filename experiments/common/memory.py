"""How much memory a call takes at its peak, measured in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["growth", "measure_apart"]


def measure_apart(module: str, *arguments: object) -> int | None:
    """Run a module in a process of its own, which prints a number of bytes.

    Args:
        module: Its name; `python -m` runs it.
        *arguments: Plain data, handed over as JSON.

    Returns:
        The bytes, or None where the system does not tell (it has to be Linux).

    Raises:
        subprocess.CalledProcessError: The measuring process failed.
    """
    if not Path("/proc/self/statm").exists():
        return None
    done = subprocess.run(
        [sys.executable, "-m", module, json.dumps(arguments)],
        # What is freed goes back to the system at once, so that no call is served from what an
        # earlier one has left behind.
        env=os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return int(done.stdout)


def growth(call: Callable[[], Any]) -> tuple[int, Any]:
    """By how many bytes the process grows at most while something is called, and what that gave."""
    import torch

    # The largest size so far may be one of the past, under which a call could hide: so the
    # present size is brought up to it first.
    ballast = [torch.ones(max(_peak() - _present(), 0) + (1 << 20), dtype=torch.uint8)]
    before = _peak()
    result = call()
    after = _peak()
    del ballast
    return after - before, result


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
