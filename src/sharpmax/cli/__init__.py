"""The command line: one file a command, each of which imports what it needs when it runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from sharpmax._version import __version__
from sharpmax.cli._errors import run
from sharpmax.cli.calibrate import calibrate
from sharpmax.cli.diagnose import diagnose
from sharpmax.cli.evaluate import evaluate
from sharpmax.cli.theory import theory

__all__ = ["app", "main"]

app = typer.Typer(
    name="sharpmax",
    help="Keep softmax attention sharp at long lengths.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
app.command()(calibrate)
app.command()(diagnose)
app.command()(evaluate)
app.command()(theory)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"sharpmax {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    pass


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit: with 0, with 2 for bad arguments, with 1 for other errors.

    Args:
        arguments: What follows the name of the program; None takes those of the process.

    Raises:
        SystemExit: Always, with the exit code.

    Example:
        >>> main(["--version"])
        Traceback (most recent call last):
            ...
        SystemExit: 0
    """
    run(app, "sharpmax", arguments)
