"""Demonstrate dispersion, the paper's rule, ours, and a head that stays accurate."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from experiments.common.command import Output, current_command, show
from experiments.common.timing import thread_count
from experiments.max_retrieval.arms import Arm, Checkpoint
from experiments.max_retrieval.head import Heads
from experiments.max_retrieval.measure import measure_figures, save_figures
from experiments.max_retrieval.page import write_page
from experiments.max_retrieval.recipe import Recipe
from experiments.max_retrieval.records import Group, Record, Table
from experiments.max_retrieval.study import Settings, evaluate_heads
from experiments.max_retrieval.tables import demo_table
from experiments.max_retrieval.task import NearTies
from experiments.max_retrieval.training import Training
from sharpmax.cli._progress import Bars

__all__ = ["demo"]

_METHODS = ("softmax", "paper", "exponential")
_SIZES = (16, 64, 256, 1024, 4096, 16384)
_SETS = (256, 256, 256, 256, 128, 128)
_FIT_ITEMS = 2**17
_SMALL: dict[str, Any] = {"width": 32, "learning_rate": 5e-3}
"""The head that is trained differently is small, so that many steps fit into the time."""
_OTHER_SEED = 1


def demo(
    context: typer.Context,
    output: Output = Path("build/demo"),
    seeds: Annotated[int, typer.Option(min=1, help="Number of heads to train as usual.")] = 1,
    steps: Annotated[int, typer.Option(min=1, help="Steps of their training.")] = 4000,
    recipe_steps: Annotated[
        int, typer.Option(min=1, help="Steps of the head that is trained differently.")
    ] = 12000,
) -> None:
    """Train heads on sets of at most 16 items and test them on up to 16,384.

    The task is max retrieval: name the class of the item with the highest priority. The same heads
    are tested with plain softmax, with the adaptive temperature of the paper and with the
    exponential law. One more head, a smaller one, is trained differently: on near ties, which it
    learns to tell apart. Writes OUTPUT/report.html, which needs no other file.
    """
    console = Console()
    command = current_command(context)
    plain = Recipe(steps=steps, schedule="cosine")
    ties = replace(plain, steps=recipe_steps, ties=NearTies(), **_SMALL)
    usual, other = _arm("standard", plain, "inference"), _arm("near-ties+cosine", ties, "beyond")
    settings = Settings(tuple(range(seeds)), steps, _SIZES, _SETS)
    # One process per training: operations are so short that threads would wait for each other.
    with (
        ProcessPoolExecutor(1, get_context("spawn")) as pool,
        Bars(console) as bars,
        thread_count(1),
    ):
        beside = pool.submit(_train_and_test, other, (_OTHER_SEED,), settings)
        bar = bars.add(f"Training {seeds} usual head(s) and a different one", steps)
        heads, records = _train_and_test(
            usual, settings.seeds, settings, lambda step, note: bars.step(bar, step, note)
        )
        measured = measure_figures(heads[0], _SIZES, command, items=_FIT_ITEMS)
        records += beside.result()[1]
    arms = [usual, other]
    recipes = {arm.name: arm.recipe.to_dict() for arm in arms}
    table = Table(command, settings.seeds, recipes, tuple(records), settings=settings.to_dict())
    table.save(output / "table.json")
    with console.status("Drawing"):
        save_figures(output / "figures.json", measured)
        report = write_page(output / "report.html", table, measured)
    show(console, [demo_table(table)], [report])


def _arm(name: str, recipe: Recipe, group: Group) -> Arm:
    return Arm(name, recipe, (Checkpoint(recipe.steps, name, {group: _METHODS}),))


def _train_and_test(
    arm: Arm,
    seeds: tuple[int, ...],
    settings: Settings,
    on_step: Callable[[int, str], None] = lambda *_: None,
) -> tuple[list[Heads], list[Record]]:
    """Train heads on one core and test them one by one, with averaged weights."""
    recipe = arm.recipe
    with thread_count(1):
        training = Training(recipe, seeds)
        for loss in training.run(recipe.steps):
            if training.step % 50 == 0:
                on_step(training.step, f"loss {loss:.4f}")
    stack = training.averaged_heads()
    heads = [stack.alone(index) for index in range(len(seeds))]
    return heads, list(evaluate_heads(arm, arm.checkpoints[0], "averaged", heads, settings))
