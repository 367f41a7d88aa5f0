"""Measure dispersion, draw it and print its table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from experiments.common.command import Output, Quick, Resume, current_command, show
from experiments.dispersion.figures import figures
from experiments.dispersion.measure import SIZES, Dispersion, measure_dispersion
from experiments.dispersion.tables import dispersion_table
from sharpmax._files import refuse_earlier

__all__ = ["run"]


def run(
    context: typer.Context,
    spread: Annotated[
        float, typer.Option(help="Largest logit minus smallest possible one.")
    ] = 5.69,
    rows: Annotated[int, typer.Option(min=1, help="Rows; their median is reported.")] = 5,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the logits.")] = 0,
    output: Output = Path("build/dispersion"),
    quick: Quick = False,
    resume: Resume = False,
) -> None:
    """Measure the largest coefficient of a bounded row from 16 to 1,048,576 items.

    Takes some ten seconds; with --quick, the rows end at 4,096 items. Resuming draws again what is
    measured.
    """
    path = output / "dispersion.json"
    if path.exists() and not resume:
        refuse_earlier(output)
    if not path.exists():
        sizes = tuple(n for n in SIZES if n <= 4096) if quick else SIZES
        measured = measure_dispersion(spread, sizes=sizes, rows=rows, seed=seed)
        measured.save(path, current_command(context))
    show(Console(), [dispersion_table(Dispersion.load(path))], [path, *figures(output)])
