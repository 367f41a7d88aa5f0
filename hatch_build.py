"""Put a compiled library of the CPU kernels into a wheel, if one is given.

`scripts/build_wheel.py` gives it by two variables of the environment: SHARPMAX_LIBRARY, its path,
and SHARPMAX_PLATFORM, the platform that it runs on as wheels name it. Without them the wheel is for
every platform, and the kernels are compiled on first use.
"""

from __future__ import annotations

import os
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Library(BuildHookInterface[Any]):
    """Add the library and name the platform."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        library = os.environ.get("SHARPMAX_LIBRARY")
        if library and version == "standard":
            build_data["force_include"][library] = "sharpmax/kernels/libsharpmax.so"
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{os.environ['SHARPMAX_PLATFORM']}"
