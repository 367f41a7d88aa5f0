"""Load optional dependencies; a missing one raises an error that names the extra."""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType

from sharpmax._errors import SharpmaxError


class MissingExtraError(SharpmaxError, ImportError):
    """Say that an optional dependency of a feature is not installed.

    Args:
        module: Name of the module that could not be imported.
        extra: The extra of sharpmax that installs it.
        what: What the module was needed for, as the subject of a sentence.

    Example:
        >>> print(MissingExtraError("matplotlib", extra="report", what="drawing a figure"))
        drawing a figure needs matplotlib, which is not installed: pip install 'sharpmax[report]'
    """

    def __init__(self, module: str, extra: str, what: str) -> None:
        # All three stay in `args` so that the exception survives pickling between processes.
        super().__init__(module, extra, what)
        self.name = module
        self.extra = extra
        self.what = what

    @property
    def install_command(self) -> str:
        """The command that installs the missing package."""
        return f"pip install 'sharpmax[{self.extra}]'"

    def __str__(self) -> str:
        """Say what was asked for, what is missing and how to install it."""
        return f"{self.what} needs {self.name}, which is not installed: {self.install_command}"


def require(module: str, *, extra: str, what: str) -> ModuleType:
    """Import a module that an extra installs, or raise an error that names the extra.

    Only the absence of the module itself is reported as a missing extra. A module that is installed
    and fails while it is imported raises its own error, because installing it again would not help.
    Describe what the module is needed for as the subject of a sentence.

    Example:
        >>> require("plotter", extra="report", what="a figure")
        Traceback (most recent call last):
            ...
        sharpmax._extras.MissingExtraError: a figure needs plotter, which is not installed: ...
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        parents = {".".join(module.split(".")[:end]) for end in range(1, module.count(".") + 2)}
        if error.name not in parents:
            raise
        raise MissingExtraError(module, extra, what) from error


def available(module: str) -> bool:
    """Tell whether a top-level module is installed, without importing it."""
    try:
        return importlib.util.find_spec(module) is not None
    except ValueError:
        # A module that was put in sys.modules by hand may have no spec: it is there.
        return True
