"""`sharpmax demo`: train attention heads on short inputs and test them on long ones."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from sharpmax._files import RefusedError

_ROOT = Path(__file__).parents[3]
"""The clone, if the package lies in one."""


def demo(
    output: Annotated[Path, Option(help="Folder for report and results.")] = Path("build/demo"),
    seeds: Annotated[
        int | None, Option(min=1, help="Number of heads to train.", show_default="that of the demo")
    ] = None,
    steps: Annotated[
        int | None, Option(min=1, help="Training steps per head.", show_default="that of the demo")
    ] = None,
) -> None:
    """Train heads to find the maximum of a few items, and test them on thousands.

    Plain softmax disperses on large sets. The demo tests the same weights with other temperatures,
    and writes OUTPUT/report.html. It is the demo of experiments/max_retrieval, so it needs a clone
    of the repository.
    """
    if not (_ROOT / "experiments" / "max_retrieval").is_dir():
        raise RefusedError(
            "demo: expected a clone of the repository, got an installed package without its "
            "experiments; clone the repository and run `make demo` there"
        )
    options = ["--output", str(output.resolve())]
    for option, value in (("--seeds", seeds), ("--steps", steps)):
        options += [] if value is None else [option, str(value)]
    command = [sys.executable, "-m", "experiments.max_retrieval", "demo", *options]
    raise typer.Exit(subprocess.run(command, cwd=_ROOT, check=False).returncode)
