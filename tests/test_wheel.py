"""A wheel with the library in it serves an environment without a compiler, at once.

By default the wheel holds the library that this machine has compiled for the other tests. `make
wheel` sets SHARPMAX_WHEEL to the one that it built. SHARPMAX_PYTHONS may name interpreters,
separated by colons, each with its own PyTorch: the same wheel has to serve all of them.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from sharpmax.kernels import _build

ROOT = Path(__file__).parent.parent
PYTHONS = os.environ.get("SHARPMAX_PYTHONS", sys.executable).split(":")

PROGRAM = """
import os, sys
import numpy as np, sharpmax
from sharpmax import kernels
from sharpmax.policies import Exponential

assert sharpmax.__file__.startswith(sys.prefix), sharpmax.__file__
assert kernels.unavailable() is None
arrays = np.random.default_rng(0).normal(size=(2, 1, 2, 80, 16)).astype(np.float32)

def used():  # seconds of processors, children included: a compiler would be one
    return sum(os.times()[:4])

start = used()
of_arrays = sharpmax.attention(arrays[0], arrays[1], arrays[1], impl="cpu", is_causal=True)
seconds = used() - start
assert "torch" not in sys.modules

import torch

x = torch.from_numpy(arrays).unbind()
start = used()
plain = sharpmax.attention(x[0], x[1], x[1], impl="cpu", is_causal=True)
seconds += used() - start
torch.testing.assert_close(plain, torch.from_numpy(of_arrays))
expected = torch.nn.functional.scaled_dot_product_attention(x[0], x[1], x[1], is_causal=True)
torch.testing.assert_close(plain, expected)
gradients = {}
for impl in ("cpu", "reference"):
    leaves = [y.double().requires_grad_() for y in x]
    query, key = leaves
    output = sharpmax.attention(query, key, key, impl=impl, policy=Exponential(1.0))
    gradients[impl] = [output, *torch.autograd.grad(output.square().sum(), leaves)]
for ours, exact in zip(*gradients.values(), strict=True):
    torch.testing.assert_close(ours, exact, atol=1e-10, rtol=1e-10)
library = kernels.load()
assert os.path.dirname(library._name) == os.path.dirname(kernels.__file__)
assert not os.listdir(os.environ["XDG_CACHE_HOME"])
assert seconds < 5, seconds
assert "torch._dynamo" not in sys.modules  # importing the compiler takes a second
print(sys.version.split()[0], torch.__version__, np.__version__, f"{seconds:.2f} s")
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    given = os.environ.get("SHARPMAX_WHEEL")
    if given:
        return Path(given).resolve()
    if _build.failure():
        pytest.skip(f"{_build.failure()}")
    folder = tmp_path_factory.mktemp("wheel")
    environment = {
        **os.environ,
        "SHARPMAX_LIBRARY": str(_build._library()),
        "SHARPMAX_PLATFORM": f"{sys.platform}_{os.uname().machine}",
    }
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=True)
    (made,) = folder.iterdir()
    return made


def test_the_wheel_says_what_it_runs_on(wheel: Path) -> None:
    machine = os.uname().machine
    assert wheel.stem.split("-")[2:4] == ["py3", "none"]
    assert wheel.stem.endswith(f"_{machine}")
    with zipfile.ZipFile(wheel) as archive:
        assert "sharpmax/kernels/sharpmax.h" in archive.namelist()
        library = archive.read("sharpmax/kernels/libsharpmax.so")
    # It knows no version of Python or PyTorch: it needs no symbol and no library of either.
    assert not re.findall(
        rb"libpython|libtorch|libc10|\0_?Py[A-Z_]\w+|\0_ZN?K?[0-9]*(?:c10|at)\d", library
    )


@pytest.mark.parametrize("python", PYTHONS, ids=[Path(python).parts[-3] for python in PYTHONS])
def test_attention_without_a_compiler(wheel: Path, python: str, tmp_path: Path) -> None:
    """Install it alone, with PyTorch within reach and no program on the path."""
    paths = "import sysconfig; print(sysconfig.get_path('purelib'))"
    there = subprocess.run([python, "-c", paths], capture_output=True, text=True, check=True)
    home = tmp_path / "environment"
    subprocess.run([python, "-m", "venv", "--without-pip", str(home)], check=True)
    inner = home / "bin/python"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(inner)]
    install = ["install", "--quiet", "--no-index", "--no-deps", str(wheel)]
    subprocess.run([*pip, *install], check=True)
    for name in ("empty", "cache"):
        (tmp_path / name).mkdir()
    environment = {
        "PATH": str(tmp_path / "empty"),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    # A folder that is named so is searched last, and its .pth files are not read.
    program = f"import sys; sys.path.append({there.stdout.strip()!r})\n{PROGRAM}"
    done = subprocess.run(
        [str(inner), "-c", program], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "compiling" not in done.stderr
    print(done.stdout, end="")
