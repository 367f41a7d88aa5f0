"""Files of results: what ran and where, and the writing of them."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sharpmax._version import __version__

__all__ = ["machine", "versions", "write_json"]


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


def machine() -> dict[str, Any]:
    """The kind of machine that a result was measured on; nothing that would name it.

    Returns:
        System, processor and number of processors, ready for JSON.

    Example:
        >>> sorted(machine())
        ['architecture', 'processor', 'processors', 'system']
    """
    return {
        "system": platform.system(),
        "architecture": platform.machine(),
        "processor": _processor(),
        "processors": os.cpu_count(),
    }


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


def _processor() -> str:
    """The name of the processor, where the system tells it."""
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()
