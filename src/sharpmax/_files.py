"""Files of results: written whole, sealed, and with the versions and the machine behind them."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import platform
import reprlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Any,
    Literal,
    NoReturn,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)  # fmt: skip

from sharpmax._errors import SharpmaxError
from sharpmax._version import __version__

_LARGEST = 2**28
"""Bytes of the largest file that is read: parsing takes some ten times as much memory."""


class RefusedError(SharpmaxError, ValueError):
    """Files or settings do not fit; the message says what to do."""


class DamagedFileError(RefusedError):
    """A file is truncated, was edited, or has another format."""


class SettingsChangedError(RefusedError):
    """A run cannot be resumed with settings other than those it started with."""


def cache_folder() -> Path:
    """Return the folder for what can be made again, in the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sharpmax"


@contextmanager
def replace_file(path: str | Path) -> Iterator[Path]:
    """Write a file whole or not at all, in folders that are created: no reader sees half of it.

    Yields a temporary file to write to, which replaces `path` unless the block raises.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     with replace_file(folder + "/note.txt") as temporary:
        ...         _ = temporary.write_text("whole")
        ...     Path(folder, "note.txt").read_text()
        'whole'
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # In the same folder: a rename is atomic only within a file system.
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        # mkstemp makes files that only their owner can read.
        temporary.chmod(0o644)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


_held: set[tuple[int, int, int]] = set()
"""The folders that this process has locked, with its number: a fork starts without any."""


@contextmanager
def locked(folder: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold a folder for this process alone. The lock ends with the process, also if it is killed.

    No file is left behind. A process that holds the folder can do so again. Systems without such
    locks, as Windows and some network drives, have no protection.

    Raises:
        RefusedError: another process holds the folder, and `wait` is false.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder, locked(Path(folder)):
        ...     _ = write_json(folder + "/note.json", [])
    """
    try:
        import fcntl
    except ImportError:
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    found = os.fstat(handle)
    place = found.st_dev, found.st_ino, os.getpid()
    if place in _held:
        os.close(handle)
        yield
        return
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            raise RefusedError(
                f"{folder}: another run is writing to this folder; wait until it has ended, or "
                "choose another folder"
            ) from None
        except OSError:
            pass
        _held.add(place)
        yield
    finally:
        _held.discard(place)
        os.close(handle)


def write_json(path: str | Path, data: object) -> Path:
    """Write JSON without NaN and infinity, whole or not at all, and return the path."""
    text = json.dumps(data, indent=2, allow_nan=False) + "\n"
    with replace_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return Path(path)


def write_sealed(path: str | Path, kind: str, data: dict[str, Any]) -> Path:
    """Write results of a kind with a seal, a digest of everything in the file.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     path = write_sealed(folder + "/result.json", "ratios", {"ratio": 0.5})
        ...     read_sealed(path, "ratios")["ratio"]
        0.5
    """
    content = {"kind": kind, **data}
    return write_json(path, {**content, "seal": _seal(content)})


def read_json(path: str | Path) -> Any:
    """Read JSON, and raise `DamagedFileError` for a file that is not, or is too large or deep."""
    with Path(path).open("rb") as file:
        content = file.read(_LARGEST + 1)
    if len(content) > _LARGEST:
        raise DamagedFileError(
            f"{path}: expected at most {_LARGEST:,} bytes, got more; give another file"
        )
    return parse_json(content, str(path))


def parse_json(content: str | bytes, name: str) -> Any:
    """Parse JSON without NaN and infinity, or raise `DamagedFileError` with the name."""
    try:
        return json.loads(content, parse_constant=_refuse_constant)
    except RecursionError:
        why = "it is nested too deeply"
    except ValueError as error:  # also of bytes that are not UTF-8, and of very long numbers
        why = str(error)
    raise DamagedFileError(
        f"{name}: truncated or damaged ({why}); copy it again, or run the command that made it"
    )


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def read_sealed(path: str | Path, kind: str) -> dict[str, Any]:
    """Read results, and raise `DamagedFileError` unless they are as `write_sealed` wrote them."""
    content = read_json(path)
    if not isinstance(content, dict) or content.get("kind") != kind:
        found = content.get("kind") if isinstance(content, dict) else type(content).__name__
        raise DamagedFileError(
            f"{path}: expected a file of kind {kind!r}, got {reprlib.repr(found)}; give another "
            "file, or use the version of sharpmax that wrote it"
        )
    seal = content.pop("seal", None)
    try:
        intact = seal == _seal(content)
    except (RecursionError, ValueError):  # a number beyond all numbers, such as 1e999
        intact = False
    if not intact:
        raise DamagedFileError(
            f"{path}: the file was changed after it was written, so its figures are not those that "
            "were measured; run the command that made it again"
        )
    return content


def _seal(content: dict[str, Any]) -> str:
    # Sorted and without spaces, so that the layout of the file does not count.
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def typed(value: Any, kind: Any, name: str = "data") -> Any:
    """Read plain data, as they come from JSON, as a type: a dataclass, tuple[int, …] and so on.

    Raises:
        TypeError: says where something else was expected.

    Example:
        >>> typed([1, 2.5], tuple[float, ...]), typed({"a": None}, dict[str, int | None])
        ((1, 2.5), {'a': None})
        >>> typed({"a": "1"}, dict[str, int], "sizes")
        Traceback (most recent call last):
        TypeError: sizes.a: expected int, got '1'
    """
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):  # of one type and None
        (kind,) = (each for each in inner if each is not NoneType)
        return None if value is None else typed(value, kind, name)
    if isinstance(value, list):
        if origin is list or inner[1:] == (...,):
            return origin(typed(each, inner[0], f"{name}[{n}]") for n, each in enumerate(value))
        kinds = tuple(_hints(kind).values()) if hasattr(kind, "_fields") else inner
        if kinds and len(kinds) == len(value):
            parts = [typed(each, kinds[n], f"{name}[{n}]") for n, each in enumerate(value)]
            return kind(*parts) if origin is None else tuple(parts)
    if isinstance(value, dict):
        if origin in (dict, Mapping):
            return {key: typed(each, inner[1], f"{name}.{key}") for key, each in value.items()}
        if hasattr(kind, "from_dict"):
            return kind.from_dict(value)
        if is_typeddict(kind) or is_dataclass(kind):
            return typed_fields(value, kind, name)
    is_number = type(value) in (int, float) and abs(value) < 2**63 and kind in (float, type(value))
    is_other = kind in (str, bool) and type(value) is kind
    if kind is Any or is_number or is_other or (origin is Literal and value in inner):
        return value
    told = kind.__name__ if isinstance(kind, type) and origin is None else kind
    raise TypeError(f"{name}: expected {told}, got {reprlib.repr(value)}")


def typed_fields(data: dict[str, Any], kind: Any, name: str = "data") -> Any:
    """Read a dictionary as a dataclass, or check the entries that a TypedDict knows."""
    hints = _hints(kind)
    found = {key: typed(data[key], of, f"{name}.{key}") for key, of in hints.items() if key in data}
    if is_typeddict(kind):
        wrong = kind.__required_keys__ - data.keys()
    else:
        wrong = {each.name for each in fields(kind)} ^ data.keys()
    if wrong:
        raise TypeError(f"{name}: missing or unknown: {reprlib.repr(sorted(wrong))}")
    return data if is_typeddict(kind) else kind(**found)


_hints = functools.cache(get_type_hints)


def check_settings(before: Mapping[str, Any], now: Mapping[str, Any], path: Path) -> None:
    """Check that a run is resumed with the settings in its file, as far as `now` names them."""
    for name, value in now.items():
        if before.get(name) != value:
            raise SettingsChangedError(
                f"{path}: the run there has {name} {before.get(name)}, not {value}; resume it with "
                "the same settings, or choose another folder"
            )


def refuse_earlier(path: Path) -> NoReturn:
    """Refuse to overwrite a run."""
    message = "holds an earlier run; resume it with --resume, or choose another --output"
    raise FileExistsError(0, message, str(path))


def versions(packages: Sequence[str] = ("numpy", "torch")) -> dict[str, str]:
    """Look up the versions of sharpmax, Python and those of the packages that are installed.

    Example:
        >>> list(versions(["numpy", "no-such-package"]))
        ['sharpmax', 'python', 'numpy']
    """
    import importlib.metadata  # takes longer than all other imports here

    found = {"sharpmax": __version__, "python": platform.python_version()}
    for package in packages:
        with suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def machine() -> dict[str, Any]:
    """Describe the kind of machine, without anything that identifies it."""
    return {
        "system": platform.system(),
        "architecture": platform.machine(),
        "processor": _processor(),
        "processors": os.cpu_count(),
    }


def _processor() -> str:
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()
