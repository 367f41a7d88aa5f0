"""Measure the peak memory of a call, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

__all__ = ["growth", "measure_apart"]

_CHILD = """
import importlib, json, sys
module, function, arguments = json.loads(sys.argv[1])
print(getattr(importlib.import_module(module), function)(*arguments))
"""


def measure_apart(function: Callable[..., int], *arguments: object) -> int | None:
    """Call a function in a new process and return its result, a number of bytes.

    Args:
        function: A function at the top level of a module.
        *arguments: Plain data, passed as JSON.

    Returns:
        The bytes, or None if the system does not report memory (only Linux does).

    Raises:
        subprocess.CalledProcessError: The process failed.
    """
    if not Path("/proc/self/statm").exists():
        return None
    call = json.dumps([function.__module__, function.__name__, arguments])
    # Freed memory returns to the system at once, so no call reuses what an earlier one left.
    thresholds = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, call],
        env=os.environ | thresholds | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return int(done.stdout)


def growth(call: Callable[[], Any]) -> tuple[int, Any]:
    """Return by how many bytes the process grows at most during a call, and the call's result."""
    # A call could hide below an earlier peak, so the present size is first raised to that peak.
    ballast = [torch.ones(max(_peak() - _present(), 0) + (1 << 20), dtype=torch.uint8)]
    before = _peak()
    result = call()
    after = _peak()
    del ballast
    return after - before, result


def _peak() -> int:
    """Return the largest resident size so far, in bytes.

    `resource.getrusage` does not serve: its peak begins with the size of the parent process.
    """
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name == "VmHWM":
            return int(value.split()[0]) * 1024
    raise OSError("/proc/self/status: expected a line VmHWM, found none")


def _present() -> int:
    """Return the resident size, in bytes."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
