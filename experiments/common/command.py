"""The command line of every experiment: the verbs run, tables and figures, and their options."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console

from experiments.common.documents import EXPERIMENTS, fill_documents, write_pages
from sharpmax._files import locked
from sharpmax.cli._command import command_line
from sharpmax.cli._errors import run as run_application
from sharpmax.cli._inputs import EngineName
from sharpmax.report._page.tables import Table

__all__ = [
    "EngineName",
    "Output",
    "Quick",
    "Resume",
    "application",
    "current_command",
    "main",
    "say",
    "show",
]


def _apart(context: typer.Context, output: Path) -> Path:
    """Keep a quick run out of the default folder of the full one."""
    source = context.get_parameter_source("output")
    usual = source is None or source.name == "DEFAULT"
    return output / "quick" if usual and context.params.get("quick") else output


Output = Annotated[
    Path,
    typer.Option(help="Folder of the run: results, tables and figures.", callback=_apart),
]
# Eager, so that it is known when the folder is chosen.
Quick = Annotated[
    bool, typer.Option("--quick", is_eager=True, help="Run everything on a very small scale.")
]
Resume = Annotated[
    bool, typer.Option("--resume", help="Continue the run in OUTPUT where it was stopped.")
]


def _timed(engine: str) -> str:
    """Refuse other engines in an experiment that takes timings."""
    if engine != "local":
        raise typer.BadParameter(
            "expected local: this experiment takes timings, and cells that run beside each other "
            f"slow each other down; got {engine}"
        )
    return engine


def application(
    name: str,
    about: str,
    run: Callable[..., None],
    tables: Callable[[Path], Mapping[str, str]],
    figures: Callable[[Path], Iterable[Path]],
    *,
    pages: Callable[[Path], Mapping[str, str]] | None = None,
) -> typer.Typer:
    """Build the command line of an experiment.

    Args:
        name: Name of its folder under `experiments`.
        about: One sentence for the help text.
        run: The command `run`, with options of its own beside `Output`, `Quick` and `Resume`. Its
            option `EngineName` says where its cells run; without one it takes timings, and runs
            here.
        tables: Makes tables from a folder of results: Markdown by the name of the marker.
        figures: Draws figures from a folder of results into that folder; returns their paths.
        pages: Makes pages for tables that are too long for a document: Markdown by file name.

    Returns:
        The application; `main` runs it. Further commands can be added to it.
    """
    results = EXPERIMENTS / name / "results"
    app = typer.Typer(
        name=name,
        help=about,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
    )

    signature = inspect.signature(run, eval_str=True)
    timed = "engine" not in signature.parameters

    @wraps(run)
    def run_alone(*, output: Path, **options: Any) -> None:
        if timed:
            options.pop("engine")
        new = not output.exists()
        output.mkdir(parents=True, exist_ok=True)
        try:
            with locked(output):
                run(output=output, **options)
        finally:
            if new:
                with suppress(OSError):
                    output.rmdir()  # unless something was written

    if timed:
        local = Annotated[str, typer.Option(callback=_timed, help="local; this takes timings.")]
        option = inspect.Parameter(
            "engine", inspect.Parameter.KEYWORD_ONLY, default="local", annotation=local
        )
        shown = [*signature.parameters.values(), option]
        run_alone.__signature__ = signature.replace(parameters=shown)  # type: ignore[attr-defined]
    app.command("run")(run_alone)

    @app.command("tables")
    def make_tables(output: Output = results) -> None:
        """Fill the tables of the documents from the published results.

        For another folder of results, write its tables to OUTPUT/tables.md instead.
        """
        found = tables(output)
        if output.resolve() == results.resolve():
            written = [
                *fill_documents(found),
                *write_pages(results, pages(output) if pages else {}),
            ]
        else:
            text = "\n\n".join([*found.values(), *(pages(output) if pages else {}).values()])
            written = write_pages(output, {"tables.md": text})
        show(Console(), written=written)

    @app.command("figures")
    def make_figures(output: Output = results) -> None:
        """Draw the figures from the results in OUTPUT; nothing is trained or measured."""
        console = Console()
        with console.status("Drawing"):
            drawn = list(figures(output))
        show(console, written=drawn)

    return app


def main(app: typer.Typer, arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line of an experiment and exit; an error is one line.

    Args:
        app: What `application` built.
        arguments: What follows the name of the program; None takes the arguments of the process.

    Raises:
        SystemExit: Always, with the exit code.
    """
    run_application(app, f"python -m experiments.{app.info.name}", arguments)


def current_command(context: typer.Context) -> str:
    """Return the command that is running, for results to store."""
    return command_line(context, str(context.find_root().info_name))


def show(console: Console, tables: Iterable[Table] = (), written: Iterable[Path] = ()) -> None:
    """Print tables, then the paths of the files that were written."""
    for table in tables:
        console.print(table.to_rich())
    for path in written:
        say(console, f"Written: {path}")


def say(console: Console, line: str) -> None:
    """Print a line as it is."""
    console.print(line, soft_wrap=True, highlight=False, markup=False)
