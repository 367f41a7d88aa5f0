"""Memory beyond inputs and output: small, and linear in the number of keys."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys, torch, sharpmax
from sharpmax.policies import Exponential
torch.set_num_threads(2)
what, keys = sys.argv[1], int(sys.argv[2])
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
def run(queries, keys):
    query = torch.randn(1, 2, queries, 64, requires_grad=what == "backward")
    key, value = (torch.randn(1, 2, keys, 64, requires_grad=what == "backward") for _ in range(2))
    before = peak()
    if what == "statistics":
        sharpmax.attention_statistics(query, key, impl="cpu")
    else:
        output = sharpmax.attention(
            query, key, value, policy=Exponential(1.0), impl="cpu", detach_temperature=True
        )
        if what == "backward":
            output.sum().backward()
    return peak() - before
run(64, 256)
print(run(512, keys))
"""


def extra(what: str, keys: int) -> float:
    """Peak memory of one call beyond what was there before, in MiB."""
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, what, str(keys)], capture_output=True, text=True, check=True
    )
    return float(result.stdout)


@pytest.mark.parametrize("what", ["forward", "statistics"])
def test_at_most_8_mib_a_thread_at_16k_keys(what: str) -> None:
    # Two threads; the output of 512 queries is a quarter of a MiB, statistics less.
    assert extra(what, 16_384) <= 2 * 8 + 1


def test_linear_in_the_number_of_keys() -> None:
    # A score matrix of 512 x 131072 for two heads would be 512 MiB.
    assert extra("forward", 131_072) <= 2 * 8 * 8 + 4


def test_backward_is_linear_too() -> None:
    # Gradients of keys and values: 16 MiB each head pair at 32k keys; scores would be 128 MiB.
    assert extra("backward", 32_768) <= 100
