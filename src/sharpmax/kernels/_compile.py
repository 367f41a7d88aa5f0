"""Compile the kernels into one shared library that holds every instruction set.

The library chooses among its kernels at run time. This file needs nothing but the standard library
of Python, so that the build of a wheel can use it before anything is installed.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
LIBRARY = "libsharpmax.so"

# The kernels rely on fused multiply-add. They need nothing else of -ffast-math: NaN and infinity
# have a meaning.
FLAGS = [
    "-std=c++17",
    "-O3",
    "-fPIC",
    "-fvisibility=hidden",
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-Wno-unknown-pragmas",
    "-Wno-psabi",
]
# A function that several objects have is taken from the first, so the baseline comes first: one of
# the standard library that is compiled for AVX-512 must not serve processors without it.
_INSTRUCTIONS = {
    "baseline": "",
    "avx2": "-mavx2 -mfma -mf16c",
    "avx512": "-mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -mf16c",
}


class FailedError(Exception):
    """Say which command failed, with its exit status and output."""

    def __init__(self, command: Sequence[str], status: int, output: str) -> None:
        super().__init__(command, status, output)
        self.command, self.status, self.output = shlex.join(command), status, output


def find_compiler() -> list[str] | None:
    """Return the C++ compiler as words of a command: what CXX names, else the first found."""
    named = os.environ.get("CXX")
    if named:
        words = shlex.split(named)
        return words if words and shutil.which(words[0]) else None
    found = filter(None, map(shutil.which, ("c++", "g++", "clang++")))
    return [first] if (first := next(found, None)) else None


def sources(folder: Path) -> list[Path]:
    """Return everything that the library is made of."""
    return sorted([*folder.glob("*.h"), *folder.glob("*.cpp")])


def variants(machine: str) -> dict[str, list[str]]:
    """Return the flags of each instruction set of a kind of machine."""
    known = _INSTRUCTIONS if machine.lower() in ("x86_64", "amd64") else {"baseline": ""}
    return {name: flags.split() for name, flags in known.items()}


def xla_flags() -> list[str]:
    """Return where the headers of XLA's foreign functions are, which jaxlib has; else nothing.

    With them the library has an entry for JAX. Nothing is imported.
    """
    found = importlib.util.find_spec("jaxlib")
    folders = [] if found is None else found.submodule_search_locations or []
    headers = [Path(folder) / "include" for folder in folders]
    return [f"-I{path}" for path in headers if (path / "xla/ffi/api/c_api.h").exists()]


def compile_library(
    compiler: Sequence[str],
    target: Path,
    *,
    folder: Path = HERE,
    machine: str | None = None,
    extra: Sequence[str] = (),
) -> None:
    """Compile the sources in `folder` into the library `target`, one process per object.

    Raises:
        FailedError: for the first command that fails.
    """
    machine = machine or platform.machine()
    with tempfile.TemporaryDirectory(dir=target.parent) as name:
        commands, objects = [], []
        for source in sorted(folder.glob("*.cpp")):
            kinds = variants(machine) if source.stem == "variant" else {source.stem: []}
            if source.stem == "xla":
                kinds = {"xla": xla_flags()}
            for kind, flags in kinds.items():
                objects.append(f"{name}/{kind}.o")
                words = [*FLAGS, *extra, *flags, "-c", str(source), "-o", objects[-1]]
                commands.append([*compiler, *words])
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(_run, commands))
        link = ["-shared", *extra, *objects, "-o", str(target), "-pthread"]
        if platform.system() == "Linux":
            # Its threads may wait in the library until the process ends, so it is never unloaded.
            link.append("-Wl,-z,nodelete")
        _run([*compiler, *link])


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode != 0:
        raise FailedError(command, done.returncode, done.stdout)
