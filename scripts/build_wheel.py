"""Build wheels with the CPU kernels compiled for every instruction set, and the sdist, into dist/.

    python scripts/build_wheel.py [x86_64] [aarch64]

Clang of the package ziglang (requirements/wheel.txt) compiles and links them against the symbols of
an old glibc, whatever the machine has, and for other processors than that of the machine.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
GLIBC = (2, 28)
# No debug information and no names of private symbols.
SMALL = ["-g0", "-s", "-Wl,-z,defs"]


def main(machines: list[str]) -> None:
    """Build the sdist and one wheel per kind of machine."""
    hatch("sdist", {})
    for machine in machines:
        with tempfile.TemporaryDirectory() as folder:
            library = Path(folder) / "libsharpmax.so"
            compile_for(machine, library)
            check(library)
            version = "_".join(map(str, GLIBC))
            platform = f"manylinux_{version}_{machine}"
            hatch("wheel", {"SHARPMAX_LIBRARY": str(library), "SHARPMAX_PLATFORM": platform})


def compile_for(machine: str, library: Path) -> None:
    """Compile the library; `_compile` needs nothing that has to be installed first."""
    place = ROOT / "src/sharpmax/kernels/_compile.py"
    spec = importlib.util.spec_from_file_location("_compile", place)
    assert spec is not None
    assert spec.loader is not None
    kernels = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(kernels)
    target = f"{machine}-linux-gnu.{'.'.join(map(str, GLIBC))}"
    compiler = [sys.executable, "-m", "ziglang", "c++", "-target", target]
    try:
        kernels.compile_library(compiler, library, machine=machine, extra=SMALL)
    except kernels.FailedError as failed:
        sys.exit(f"{failed.command}\n{failed.output}")


def check(library: Path) -> None:
    """Refuse a library that needs more than an old glibc, or has no entry for JAX."""
    content = library.read_bytes()
    if b"\0sharpmax_xla\0" not in content:
        sys.exit(f"{library.name}: compiled without jaxlib, which has to be installed")
    found = {tuple(map(int, v.split(b"."))) for v in re.findall(rb"GLIBC_([\d.]+)", content)}
    needed = set(re.findall(rb"\0((?:lib|ld-)[\w+-]+\.so[.\d]*)(?=\0)", content))
    others = {n for n in needed if not re.match(rb"lib(c|m|pthread|dl|rt)\.so|ld-linux", n)}
    if not found or max(found) > GLIBC or others:
        sys.exit(f"{library.name}: needs glibc {sorted(found)} and {sorted(others)}")


def hatch(target: str, environment: dict[str, str]) -> None:
    """Build what pip installs."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", target]
    subprocess.run(command, cwd=ROOT, env={**os.environ, **environment}, check=True)


if __name__ == "__main__":
    main(sys.argv[1:] or ["x86_64", "aarch64"])
