"""Files that are whole, unchanged, and say which versions made them."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sharpmax._errors import SharpmaxError
from sharpmax._version import __version__

__all__ = [
    "DamagedFileError",
    "RefusedError",
    "read_sealed",
    "versions",
    "write_json",
    "write_sealed",
]


class RefusedError(SharpmaxError, ValueError):
    """Files or settings are not what they would have to be; the message says what to do."""


class DamagedFileError(RefusedError):
    """A file is cut off, was edited, or is not what it was taken for."""


def versions(packages: Sequence[str] = ("numpy", "torch")) -> dict[str, str]:
    """The versions that a result depends on.

    Args:
        packages: Names of distributions, beside sharpmax and Python; what is not installed is left
            out.

    Returns:
        Version by name.

    Example:
        >>> list(versions(["numpy", "no-such-package"]))
        ['sharpmax', 'python', 'numpy']
    """
    found = {"sharpmax": __version__, "python": platform.python_version()}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def write_json(path: str | Path, data: object) -> Path:
    r"""Write a file whole or not at all: a reader never sees half of it.

    Args:
        path: Where to; folders on the way to it are made.
        data: Plain data, with neither NaN nor infinity.

    Returns:
        The path.

    Raises:
        ValueError: There is a NaN or an infinity in the data.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     write_json(folder + "/new/result.json", {"ratio": 0.5}).read_text()
        '{\n  "ratio": 0.5\n}\n'
    """
    path = Path(path)
    text = json.dumps(data, indent=2, allow_nan=False) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    # In the same folder, because only within a file system a file is renamed in one step.
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        # A temporary file is for its owner alone; a result is not.
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return path


def write_sealed(path: str | Path, kind: str, data: dict[str, Any]) -> Path:
    """Write results with a seal: a digest of all that is in the file.

    Args:
        path: Where to; folders on the way to it are made.
        kind: What the results are, and in which format.
        data: Plain data by name.

    Returns:
        The path.

    Raises:
        ValueError: There is a NaN or an infinity in the data.

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
    """Read results, and make sure that they are as they were written.

    Args:
        path: A file that `write_sealed` wrote.
        kind: What the results have to be.

    Returns:
        The data by name.

    Raises:
        DamagedFileError: The file is cut off, was edited, or holds results of another kind.
    """
    text = Path(path).read_text(encoding="utf-8")
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise DamagedFileError(
            f"{path}: cut off or damaged ({error}); copy it again, or run the command that made it "
            "again"
        ) from None
    if not isinstance(content, dict) or content.get("kind") != kind:
        found = content.get("kind") if isinstance(content, dict) else type(content).__name__
        raise DamagedFileError(
            f"{path}: expected a file of kind {kind!r}, got {found!r}; give another file, or, if "
            "another version of sharpmax wrote it, use that one"
        )
    if content.pop("seal", None) != _seal(content):
        raise DamagedFileError(
            f"{path}: the file was changed after it was written, so its figures are not those that "
            "were measured; run the command that made it again"
        )
    return content


def _seal(content: dict[str, Any]) -> str:
    # Names in order and no spaces, so that the layout of the file does not count.
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
