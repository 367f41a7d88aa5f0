"""`sharpmax bench`: how fast the kernels are here, against what PyTorch has."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["bench"]

bench = typer.Typer(
    name="bench", help="Time the kernels against PyTorch's own.", no_args_is_help=True
)


@bench.callback()
def _kinds() -> None:
    # With one command alone, typer would leave its name out.
    pass


@bench.command()
def attention(
    quick: Annotated[
        bool, typer.Option("--quick", help="Some of each kind, small: well below a minute.")
    ] = False,
    threads: Annotated[
        str | None,
        typer.Option(
            help="Numbers of threads, with commas between.", show_default="1,2; 1 if quick"
        ),
    ] = None,
    work: Annotated[
        list[str] | None,
        typer.Option(help="Only this kind of work. Repeat it for several.", show_default="all"),
    ] = None,
    output: Annotated[Path, typer.Option(help="Folder for the figures and the picture.")] = Path(
        "build/bench/attention"
    ),
) -> None:
    """Time sharpmax.attention against scaled_dot_product_attention on the same inputs.

    A full run takes about a quarter of an hour, on a machine that does nothing else. Writes
    benchmark.json and ratio.png to OUTPUT. Needs the extra "lab".
    """
    # Imported when the command runs, so that --help answers at once.
    from rich.console import Console

    from sharpmax._extras import require

    counts = _thread_counts(threads if threads is not None else "1" if quick else "1,2")
    # Before the first minute, rather than after the last.
    for module in ("torch", "entmax", "matplotlib"):
        require(module, extra="lab", what="the attention benchmark")

    from sharpmax.lab import attention_bench, attention_works, results
    from sharpmax.report.attention_figure import draw_ratios

    groups = attention_works.GROUPS
    for name in work or ():
        if name not in groups:
            expected = ", ".join(groups)
            raise typer.BadParameter(f"--work: expected one of {expected}, got {name!r}")
    chosen = set(work or groups)
    works = attention_works.quick_works() if quick else attention_works.full_works()
    works = [each for each in works if each.group in chosen]
    settings = replace(
        attention_bench.QUICK if quick else attention_bench.Settings(), threads=counts
    )
    if "memory" not in chosen:
        settings = replace(settings, memory_lengths=())

    console = Console()
    # Before the work, so that a folder that cannot be written is not found out after it.
    output.mkdir(parents=True, exist_ok=True)
    try:
        result = _run_with_progress(console, works, settings)
    except NotImplementedError as error:
        console.print(f"No benchmark: {error}", soft_wrap=True, highlight=False, markup=False)
        raise typer.Exit(1) from None
    result = {"command": _command(quick, threads, work), **result}
    figures = results.write_json(output / "benchmark.json", result)
    _print_tables(console, result)
    console.print(f"Figures: {figures}", soft_wrap=True, highlight=False)
    if {record["work"] for record in result["records"]} & {"prefill", "sharp", "curve"}:
        picture = draw_ratios(result, output / "ratio.png")
        console.print(f"Picture: {picture}", soft_wrap=True, highlight=False)


def _run_with_progress(console: Console, works: Any, settings: Any) -> dict[str, Any]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from sharpmax.lab.attention_bench import run, steps

    with Progress(
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
        console=console,
        transient=True,
        # A bar that moves would take time from what is timed.
        auto_refresh=False,
    ) as progress:
        # Every step is reported when it begins: so many are complete as have begun, less one.
        task = progress.add_task("", total=steps(works, settings), completed=-1)

        def report(line: str) -> None:
            progress.update(task, advance=1, description=line, refresh=True)

        return run(works, settings, progress=report)


def _print_tables(console: Console, result: dict[str, Any]) -> None:
    from sharpmax.report.attention import comparison_table, details_tables, targets_table

    for table in (*details_tables(result), comparison_table(result), targets_table(result)):
        if table.rows:
            console.print(table.to_rich())


def _thread_counts(text: str) -> tuple[int, ...]:
    try:
        counts = tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        counts = ()
    if not counts or min(counts) < 1:
        raise typer.BadParameter(
            f"--threads: expected numbers of at least 1 with commas between, got {text!r}"
        )
    return counts


def _command(quick: bool, threads: str | None, work: list[str] | None) -> str:
    """The command that measures this again; where it wrote does not belong to it."""
    words = ["sharpmax bench attention"]
    words += ["--quick"] if quick else []
    words += [f"--threads {threads}"] if threads is not None else []
    words += [f"--work {name}" for name in work or ()]
    return " ".join(words)
