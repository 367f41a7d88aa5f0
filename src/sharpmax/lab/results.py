"""Files of results: what ran and where, and the writing of them."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

from sharpmax._files import (
    DamagedFile,
    Refused,
    read_sealed,
    versions,
    write_json,
    write_sealed,
)

__all__ = [
    "DamagedFile",
    "Refused",
    "SettingsChanged",
    "machine",
    "read_sealed",
    "versions",
    "write_json",
    "write_sealed",
]


class SettingsChanged(Refused):
    """A run was to go on with other settings than it began with."""


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
