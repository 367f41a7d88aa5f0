"""Compile the CPU kernels on first use and keep the result.

The compiler is called directly: one source file, no build system. The result is stored in the
user's cache, in a folder whose name depends on sources, flags, versions and the processor's vector
extension, so that machines that share a home folder do not mix. A library is loaded only if no
other user can have written it, and compiled again if its digest differs from the one beside it.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import platform
import shlex
import shutil
import stat
import subprocess
import sys
import sysconfig
import tempfile
import threading
from pathlib import Path
from types import ModuleType

import torch

from sharpmax._errors import SharpmaxError
from sharpmax._files import cache_folder, locked

__all__ = [
    "CacheError", "CompilationError", "CompilerMissingError", "failure", "load", "unavailable",
]  # fmt: skip

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


_loading = threading.Lock()
_OWN_CACHE = "set TORCH_EXTENSIONS_DIR to a folder that only you can write to"


class CacheError(SharpmaxError, RuntimeError):
    """Say that the folder for compiled kernels cannot be used."""


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
    try:
        cache = Path(extensions) if extensions else cache_folder()
    except RuntimeError:
        message = f"the CPU attention needs a cache, but there is no home; {_OWN_CACHE}"
        raise CacheError(message) from None
    folder = f"{_NAME}-{capability.lower().replace(' ', '-')}-{digest.hexdigest()[:16]}"
    return cache / folder / f"{_NAME}{sysconfig.get_config_var('EXT_SUFFIX') or '.so'}"


def _check_owner(*paths: Path) -> None:
    """Refuse what another user can write to: loading a library runs it."""
    for path in paths if hasattr(os, "getuid") else ():
        found = path.stat()
        # In a folder with the sticky bit, as /tmp, others cannot replace what is ours.
        writable = found.st_mode & 0o022 and not found.st_mode & stat.S_ISVTX
        if writable or found.st_uid not in (0, os.getuid()):
            who = f"user {found.st_uid} owns it" if not writable else "other users can write to it"
            raise CacheError(
                f"{path}: refused as a place of compiled code, because {who}; remove it or make it "
                f"yours alone (chown, chmod go-w), or {_OWN_CACHE}"
            )


def _digest_of(library: Path) -> str:
    return hashlib.sha256(library.read_bytes()).hexdigest()


def _is_intact(library: Path) -> bool:
    """Whether the library is there as it was compiled; loading half of one can end the process."""
    noted = library.with_name(f"{library.name}.sha256")
    return library.exists() and noted.exists() and noted.read_text() == _digest_of(library)


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
        target.chmod(0o700)
        noted = target.with_name(f"{target.name}.sha256")
        noted.write_text(_digest_of(target))
        noted.replace(library.parent / noted.name)
        target.replace(library)


@functools.cache
def load() -> ModuleType:
    """Load the kernels; the first call on a machine compiles them.

    Raises:
        CacheError: the cache cannot be written to, or another user can write to it.
        CompilerMissingError: they are not compiled yet and there is no compiler.
        CompilationError: the compiler did not accept them; the message has the end of its output.
    """
    with _loading:
        return _load()


@functools.cache
def _load() -> ModuleType:
    library = _library()
    folders = library.parent.parent, library.parent
    try:
        for folder in folders:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_owner(*folders)
        if not _is_intact(library):
            with locked(library.parent, wait=True):
                if not _is_intact(library):
                    _compile(library)
        _check_owner(library)
    except OSError as error:
        raise CacheError(
            f"{error.filename or library}: the CPU attention cannot be kept there "
            f"({error.strerror or error}); {_OWN_CACHE}"
        ) from None
    specification = importlib.util.spec_from_file_location(_NAME, library)
    if specification is None or specification.loader is None:
        raise CompilationError(f"{library} is not a module that Python can load")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@functools.cache
def unavailable() -> str | None:
    """Say why the kernels cannot be had: neither compiled nor a compiler. Compiles nothing."""
    try:
        return None if _library().exists() or _compiler() else _missing()
    except (CacheError, OSError) as error:
        return str(error)


@functools.cache
def failure() -> str | None:
    """Load the kernels, or compile them first; say why that failed, or None. Tried once."""
    try:
        load()
    except SharpmaxError as error:
        return str(error)
    return None
