"""Files of results: what ran and where, and the writing of them."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from sharpmax._files import (
    DamagedFileError,
    RefusedError,
    read_sealed,
    versions,
    write_json,
    write_sealed,
)

__all__ = [
    "DamagedFileError",
    "RefusedError",
    "SettingsChangedError",
    "check_settings",
    "machine",
    "read_sealed",
    "refuse_earlier",
    "versions",
    "write_json",
    "write_sealed",
]


class SettingsChangedError(RefusedError):
    """A run was to go on with other settings than it began with."""


def check_settings(before: Mapping[str, Any], now: Mapping[str, Any], path: Path) -> None:
    """See whether a run may go on.

    Args:
        before: Settings of what is there.
        now: Settings that it is to go on with; what they do not name does not matter.
        path: The file that has those from before.

    Raises:
        SettingsChangedError: A setting is another.
    """
    for name, value in now.items():
        if before.get(name) != value:
            raise SettingsChangedError(
                f"{path}: the run there has {name} {before.get(name)}, not {value}; go on with the "
                "same settings, or choose another folder"
            )


def refuse_earlier(folder: Path) -> NoReturn:
    """Say that a folder holds a run, and what to do.

    Raises:
        FileExistsError: Always.
    """
    what = "holds an earlier run: --resume goes on with it, or choose another folder"
    raise FileExistsError(0, what, str(folder))


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


def _processor() -> str:
    """The name of the processor, where the system tells it."""
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()
