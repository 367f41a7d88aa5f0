"""Find the library of the CPU kernels: shipped with the package, or compiled on first use and kept.

If the package holds the library, that one is used. Otherwise the sources are compiled, without a
build system, and the result is stored in the user's cache, in a folder whose name depends on
sources, flags and the kind of machine. A library in the cache is loaded only if no other user can
have written it, and compiled again if its digest differs from the one beside it.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import stat
import sys
import tempfile
import threading
from pathlib import Path

from sharpmax._errors import SharpmaxError
from sharpmax._files import cache_folder, locked
from sharpmax.kernels import _compile

__all__ = [
    "CacheError", "CompilationError", "CompilerMissingError", "failure", "load", "unavailable",
]  # fmt: skip

_HERE = _compile.HERE
_EXPECTED_SECONDS = 60
_TAIL = 30  # lines of the compiler's output that an error shows
_INTERFACE = 3  # SHARPMAX_INTERFACE of sharpmax.h, which the calls are written for

_loading = threading.Lock()
_OWN_CACHE = "set TORCH_EXTENSIONS_DIR to a folder that only you can write to"


class CacheError(SharpmaxError, RuntimeError):
    """Say that the folder for compiled kernels cannot be used."""


class CompilerMissingError(SharpmaxError, RuntimeError):
    """Say that there is no C++ compiler for the CPU kernels."""


class CompilationError(SharpmaxError, RuntimeError):
    """Say that the C++ compiler did not accept the CPU kernels."""


def _shipped() -> Path | None:
    """The library that came with the package, if one did."""
    library = _HERE / _compile.LIBRARY
    return library if os.access(library, os.R_OK) else None


@functools.cache
def _library() -> Path:
    """The path of the library that is compiled on first use."""
    digest = hashlib.sha256()
    for source in _compile.sources(_HERE):
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    flags = [*_compile.FLAGS, str(_compile.variants(platform.machine()))]
    flags.append("xla" if _compile.xla_flags() else "")  # one for JAX is another library
    digest.update("\0".join([*flags, platform.system(), platform.machine()]).encode())
    extensions = os.environ.get("TORCH_EXTENSIONS_DIR")
    try:
        cache = Path(extensions) if extensions else cache_folder()
    except RuntimeError:
        message = f"the CPU attention needs a cache, but there is no home; {_OWN_CACHE}"
        raise CacheError(message) from None
    return cache / f"kernels-{digest.hexdigest()[:16]}" / _compile.LIBRARY


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


def _check_above(folder: Path) -> None:
    """Refuse a folder that any user can exchange for another, since one above it is open to all."""
    for path in folder.resolve().parents:
        mode = path.stat().st_mode
        if mode & 0o002 and not mode & stat.S_ISVTX:
            raise CacheError(
                f"{path}: refused as a place of compiled code, because every user can write to it; "
                f"close it (chmod o-w), or {_OWN_CACHE}"
            )


def _digest_of(library: Path) -> bytes:
    return hashlib.sha256(library.read_bytes()).hexdigest().encode()


def _is_intact(library: Path) -> bool:
    """Whether the library is there as it was compiled; loading half of one can end the process."""
    noted = library.with_name(f"{library.name}.sha256")
    return library.exists() and noted.exists() and noted.read_bytes() == _digest_of(library)


def _missing() -> str:
    named = os.environ.get("CXX")
    searched = (
        f"CXX={named!r} is not a program" if named else "none of c++, g++, clang++ is on the path"
    )
    return (
        "the CPU attention is compiled on first use and needs a C++17 compiler, GCC 11 or "
        f"Clang 14 at least; {searched}"
    )


def _make(library: Path) -> None:
    compiler = _compile.find_compiler()
    if compiler is None:
        raise CompilerMissingError(_missing())
    message = f"compiling its CPU attention, once, about {_EXPECTED_SECONDS} seconds …"
    sys.stderr.write(f"sharpmax: {message}\n")
    sys.stderr.flush()
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        target = Path(folder) / library.name
        try:
            _compile.compile_library(compiler, target, folder=_HERE)
        except _compile.FailedError as failed:
            tail = "\n".join(failed.output.splitlines()[-_TAIL:])
            raise CompilationError(
                f"the CPU attention could not be compiled (exit status {failed.status}):\n"
                f"{failed.command}\n{tail}"
            ) from None
        target.chmod(0o700)
        noted = target.with_name(f"{target.name}.sha256")
        noted.write_bytes(_digest_of(target))
        noted.replace(library.parent / noted.name)
        target.replace(library)


@functools.cache
def load() -> ctypes.CDLL:
    """Load the kernels; unless the package ships them, the first call on a machine compiles them.

    Raises:
        CacheError: the cache cannot be written to, or another user can write to it.
        CompilerMissingError: they are not compiled yet and there is no compiler.
        CompilationError: the compiler did not accept them; the message has the end of its output.
    """
    with _loading:
        return _load()


@functools.cache
def _load() -> ctypes.CDLL:
    path = _shipped() or _compiled()
    try:
        library = ctypes.CDLL(str(path))
        interface: int = library.sharpmax_interface()
    except (AttributeError, OSError) as error:
        raise CompilationError(f"{path} cannot be loaded: {error}") from None
    if interface != _INTERFACE:
        raise CompilationError(f"{path}: expected interface {_INTERFACE}, got {interface}")
    return library


def _compiled() -> Path:
    """The library in the cache, made now if it is not there."""
    library = _library()
    folders = library.parent.parent, library.parent
    try:
        for folder in folders:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_owner(*folders)
        _check_above(folders[0])
        if not _is_intact(library):
            with locked(library.parent, wait=True):
                if not _is_intact(library):
                    _make(library)
        _check_owner(library)
    except OSError as error:
        raise CacheError(
            f"{error.filename or library}: the CPU attention cannot be kept there "
            f"({error.strerror or error}); {_OWN_CACHE}"
        ) from None
    return library


@functools.cache
def unavailable() -> str | None:
    """Say why the kernels cannot be had: neither compiled nor a compiler. Compiles nothing."""
    try:
        there = _shipped() or _library().exists() or _compile.find_compiler()
        return None if there else _missing()
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
