"""Run a command-line application and report its errors in one line."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NoReturn

import typer

from sharpmax._errors import SharpmaxError

# Every error of the parser derives from this class, whose home differs between releases of typer.
_ParserError: type[Exception] = typer.BadParameter.__mro__[2]


def run(application: typer.Typer, program: str, arguments: Sequence[str] | None = None) -> NoReturn:
    """Run an application and exit: with 0, with 2 for bad arguments, with 1 for other errors."""
    try:
        code = application(arguments, prog_name=program, standalone_mode=False)
    except _ParserError as error:
        # Without arguments the parser has shown the help, and its message is empty.
        _fail(program, error.format_message(), error.exit_code)  # type: ignore[attr-defined]
    except SharpmaxError as error:
        _fail(program, str(error), 1)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        _fail(program, f"{where}{error.strerror or error}", 1)
    except (KeyboardInterrupt, typer.Abort):
        _fail(program, "interrupted", 130)
    sys.exit(code if isinstance(code, int) else 0)


def _fail(program: str, message: str, code: int) -> NoReturn:
    if message:
        typer.echo(f"{program}: {' '.join(message.split())}", err=True)
    sys.exit(code)
