"""`sharpmax reproduce`: the experiments, from training to table."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from experiments.max_retrieval.run_arms import FAR, SIZES, chosen_arms, run_arm, whole_command
from sharpmax._extras import require
from sharpmax.cli._inputs import Resume, numbers

__all__ = ["reproduce"]

reproduce = typer.Typer(
    name="reproduce",
    help="Run the experiments again: train, test, and write tables and figures.",
    no_args_is_help=True,
)

_POSITIONS = "places"
_RANK = 8


@reproduce.command("max-retrieval")
def max_retrieval(
    seeds: Annotated[int, typer.Option(min=1, help="Number of heads, seeds 0, 1, …")] = 10,
    steps: Annotated[int, typer.Option(min=2, help="Batches of a standard training.")] = 40_000,
    sizes: Annotated[str, typer.Option(help="Items in a test set, with commas.")] = SIZES,
    far: Annotated[
        str, typer.Option(help="Further sizes, for what goes beyond, in double precision.")
    ] = FAR,
    arms: Annotated[
        str, typer.Option(help="Which trainings, with commas; 'list' lists them.")
    ] = "all",
    output: Annotated[Path, typer.Option(help="Folder for the table and the weights.")] = Path(
        "build/max_retrieval"
    ),
    resume: Resume = False,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", help="Every training, but so short that all is done in two minutes."
        ),
    ] = False,
) -> None:
    """Train heads on sets of at most 16 items, test them on more, and write OUTPUT/table.json.

    A run that was stopped goes on with --resume: trainings from their last checkpoint, and what is
    in the table stays.
    """
    require("torch", extra="experiments", what="sharpmax reproduce")
    from rich.console import Console

    from experiments.common.allocator import keep_freed_memory
    from experiments.max_retrieval.arms import all_arms
    from experiments.max_retrieval.evaluation import number_of_sets
    from experiments.max_retrieval.study import Settings, Study

    if quick:
        seeds, steps, sizes, far = 2, 200, "16,64,256", "1024"
    chosen, farther = numbers("--sizes", sizes), numbers("--far", far)
    settings = Settings(
        seeds=tuple(range(seeds)),
        steps=steps,
        sizes=chosen,
        sets=tuple(64 if quick else number_of_sets(n) for n in chosen),
        far=farther,
        far_sets=tuple(8 if quick else number_of_sets(n) for n in farther),
    )
    known = {arm.name: arm for arm in all_arms(steps)}
    if arms == "list":
        for name in known:
            typer.echo(name)
        return
    keep_freed_memory()
    asked = chosen_arms(known, arms)
    console = Console()
    study = Study(output, settings, whole_command(settings, output, quick), resume=resume)
    for arm in asked:
        run_arm(console, study, arm)
        with console.status("Measuring what the figures show"):
            study.dissect(arm)
            if arm.name == "standard":
                study.measure_figures(arm)
    console.print(f"Table: {study.table_path}", soft_wrap=True, highlight=False)


@reproduce.command("clrs-text")
def clrs_text(
    algorithms: Annotated[
        str,
        typer.Option(
            help="'some', eight with short texts; the 'others'; 'all'; or names with commas, such "
            "as minimum,quicksort:12, which is trained up to size 12."
        ),
    ] = "some",
    minutes: Annotated[
        float | None,
        typer.Option(
            min=0.01,
            help="For one training with softmax: measured once, it sets the steps of all arms.",
        ),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Batches of a training, instead of --minutes.")
    ] = None,
    tokenizer: Annotated[str, typer.Option(help="numbers or characters.")] = "numbers",
    attention: Annotated[
        str,
        typer.Option(
            help="Trained in: paper, ssmax, and softmax, which is tested with every rule at "
            "inference; or some of these rules alone: exponential, calibrated. With commas."
        ),
    ] = "all",
    model: Annotated[
        str | None,
        typer.Option(help="Name or folder of a pretrained model to train, not the small one."),
    ] = None,
    rank: Annotated[
        int, typer.Option(min=0, help="Of the adapters of --model; 0 trains all weights.")
    ] = _RANK,
    positions: Annotated[
        str, typer.Option(help="Of the small model: places, none, randomised or rotary.")
    ] = _POSITIONS,
    largest: Annotated[
        int | None, typer.Option(min=4, help="The largest size in training, of all algorithms.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Number of trainings, seeds 0, 1, …")] = 3,
    each: Annotated[
        int,
        typer.Option(
            min=1,
            help="Test questions of each algorithm at each size beyond training; "
            "four times as many at sizes of training.",
        ),
    ] = 64,
    jobs: Annotated[
        int, typer.Option(min=1, help="Trainings at a time, each with its share of the cores.")
    ] = 1,
    output: Annotated[Path, typer.Option(help="Folder for the table and the weights.")] = Path(
        "build/clrs_text"
    ),
    resume: Resume = False,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Every arm, but so short that all is done in a minute."),
    ] = False,
) -> None:
    """Train a language model on algorithms as text, and test it at sizes that it never saw.

    Writes OUTPUT/table.json. A run that was stopped goes on with --resume: trainings from their
    last checkpoint, and what is in the table stays. Other tokenizers and attentions are added to a
    table in the same way.
    """
    require("transformers", extra="models", what="sharpmax reproduce clrs-text")
    from rich.console import Console

    from experiments.clrs_text.arms import arms_of, small_recipe
    from experiments.clrs_text.run import chosen_attentions, chosen_lengths, run_clrs_arms
    from experiments.clrs_text.study import Settings, Study
    from sharpmax.cli._progress import quiet

    if minutes is not None and steps is not None:
        raise typer.BadParameter("expected one of --minutes and --steps", param_hint="--steps")
    if quick:
        algorithms, largest, steps, seeds, each = "minimum,quicksort", 6, 3, 2, 2
    try:
        recipe = small_recipe(
            chosen_lengths(algorithms, largest),
            tokenizer=tokenizer,
            positions=positions,
            model=model,
            rank=rank,
            quick=quick,
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    settings = Settings(
        tuple(range(seeds)), recipe.lengths, each, fit_steps=1 if quick else Settings.fit_steps
    )
    asked = chosen_attentions(attention)
    console = Console()
    given = {
        "--algorithms": algorithms if algorithms != "some" else None,
        "--largest": largest,
        "--steps": steps,
        "--minutes": minutes,
        "--seeds": seeds,
        "--each": each,
    }
    named = {
        "--tokenizer": tokenizer if tokenizer != "numbers" else None,
        "--attention": attention if attention != "all" else None,
        "--positions": positions if positions != _POSITIONS else None,
        "--model": model,
        "--rank": rank if model and rank != _RANK else None,
    }
    options = {**({} if quick else given), **named}
    said = [f"{name} {value}" for name, value in options.items() if value is not None]
    folder = [] if quick or output.is_absolute() else [f"--output {output}"]
    start = "sharpmax reproduce clrs-text" + (" --quick" if quick else "")
    command = " ".join([start, *said, *folder])
    study = Study(output, settings, command, resume=resume)
    with quiet(bars=False):
        if steps is None and minutes is not None:
            with console.status("Measuring how fast this machine trains"):
                steps = study.steps(recipe, minutes)
        if steps is not None:
            recipe = replace(recipe, steps=steps)
        arms = arms_of(recipe, asked)
        run_clrs_arms(console, study, arms, jobs)
        for arm in arms:
            if arm.recipe.attention == "softmax":
                with console.status("Measuring the entropy of heads"):
                    study.measure_entropy(arm)
    console.print(f"Table: {study.table_path}", soft_wrap=True, highlight=False)


@reproduce.command("clrs-text-figures")
def clrs_text_figures(
    results: Annotated[
        Path, typer.Option(help="Folder of the results of `sharpmax reproduce clrs-text`.")
    ] = Path("results/clrs_text"),
    output: Annotated[
        Path | None, typer.Option(help="Folder for the figures; that of the results by default.")
    ] = None,
) -> None:
    """Draw accuracy and entropy against size, and write the tables; nothing is trained.

    accuracy-TOKENIZER.svg is Figure 8 of the paper: a panel an algorithm. entropy-ARM.svg shows the
    entropy of every head, as its Figure 3 does. tables.md has the tables.
    """
    require("matplotlib", extra="experiments", what="sharpmax reproduce clrs-text-figures")
    from rich.console import Console

    from experiments.clrs_text.figures import draw_all
    from experiments.clrs_text.records import Table
    from experiments.clrs_text.study import load_entropy
    from experiments.clrs_text.tables import tables

    console = Console()
    folder = output or results
    table = Table.load(results / "table.json")
    measured = results / "entropy.json"
    entropy = load_entropy(measured) if measured.exists() else None
    folder.mkdir(parents=True, exist_ok=True)
    written = folder / "tables.md"
    found = tables(table, entropy)
    written.write_text("\n\n".join(found.values()) + "\n", encoding="utf-8")
    for path in [written, *draw_all(table, entropy, folder)]:
        console.print(f"Written: {path}", soft_wrap=True, highlight=False, markup=False)


@reproduce.command("figures")
def figures(
    results: Annotated[
        Path, typer.Option(help="Folder of the results of `sharpmax reproduce max-retrieval`.")
    ] = Path("results/max_retrieval"),
    output: Annotated[
        Path | None, typer.Option(help="Folder for the figures; that of the results by default.")
    ] = None,
) -> None:
    """Draw the figures and the report from the results; nothing is trained.

    Figure 1 of the paper is dispersion.png; 2 and 7 are attention-softmax.png and
    attention-compared.png; 5 is entropy-plane.png; 6 is fit.svg. accuracy-*.svg show accuracy
    against the number of items, and report.html has it all in one file.
    """
    require("matplotlib", extra="experiments", what="sharpmax reproduce figures")
    from rich.console import Console

    from experiments.dispersion.figures import draw_dispersion
    from experiments.dispersion.measure import measure_dispersion
    from experiments.max_retrieval.figure_data import load_figures
    from experiments.max_retrieval.figures import draw_all
    from experiments.max_retrieval.page import write_page
    from experiments.max_retrieval.records import Table

    console = Console()
    folder = output or results
    table = Table.load(results / "table.json")
    measured = results / "figures.json"
    data = load_figures(measured) if measured.exists() else None

    def say(sentence: str) -> None:
        console.print(sentence, soft_wrap=True, highlight=False, markup=False)

    folder.mkdir(parents=True, exist_ok=True)
    with console.status("Drawing"):
        drawn = [
            draw_dispersion(measure_dispersion(), folder / "dispersion.png"),
            *draw_all(table, data, folder, say=say),
            write_page(folder / "report.html", table, data),
        ]
    for path in drawn:
        say(f"Written: {path}")
