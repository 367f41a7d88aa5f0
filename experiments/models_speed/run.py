"""The command `run` of the benchmark of models."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from experiments.common.command import Output, Quick, Resume, current_command, show
from experiments.common.timing import conditions, run_steps
from experiments.models_speed.benchmark import QUICK, Settings, describe, load, plan
from experiments.models_speed.figures import figures
from experiments.models_speed.tables import memory_table, times_table
from sharpmax.cli._inputs import numbers
from sharpmax.cli._progress import Bars, quiet

__all__ = ["run"]


def run(
    context: typer.Context,
    model: Annotated[
        str,
        typer.Option(
            help="A folder, a name on the Hugging Face hub, or 'smollm2'. --quick ignores it."
        ),
    ] = "smollm2",
    threads: Annotated[
        str | None,
        typer.Option(
            help="Numbers of threads, separated by commas.", show_default="2; 1 with --quick"
        ),
    ] = None,
    quick: Quick = False,
    resume: Resume = False,
    output: Output = Path("build/models_speed"),
) -> None:
    """Time diagnosing and sharpening a model against running it, and measure their memory.

    A full run takes about ten minutes on two idle cores. --quick runs a small model with random
    weights in less than a minute. Writes benchmark.json and cost.png to OUTPUT.
    """
    settings = QUICK if quick else Settings(model=model)
    if threads is not None:
        settings = replace(settings, threads=numbers("--threads", threads))
    console = Console()
    # A bar that redraws itself would take time from what is timed.
    with quiet(bars=False), Bars(console, transient=True, auto_refresh=False) as bars:
        loaded, tokens = load(settings)
        steps = plan(loaded, tokens, settings)
        bar = bars.add("Timing", len(steps))
        result = run_steps(
            output / "benchmark.json",
            {
                "command": current_command(context),
                "experiment": "models speed",
                **conditions(["numpy", "torch", "transformers"]),
                "model": describe(loaded),
                "settings": settings.to_dict(),
            },
            steps,
            resume=resume,
            on_step=lambda number, name: bars.step(bar, number, name),
        )
    printed = [times_table(result), memory_table(result)]
    show(console, printed, [output / "benchmark.json", *figures(output)])
