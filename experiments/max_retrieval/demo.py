"""`sharpmax demo`: train a head on small sets, watch it disperse on large ones, and mend it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from experiments.max_retrieval.run_arms import run_arm
from sharpmax._extras import require

if TYPE_CHECKING:
    from rich.table import Table

    from experiments.max_retrieval import records

__all__ = ["demo"]

_SIZES = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_SHOWN = (16, 64, 256, 1024, 4096, 16384)
_METHODS = ("softmax", "paper", "exponential")
_STEPS, _SETS = 4000, 256


def demo(
    output: Annotated[
        Path, typer.Option(help="Folder for the report, its figures and the results behind it.")
    ] = Path("build/demo"),
    seeds: Annotated[int, typer.Option(min=1, help="Number of heads to train.")] = 3,
    steps: Annotated[int, typer.Option(min=1, help="Batches of the training.")] = _STEPS,
) -> None:
    """Train heads on sets of at most 16 items, test them on up to 16,384, and mend them.

    The task is max retrieval: name the class of the item with the highest priority. The same
    weights are tested with plain softmax, with the paper's adaptive temperature, and with the
    exponential law. Writes report.html, which needs nothing else, to OUTPUT.
    """
    require("torch", extra="experiments", what="sharpmax demo")
    require("matplotlib", extra="experiments", what="sharpmax demo")
    # Imported when the command runs, so that --help answers at once.
    from rich.console import Console

    from experiments.common.allocator import keep_freed_memory
    from experiments.max_retrieval.arms import Arm, Look
    from experiments.max_retrieval.page import write_page
    from experiments.max_retrieval.recipe import Recipe
    from experiments.max_retrieval.study import Settings, Study

    keep_freed_memory()
    console = Console()
    recipe = Recipe(steps=steps, schedule="cosine")
    arm = Arm("demo", recipe, (Look(steps, "demo", {"inference": _METHODS}),))
    settings = Settings(tuple(range(seeds)), steps, _SIZES, (_SETS,) * len(_SIZES))
    for earlier in ("table.json", "figures.json"):
        (output / earlier).unlink(missing_ok=True)
    shutil.rmtree(output / "weights", ignore_errors=True)
    options = "" if (seeds, steps) == (3, _STEPS) else f" --seeds {seeds} --steps {steps}"
    study = Study(output, settings, f"sharpmax demo{options}")
    run_arm(console, study, arm)
    with console.status("Drawing"):
        measured = study.measure_figures(arm)
        report = write_page(output / "report.html", study.table, measured)
    console.print(_table(study.table))
    console.print(f"Report: {report}", soft_wrap=True, highlight=False)


def _table(results: records.Table) -> Table:
    from rich import box
    from rich.table import Table

    from experiments.common.methods import look

    table = Table(
        box=box.SIMPLE_HEAD,
        title="Share of sets of n items that are answered right",
        title_justify="left",
        title_style="bold",
        caption=(
            f"Max retrieval, trained on sets of 5 to 16 items: {len(results.seeds)} heads, "
            f"averaged weights, {_SETS} sets a size. The weights are the same in all rows."
        ),
        caption_justify="left",
        padding=(0, 1, 0, 0),
    )
    table.add_column("n =", no_wrap=True)
    for n in _SHOWN:
        table.add_column(f"{n:,}", justify="right", no_wrap=True)
    for method in _METHODS:
        means = (results.find(method=method, weights="averaged", n=n).mean for n in _SHOWN)
        table.add_row(look(method).label, *(f"{mean:.1%}" for mean in means))
    return table
