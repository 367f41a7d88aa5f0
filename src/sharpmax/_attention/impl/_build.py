"""Compile the CPU kernels on first use and keep the result.

The compiler is called directly: one source file, no build system. The result is stored in the
user's cache, in a folder whose name depends on sources, flags, versions and the processor's vector
extension, so that machines that share a home folder do not mix.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import torch

from sharpmax._errors import SharpmaxError
from sharpmax._files import cache_folder

__all__ = ["CompilationError", "CompilerMissingError", "failure", "load", "unavailable"]

_NAME = "sharpmax_cpu"
_HERE = Path(__file__).resolve().parent
_EXPECTED_SECONDS = 60
_TAIL = 30  # lines of the compiler's output that an error shows

# The kernels rely on fused multiply-add. They need nothing else of -ffast-math: NaN and infinity
# have a meaning.
_FLAGS = """-std=c++20 -O3 -fPIC -shared -fvisibility=hidden -ffp-contract=fast -fno-math-errno
    -Wno-unknown-pragmas -Wno-psabi"""
# The flags with which PyTorch compiles its own kernels for each capability.
_CAPABILITIES = {
    "AVX2": "-mavx2 -mfma -mf16c",
    "AVX512": "-mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -mf16c",
}


class CompilerMissingError(SharpmaxError, RuntimeError):
    """Say that there is no C++ compiler for the CPU kernels."""


class CompilationError(SharpmaxError, RuntimeError):
    """Say that the C++ compiler did not accept the CPU kernels."""


def _compiler() -> list[str] | None:
    """The C++ compiler as words of a command: what CXX names, else the first that is found."""
    named = os.environ.get("CXX")
    if named:
        words = shlex.split(named)
        return words if words and shutil.which(words[0]) else None
    found = filter(None, map(shutil.which, ("c++", "g++", "clang++")))
    return [first] if (first := next(found, None)) else None


def _sources() -> list[Path]:
    return [*sorted(_HERE.glob("cpu*.h")), _HERE / "cpu.cpp"]


def _flags(capability: str) -> list[str]:
    known = capability if capability in _CAPABILITIES else "DEFAULT"
    flags = [
        *_FLAGS.split(),
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}",
        f"-DTORCH_EXTENSION_NAME={_NAME}",
        *_CAPABILITIES.get(known, "").split(),
        f"-DCPU_CAPABILITY={known}",
        f"-DCPU_CAPABILITY_{known}",
    ]
    if platform.system() == "Darwin":
        flags += ["-undefined", "dynamic_lookup", "-Xpreprocessor"]
    return [*flags, "-fopenmp"]


def _paths() -> tuple[list[str], list[str]]:
    """The headers and libraries of PyTorch and Python, as flags."""
    root = Path(torch.__file__).resolve().parent
    own = root / "include"
    headers = [own, own / "torch/csrc/api/include", sysconfig.get_paths()["include"]]
    include = [word for header in headers for word in ("-isystem", str(header))]
    libraries = [f"-L{root / 'lib'}", "-lc10", "-ltorch", "-ltorch_cpu", "-ltorch_python"]
    return include, libraries


@functools.cache
def _library() -> Path:
    """The path of the compiled module."""
    capability = torch.backends.cpu.get_cpu_capability()
    digest = hashlib.sha256()
    for source in _sources():
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    tags = [*_flags(capability), capability, torch.__version__, sys.version, platform.machine()]
    digest.update("\0".join(tags).encode())
    extensions = os.environ.get("TORCH_EXTENSIONS_DIR")
    cache = Path(extensions) if extensions else cache_folder()
    folder = f"{_NAME}-{capability.lower().replace(' ', '-')}-{digest.hexdigest()[:16]}"
    return cache / folder / f"{_NAME}{sysconfig.get_config_var('EXT_SUFFIX') or '.so'}"


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Let one process compile at a time; the lock ends with the process that holds it."""
    try:
        import fcntl
    except ImportError:  # then two may compile at once: the result is put in place in one step
        yield
        return
    with path.open("w") as handle:
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _missing() -> str:
    named = os.environ.get("CXX")
    searched = (
        f"CXX={named!r} is not a program" if named else "none of c++, g++, clang++ is on the path"
    )
    return (
        "the CPU attention is compiled on first use and needs a C++20 compiler, GCC 11 or "
        f"Clang 14 at least; {searched}"
    )


def _compile(library: Path) -> None:
    compiler = _compiler()
    if compiler is None:
        raise CompilerMissingError(_missing())
    include, libraries = _paths()
    capability = torch.backends.cpu.get_cpu_capability()
    message = f"compiling its CPU attention, once, about {_EXPECTED_SECONDS} seconds …"
    sys.stderr.write(f"sharpmax: {message}\n")
    sys.stderr.flush()
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        target = Path(folder) / library.name
        files = [str(_HERE / "cpu.cpp"), "-o", str(target)]
        command = [*compiler, *_flags(capability), *include, *files, *libraries]
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
        if done.returncode != 0:
            tail = "\n".join(done.stdout.splitlines()[-_TAIL:])
            raise CompilationError(
                f"the CPU attention could not be compiled (exit status {done.returncode}):\n"
                f"{shlex.join(command)}\n{tail}"
            )
        target.replace(library)


@functools.cache
def load() -> ModuleType:
    """Load the kernels; the first call on a machine compiles them.

    Raises:
        CompilerMissingError: they are not compiled yet and there is no compiler.
        CompilationError: the compiler did not accept them; the message has the end of its output.
    """
    library = _library()
    if not library.exists():
        library.parent.mkdir(parents=True, exist_ok=True)
        with _locked(library.parent / "lock"):
            if not library.exists():
                _compile(library)
    specification = importlib.util.spec_from_file_location(_NAME, library)
    if specification is None or specification.loader is None:
        raise CompilationError(f"{library} is not a module that Python can load")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@functools.cache
def unavailable() -> str | None:
    """Say why the kernels cannot be had: neither compiled nor a compiler. Compiles nothing."""
    return None if _library().exists() or _compiler() else _missing()


@functools.cache
def failure() -> str | None:
    """Load the kernels, or compile them first; say why that failed, or None. Tried once."""
    try:
        load()
    except (CompilerMissingError, CompilationError) as error:
        return str(error)
    return None
