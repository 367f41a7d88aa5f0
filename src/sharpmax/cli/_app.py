"""The commands of `sharpmax`."""

from __future__ import annotations

from typing import Annotated

import typer

from sharpmax._version import __version__
from sharpmax.cli.calibrate import calibrate
from sharpmax.cli.demo import demo
from sharpmax.cli.diagnose import diagnose
from sharpmax.cli.doctor import doctor
from sharpmax.cli.evaluate import evaluate
from sharpmax.cli.explore import explore
from sharpmax.cli.fold import fold
from sharpmax.cli.theory import theory

app = typer.Typer(
    name="sharpmax",
    help="Keep softmax attention sharp at long lengths.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
for command in (calibrate, demo, diagnose, doctor, evaluate, explore, fold, theory):
    app.command()(command)


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
