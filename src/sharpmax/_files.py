"""Files of results: written whole, sealed, and with the versions and the machine behind them."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

from sharpmax._errors import SharpmaxError
from sharpmax._version import __version__


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


def read_sealed(path: str | Path, kind: str) -> dict[str, Any]:
    """Read results, and raise `DamagedFileError` unless they are as `write_sealed` wrote them."""
    text = Path(path).read_text(encoding="utf-8")
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise DamagedFileError(
            f"{path}: truncated or damaged ({error}); copy it again, or "
            "run the command that made it"
        ) from None
    if not isinstance(content, dict) or content.get("kind") != kind:
        found = content.get("kind") if isinstance(content, dict) else type(content).__name__
        raise DamagedFileError(
            f"{path}: expected a file of kind {kind!r}, got {found!r}; give another file, or use "
            "the version of sharpmax that wrote it"
        )
    if content.pop("seal", None) != _seal(content):
        raise DamagedFileError(
            f"{path}: the file was changed after it was written, so its figures are not those that "
            "were measured; run the command that made it again"
        )
    return content


def _seal(content: dict[str, Any]) -> str:
    # Sorted and without spaces, so that the layout of the file does not count.
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


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
