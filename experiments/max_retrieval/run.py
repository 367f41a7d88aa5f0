"""`sharpmax reproduce`: the experiments, from training to table."""

from __future__ import annotations

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
