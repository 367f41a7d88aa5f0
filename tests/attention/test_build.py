"""Machines without a compiler, or with one that fails; and nothing is compiled by asking."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from sharpmax._attention.impl import _build

PROGRAM = """
import torch, sharpmax
from sharpmax.policies import Exponential
x = torch.randn(1, 2, 8, 16)
with torch.no_grad():
    auto = sharpmax.attention(x, x, x, policy=Exponential(1.0))
    composed = sharpmax.attention(x, x, x, policy=Exponential(1.0), impl="composed")
assert torch.equal(auto, composed)
try:
    sharpmax.attention(x, x, x, policy=Exponential(1.0), impl="cpu")
except NotImplementedError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("compiler", "message", "said"),
    [
        ("no-such-compiler", "impl='cpu': .*needs a C\\+\\+20 compiler.*'no-such-compiler'", 0),
        ("false", "impl='cpu': .*could not be compiled.*exit status 1", 1),
    ],
)
def test_auto_goes_on_and_the_name_says_why(
    compiler: str, message: str, said: int, tmp_path: Path
) -> None:
    environment = {
        name: value for name, value in os.environ.items() if name != "TORCH_EXTENSIONS_DIR"
    }
    environment |= {"CXX": compiler, "XDG_CACHE_HOME": str(tmp_path)}
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment, check=True
    )
    assert re.search(message, result.stdout)
    assert result.stderr.count("compiling its CPU attention") == said


def test_machines_do_not_share_what_they_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    here = _build._library.__wrapped__()
    other = "AVX2" if torch.backends.cpu.get_cpu_capability() != "AVX2" else "AVX512"
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: other)
    assert _build._library.__wrapped__() != here


def test_flags_know_the_vector_extensions() -> None:
    assert "-mavx2" in _build._flags("AVX2")
    assert "-mavx512f" in _build._flags("AVX512")
    assert not any(flag.startswith("-mavx") for flag in _build._flags("DEFAULT"))


ASKING = """
import torch
from sharpmax._attention import check
from sharpmax._attention.impl import composed, cpu, reference
from sharpmax.policies import Exponential
x = torch.randn(1, 2, 8, 16)
problem = check(
    x, x, x, attn_mask=None, is_causal=False, alignment="upper_left", scale=None, softcap=None,
    sink=None, sink_role="key", window=None, enable_gqa=False, dropout=0.0,
)
for implementation in (cpu, composed, reference):
    assert implementation.unsupported(problem, Exponential(1.0)) is None
"""


def test_asking_whether_it_can_serve_compiles_nothing(tmp_path: Path) -> None:
    environment = {
        name: value for name, value in os.environ.items() if name != "TORCH_EXTENSIONS_DIR"
    }
    # A program that exists, and fails as a compiler.
    environment |= {"CXX": "false", "XDG_CACHE_HOME": str(tmp_path)}
    result = subprocess.run(
        [sys.executable, "-c", ASKING], capture_output=True, text=True, env=environment, check=True
    )
    assert "compiling" not in result.stderr
    assert not list(tmp_path.iterdir())
