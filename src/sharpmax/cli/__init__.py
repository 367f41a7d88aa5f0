"""The command line: one file per command, which imports what it needs when it runs."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from sharpmax._extras import MissingExtraError, require

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit: with 0, with 2 for bad arguments, with 1 for other errors.

    Args:
        arguments: What follows the name of the program; None takes the arguments of the process.

    Raises:
        SystemExit: Always, with the exit code.

    Example:
        >>> main(["--version"])
        Traceback (most recent call last):
            ...
        SystemExit: 0
    """
    try:
        for module in ("typer", "rich"):
            require(module, extra="cli", what="The command line of sharpmax")
    except MissingExtraError as error:
        sys.stderr.write(f"sharpmax: {error}\n")
        sys.exit(1)
    from sharpmax.cli._app import app
    from sharpmax.cli._errors import run
    from sharpmax.cli._ranks import joined

    with joined():
        run(app, "sharpmax", arguments)
