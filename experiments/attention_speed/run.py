"""`sharpmax bench`: what attention and models cost here, against what PyTorch has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sharpmax.cli._inputs import numbers
from sharpmax.cli._progress import Bars, quiet

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["bench"]

bench = typer.Typer(
    name="bench", help="Time attention and models against PyTorch's own.", no_args_is_help=True
)


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

    counts = numbers("--threads", threads if threads is not None else "1" if quick else "1,2")
    # Before the first minute, rather than after the last.
    for module in ("torch", "entmax", "matplotlib"):
        require(module, extra="experiments", what="the attention benchmark")

    from experiments.attention_speed import benchmark as attention_bench
    from experiments.attention_speed import works as attention_works
    from experiments.attention_speed.figures import draw_ratios
    from sharpmax import _files as results

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
        with _progress(console, attention_bench.steps(works, settings)) as report:
            result = attention_bench.run(works, settings, progress=report)
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


@bench.command()
def models(
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", help="A small model with random weights, and short inputs: half a minute."
        ),
    ] = False,
    model: Annotated[
        str, typer.Option(help="A folder, a name on the Hugging Face hub, or 'smollm2'.")
    ] = "smollm2",
    threads: Annotated[
        str | None,
        typer.Option(help="Numbers of threads, with commas between.", show_default="2; 1 if quick"),
    ] = None,
    output: Annotated[Path, typer.Option(help="Folder for the figures.")] = Path(
        "build/bench/models"
    ),
) -> None:
    """Time diagnosing and sharpening a model against running it, and measure their memory.

    A full run takes some ten minutes, on a machine that does nothing else. Writes benchmark.json to
    OUTPUT. Needs the extra "models".
    """
    from rich.console import Console

    from sharpmax._extras import require

    counts = None if threads is None else numbers("--threads", threads)
    require("transformers", extra="models", what="the benchmark of models")

    from experiments.models_speed import benchmark as models_bench
    from experiments.models_speed.tables import memory_table, times_table
    from sharpmax import _files as results

    settings = models_bench.QUICK if quick else models_bench.Settings(model=model)
    settings = settings if counts is None else replace(settings, threads=counts)
    console = Console()
    output.mkdir(parents=True, exist_ok=True)
    with _progress(console, models_bench.steps(settings)) as report, quiet(bars=False):
        result = models_bench.run(settings, progress=report)
    words = ["sharpmax bench models"]
    words += ["--quick"] if quick else []
    words += [f"--model {Path(model).name}"] if model != "smollm2" else []
    words += [f"--threads {threads}"] if threads is not None else []
    result = {"command": " ".join(words), **result}
    figures = results.write_json(output / "benchmark.json", result)
    for table in (times_table(result), memory_table(result)):
        console.print(table.to_rich())
    console.print(f"Figures: {figures}", soft_wrap=True, highlight=False)


@contextmanager
def _progress(console: Console, steps: int) -> Iterator[Callable[[str], None]]:
    """A bar that moves on, by one step of so many, whenever it is given a line."""
    # A thread that redraws the bar would take time from what is timed.
    with Bars(console, transient=True, auto_refresh=False) as bars:
        bar, begun = bars.add("measuring", steps), 0

        def report(line: str) -> None:
            # Every step is reported when it begins.
            nonlocal begun
            bars.step(bar, begun, line)
            begun += 1

        yield report


def _print_tables(console: Console, result: dict[str, Any]) -> None:
    from experiments.attention_speed.tables import comparison_table, details_tables, targets_table

    for table in (*details_tables(result), comparison_table(result), targets_table(result)):
        if table.rows:
            console.print(table.to_rich())


def _command(quick: bool, threads: str | None, work: list[str] | None) -> str:
    """The command that measures this again; where it wrote does not belong to it."""
    words = ["sharpmax bench attention"]
    words += ["--quick"] if quick else []
    words += [f"--threads {threads}"] if threads is not None else []
    words += [f"--work {name}" for name in work or ()]
    return " ".join(words)
