"""The command `run`: train language models on algorithms, test them, and show the results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from experiments.clrs_text.figures import figures
from experiments.clrs_text.parallel import run_in_parallel
from experiments.clrs_text.recipe import (
    ATTENTIONS,
    LEARNT,
    LENGTHS,
    SHORT,
    Arm,
    arms_of,
    learnt_recipe,
    small_recipe,
)
from experiments.clrs_text.settings import Settings
from experiments.clrs_text.study import Study
from experiments.clrs_text.tables import pages, sizes_table, tables
from experiments.clrs_text.task import algorithms as all_algorithms
from experiments.clrs_text.training import Progress
from experiments.clrs_text.view import views
from experiments.common.command import EngineName, Output, Quick, Resume, current_command, show
from experiments.common.documents import write_pages
from sharpmax._engine import Engine
from sharpmax.cli._progress import Bars, quiet

__all__ = ["lengths_of", "run"]


def run(
    context: typer.Context,
    algorithms: Annotated[
        str,
        typer.Option(
            help="'some' (eight with short texts), 'learnt' (the six of --learnt), 'others', "
            "'all', or names separated by commas; minimum,quicksort:12 trains quicksort up to 12.",
            show_default="some; learnt with --learnt",
        ),
    ] = "",
    learnt: Annotated[
        bool,
        typer.Option(
            "--learnt",
            help="Train models that answer nearly all questions of their training sizes, test them "
            "up to 16 times these sizes, and replace the attention of heads.",
        ),
    ] = False,
    tokenizer: Annotated[str, typer.Option(help="numbers or characters.")] = "numbers",
    attention: Annotated[
        str,
        typer.Option(
            help="Separated by commas: paper and ssmax (trained), softmax (trained, and tested "
            "with every method at inference), single methods at inference (exponential, by-row, "
            "calibrated), or fine-tuned from softmax for a tenth of the steps (tuned-softmax, "
            "tuned-paper, tuned-exponential). Plain softmax is always included."
        ),
    ] = "all",
    positions: Annotated[
        str, typer.Option(help="Of the small model: places, none, randomised or rotary.")
    ] = "places",
    model: Annotated[
        str | None,
        typer.Option(
            help="Name or folder of a pretrained model to train instead of the small one."
        ),
    ] = None,
    rank: Annotated[
        int, typer.Option(min=0, help="Rank of the adapters for --model; 0 trains all weights.")
    ] = 8,
    largest: Annotated[
        int | None, typer.Option(min=4, help="Largest training size of all algorithms.")
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(
            min=0.01, help="Time for one training with softmax; it sets the steps of all arms."
        ),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Batches per training, instead of --minutes.")
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(min=1, help="Number of trainings per arm.", show_default="3; 5 with --learnt"),
    ] = None,
    each: Annotated[
        int,
        typer.Option(
            min=1,
            help="Test questions per algorithm and size beyond training; four times as many at "
            "training sizes.",
        ),
    ] = 64,
    jobs: Annotated[
        int,
        typer.Option(
            min=1,
            help="Parallel trainings, each with its share of the cores. With --engine ray their "
            "number follows from the cores of the cluster.",
        ),
    ] = 1,
    output: Output = Path("build/clrs_text"),
    quick: Quick = False,
    resume: Resume = False,
    engine: EngineName = "local",
) -> None:
    """Train a language model on algorithms as text, and test it at sizes beyond training.

    Writes table.json, entropy.json, tables and figures to OUTPUT, made of the files in cells/, one
    folder per training. Seeds are run one after the other. With --resume, a stopped run continues
    from its cells and last checkpoints, and other tokenizers, attentions and seeds are added.
    """
    if minutes is not None and steps is not None:
        raise typer.BadParameter("expected one of --minutes and --steps", param_hint="--steps")
    if quick:
        algorithms, largest, steps, seeds, each = "minimum,quicksort", 6, 3, 2, 2
    try:
        lengths = lengths_of(algorithms or ("learnt" if learnt else "some"), largest)
        if learnt:
            recipe = learnt_recipe(lengths, quick=quick)
        else:
            recipe = small_recipe(
                lengths,
                tokenizer=tokenizer,
                positions=positions,
                model=model,
                rank=rank,
                quick=quick,
            )
        names = ATTENTIONS if attention == "all" else attention.split(",")
        arms = arms_of(recipe, names)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    settings = Settings(
        tuple(range(seeds or (5 if learnt else 3))),
        recipe.lengths,
        each,
        fit_steps=1 if quick else Settings.fit_steps,
    )
    if learnt:
        settings = replace(settings, times=(1.5, 2, 3, 4, 8, 16), inside=max(largest or 0, 16))
    console = Console()
    command = current_command(context)
    study = Study(output, settings, command, resume=resume, interventions=learnt)
    with quiet(bars=False):
        if steps is None and minutes is not None:
            with console.status("Measuring the speed of training"):
                steps = study.steps(recipe, minutes)
        if steps is not None:
            arms = arms_of(replace(recipe, steps=steps), names)
        _run_arms(console, study, arms, jobs, engine)
        study.measure_entropy(arms[0])
        study.collect_losses(arms)
        if learnt:
            study.measure_interventions(arms[0])
    with console.status("Drawing"):
        drawn = figures(output)
    text = "\n\n".join([*tables(output).values(), *pages(output).values()])
    written = [study.table_path, *write_pages(output, {"tables.md": text}), *drawn]
    show(console, [sizes_table(view, p_values=False) for view in views(study.table)], written)


def lengths_of(algorithms: str, largest: int | None) -> dict[str, tuple[int, int]]:
    """Return the training sizes of the algorithms that an option names.

    Args:
        algorithms: "some", "learnt", "others", "all", or names separated by commas, each with its
            own largest size after a colon if it has one.
        largest: Largest size of algorithms without their own; None takes the default.

    Returns:
        The smallest and the largest size, by algorithm.

    Raises:
        ValueError: An algorithm is unknown, or a size is too small.
    """
    known = all_algorithms()
    others = [name for name in known if name not in LENGTHS]
    groups = {
        "some": list(LENGTHS),
        "learnt": [f"{name}:{high}" for name, (_, high) in LEARNT.items()],
        "others": others,
        "all": list(known),
    }
    found = {}
    for each in groups.get(algorithms, algorithms.split(",")):
        name, _, own = each.partition(":")
        if name not in known:
            raise ValueError(
                f"algorithms: expected {', '.join(map(repr, groups))}, or some of "
                f"{', '.join(known)}; got {name!r}"
            )
        smallest, usual = LENGTHS.get(name, SHORT)
        size = own or str(largest or usual)
        if not size.isdigit() or int(size) < smallest:
            raise ValueError(
                f"{'algorithms' if own else 'largest'}: expected a largest size of at least "
                f"{smallest} for {name}, got {size!r}"
            )
        found[name] = (smallest, int(size))
    return found


def _run_arms(
    console: Console, study: Study, arms: Sequence[Arm], jobs: int, engine: Engine
) -> None:
    """Train and test arms, with progress bars."""
    with Bars(console) as bars:
        of_seed = {
            (arm.name, seed): bars.add(f"{arm.name}, seed {seed}", arm.recipe.steps)
            for arm in arms
            for seed in study.settings.seeds
        }

        def on_training(arm: Arm, seed: int, at: Progress) -> None:
            note = f"loss {at.loss:.4f}, {at.speed:,.0f} tokens/s"
            bars.step(of_seed[arm.name, seed], at.step, note)

        def on_testing(arm: Arm, seed: int, method: str) -> None:
            bars.step(of_seed[arm.name, seed], arm.recipe.steps, f"testing {method}")
            bars.say(f"{arm.name}, seed {seed}: testing {method}")

        run_in_parallel(study, arms, jobs, on_training, on_testing, engine)
        for arm in arms:
            for seed in study.settings.seeds:
                bars.step(of_seed[arm.name, seed], arm.recipe.steps)
