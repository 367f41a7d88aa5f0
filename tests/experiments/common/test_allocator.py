from __future__ import annotations

import subprocess
import sys

import pytest

MEASURE = """
import resource, sys
import torch
from experiments.common.allocator import keep_freed_memory
if sys.argv[1] == "keep" and not keep_freed_memory():
    print("no")
    sys.exit()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def fill():
    parts = [torch.empty(1 << 21).fill_(1.0) for _ in range(20)]
for _ in range(5):
    fill()
before = faults()
for _ in range(5):
    fill()
print(faults() - before)
"""


def _faults(how: str) -> str:
    arguments = [sys.executable, "-c", MEASURE, how]
    return subprocess.run(arguments, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.skipif(sys.platform != "linux", reason="the GNU C library alone has this")
def test_freed_memory_is_used_again() -> None:
    kept = _faults("keep")
    if kept == "no":
        pytest.skip("this C library has no mallopt")
    # A hundred tensors of 8 MiB, twenty at a time, after as many that warmed it up: if their memory
    # went back to the system, each would request 2,048 pages again.
    assert int(kept) < 2100
