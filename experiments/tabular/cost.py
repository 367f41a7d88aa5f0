"""Time one prediction per arm, in turn, on a synthetic table."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import torch
import typer
from rich.console import Console

from experiments.common.command import Output, Quick, Resume, current_command, show
from experiments.common.timing import (
    conditions,
    interleave,
    machine_line,
    read_benchmark,
    run_steps,
    thread_count,
)
from experiments.tabular.arms import Given, example_of
from experiments.tabular.fetch import CACHE
from experiments.tabular.model import Config, TabularTransformer, load_model
from experiments.tabular.prior import draw_table
from sharpmax.cli._inputs import numbers
from sharpmax.models import sharpen
from sharpmax.policies import Constant, Exponential, LogLength
from sharpmax.report._page.tables import Table

__all__ = ["cost", "cost_table"]

RULES: Final[dict[str, Any]] = {
    "log-length": LogLength(train_length=1_024),
    "exponential-0.125": Exponential(5.0, 0.125),
    "matched": Constant(1.3),
}
"""Parameters do not change the time."""

CHECKPOINT: Final = "tabpfn.safetensors"


def cost(
    context: typer.Context,
    cache: Annotated[Path, typer.Option(help="Folder that `setup` filled.")] = CACHE,
    sizes: Annotated[str, typer.Option(help="Rows of the contexts, with commas.")] = "4096",
    output: Output = Path("build/tabular/run"),
    quick: Quick = False,
    resume: Resume = False,
) -> None:
    """Time plain softmax and three arms on a synthetic table.

    Takes a minute on an idle core for 4,096 rows, and three for 10,000. Writes cost.json to OUTPUT.
    """
    model = (
        TabularTransformer(Config(width=32, hidden=32, heads=2, layers=2)).eval()
        if quick
        else load_model(cache / CHECKPOINT)
    )
    chosen = (256,) if quick else numbers("--sizes", sizes)
    path = output / "cost.json"
    result = run_steps(
        path,
        {
            "command": current_command(context),
            "experiment": "tabular, cost",
            **conditions(["torch"]),
        },
        {f"{size} rows": partial(_time, model, size) for size in chosen},
        resume=resume,
    )
    show(Console(), [cost_table(result)], [path])


def cost_table(result: dict[str, Any]) -> Table:
    """Return one row per arm: seconds per prediction, and their ratio to plain softmax."""
    sizes = sorted({record["size"] for record in result["records"]})
    found = {(record["arm"], record["size"]): record for record in result["records"]}
    rows = []
    for arm in dict.fromkeys(arm for arm, _ in found):
        cells = []
        for size in sizes:
            seconds = found[arm, size]["seconds"]
            ratio = seconds / found["plain", size]["seconds"]
            cells += [f"{seconds:.1f}", f"{ratio:.2f}"]
        rows.append([arm, *cells])
    header = [name for size in sizes for name in (f"{size:,} rows, s", "ratio to plain")]
    return Table(
        ["arm", *header],
        rows,
        caption="1,000 test rows, one thread, best of one or two rounds after a warm-up; plain is "
        f"PyTorch's own attention. {machine_line(result, {'torch': 'PyTorch'})}. Written by "
        f"`{result['command']}`.",
    )


def load_cost(path: Path) -> Table:
    """Read what `cost` wrote as a table."""
    return cost_table(read_benchmark(path))


def _time(model: TabularTransformer, size: int) -> dict[str, list[dict[str, Any]]]:
    """Time all arms on one table."""
    given, _ = draw_table(np.random.default_rng(0), size, 1_000)
    calls = {"plain": partial(given.predict, model)}
    for arm, policy in RULES.items():
        calls[arm] = partial(_sharpened, model, policy, given)
    with thread_count(1), torch.inference_mode():
        timing = interleave(calls, baseline="plain", seconds=1.0, least=2)
    return {
        "records": [
            {"arm": arm, "size": size, "seconds": timing.best[arm], "rounds": timing.rounds[arm]}
            for arm in calls
        ]
    }


def _sharpened(model: TabularTransformer, policy: Any, given: Given) -> Any:
    with sharpen(model, policy, example=example_of(model)):
        return given.predict(model)
