"""Train two models under a monitor, and time what it costs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

from experiments.common.command import Output, Quick, Resume, current_command, show
from experiments.monitor.cost import SHAPES, measure_cost
from experiments.monitor.figures import figures
from experiments.monitor.tables import KIND, cost_table, training_table
from experiments.monitor.training import LEARNING_RATES, train
from sharpmax._files import machine, read_sealed, refuse_earlier, versions, write_sealed

__all__ = ["run"]


def run(
    context: typer.Context,
    steps: Annotated[int, typer.Option(min=1, help="Steps of each training.")] = 800,
    every: Annotated[int, typer.Option(min=1, help="Steps between readings.")] = 20,
    seed: Annotated[int, typer.Option(min=0, help="Seed of weights and batches.")] = 0,
    seconds: Annotated[float, typer.Option(help="Time per kind of step and shape.")] = 8.0,
    output: Output = Path("build/monitor"),
    quick: Quick = False,
    resume: Resume = False,
) -> None:
    """Train a small model at two learning rates, and time steps with and without a monitor.

    Takes about two minutes. With --quick, trainings have 40 steps and one shape is timed.
    Resuming draws again what is measured.
    """
    path, console = output / "monitor.json", Console()
    if path.exists() and not resume:
        refuse_earlier(output)
    if not path.exists():
        if quick:
            steps, every, seconds = min(steps, 40), min(every, 5), min(seconds, 0.05)
        data: dict[str, Any] = {
            "command": current_command(context), "seed": seed, "steps": steps, "every": every,
            "versions": versions(("numpy", "torch", "transformers")), "machine": machine(),
            "threads": torch.get_num_threads(), "trainings": {}, "costs": [],
        }  # fmt: skip
        for name, rate in LEARNING_RATES.items():
            with console.status(f"Training at a learning rate of {rate:g}"):
                data["trainings"][name] = train(rate, steps=steps, every=every, seed=seed)
        for name in list(SHAPES)[: 1 if quick else None]:
            with console.status(f"Timing steps: {name}"):
                data["costs"].append(measure_cost(name, seconds=seconds))
        write_sealed(path, KIND, data)
    found = read_sealed(path, KIND)
    show(console, [training_table(found), cost_table(found)], [path, *figures(output)])
