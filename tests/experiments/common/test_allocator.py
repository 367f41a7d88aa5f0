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
torch.empty(1 << 21).fill_(1.0)
before = faults()
for _ in range(50):
    torch.empty(1 << 21).fill_(1.0)
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
    # Fifty tensors of 8 MiB: without it, every page of each is asked for anew.
    assert int(kept) < 2100
