"""Count and time attention over ranks with gloo, and model it for other networks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from experiments.common.command import Output, Quick, Resume, current_command, show
from experiments.distributed_cost.figures import figures
from experiments.distributed_cost.measure import measure
from experiments.distributed_cost.model import Shape
from experiments.distributed_cost.tables import KIND, all_tables
from sharpmax._files import machine, read_sealed, refuse_earlier, versions, write_sealed

__all__ = ["run"]

MEASURED = {
    "short": Shape(1, 8, 4, 64, 256, 1024, 4),
    "long": Shape(1, 8, 4, 64, 1024, 8192, 4),
}
QUICK = {"short": Shape(1, 4, 4, 16, 32, 64, 4)}


def run(
    context: typer.Context,
    repeats: Annotated[int, typer.Option(min=1, help="Calls of each method that are timed.")] = 20,
    output: Output = Path("build/distributed_cost"),
    quick: Quick = False,
    resume: Resume = False,
) -> None:
    """Run every method on two and four processes of this machine, and show what the model gives.

    Takes about a minute. With --quick, one small shape on two processes. Resuming draws again what
    is measured.
    """
    path, console = output / "distributed_cost.json", Console()
    if path.exists() and not resume:
        refuse_earlier(output)
    if not path.exists():
        shapes = QUICK if quick else MEASURED
        data: dict[str, Any] = {
            "command": current_command(context), "versions": versions(("numpy", "torch")),
            "machine": machine(), "repeats": min(repeats, 2) if quick else repeats,
            "shapes": {name: shape.plain() for name, shape in shapes.items()}, "gloo": [],
        }  # fmt: skip
        for ranks in (2,) if quick else (2, 4):
            with console.status(f"Running on {ranks} processes"):
                data["gloo"].append(measure(ranks, shapes, repeats=data["repeats"]))
        write_sealed(path, KIND, data)
    found = read_sealed(path, KIND)
    show(console, all_tables(found).values(), [path, *figures(output)])
