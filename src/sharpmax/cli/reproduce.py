"""`sharpmax reproduce`: the experiments, from training to table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sharpmax._extras import require

if TYPE_CHECKING:
    from rich.console import Console

    from sharpmax.lab.max_retrieval.arms import Arm
    from sharpmax.lab.max_retrieval.study import Settings, Study

__all__ = ["reproduce"]

reproduce = typer.Typer(
    name="reproduce",
    help="Run the experiments again: train, test, and write tables and figures.",
    no_args_is_help=True,
)

_SIZES = "16,32,64,128,256,512,1024,2048,4096,8192,16384"
_FAR = "65536,262144,1048576"


@reproduce.command("max-retrieval")
def max_retrieval(
    seeds: Annotated[int, typer.Option(min=1, help="Number of heads, seeds 0, 1, …")] = 10,
    steps: Annotated[int, typer.Option(min=2, help="Batches of a standard training.")] = 40_000,
    sizes: Annotated[str, typer.Option(help="Items in a test set, with commas.")] = _SIZES,
    far: Annotated[
        str, typer.Option(help="Further sizes, for what goes beyond, in double precision.")
    ] = _FAR,
    arms: Annotated[
        str, typer.Option(help="Which trainings, with commas; 'list' lists them.")
    ] = "all",
    output: Annotated[Path, typer.Option(help="Folder for the table and the weights.")] = Path(
        "build/max_retrieval"
    ),
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an earlier run.")] = False,
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
    require("torch", extra="lab", what="sharpmax reproduce")
    from rich.console import Console

    from sharpmax.lab.max_retrieval.arms import all_arms
    from sharpmax.lab.max_retrieval.evaluation import number_of_sets
    from sharpmax.lab.max_retrieval.study import Settings, Study

    if quick:
        seeds, steps, sizes, far = 2, 200, "16,64,256", "1024"
    chosen, farther = _numbers("--sizes", sizes), _numbers("--far", far)
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
    asked = _chosen(known, arms)
    console = Console()
    study = Study(output, settings, _command(settings, output, quick), resume=resume)
    for arm in asked:
        _run(console, study, arm)
    console.print(f"Table: {study.table_path}", soft_wrap=True, highlight=False)


def _run(console: Console, study: Study, arm: Arm) -> None:
    """Train and test an arm behind a progress bar."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    from sharpmax.lab.max_retrieval import training

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    sizes, far = len(study.settings.sizes), len(study.settings.far)
    tests = 2 * sum(sizes + far * look.far for look in arm.looks)
    with Progress(*columns, console=console) as progress:
        trained = progress.add_task(f"{arm.name}: train", total=arm.recipe.steps, note="")
        tested = progress.add_task(f"{arm.name}: test", total=tests, note="")

        def on_training(at: training.Progress) -> None:
            progress.update(trained, completed=at.step, note=f"loss {at.loss:.4f}")

        def on_testing(_: object, weights: str, n: int) -> None:
            progress.update(trained, completed=arm.recipe.steps)
            progress.update(tested, advance=1, note=f"{weights} weights, n = {n:,}")

        study.run(arm, on_training, on_testing)
        progress.update(trained, completed=arm.recipe.steps)
        progress.update(tested, completed=tests, note="")


def _chosen(known: dict[str, Arm], names: str) -> list[Arm]:
    if names == "all":
        return list(known.values())
    for name in names.split(","):
        if name not in known:
            raise typer.BadParameter(
                f"expected 'all', 'list', or some of {', '.join(known)}; got {name!r}",
                param_hint="--arms",
            )
    return [known[name] for name in names.split(",")]


def _numbers(option: str, sizes: str) -> tuple[int, ...]:
    try:
        numbers = tuple(int(size) for size in sizes.split(","))
    except ValueError:
        numbers = ()
    if not numbers or min(numbers) < 1 or len(set(numbers)) != len(numbers):
        raise typer.BadParameter(
            f"expected different whole numbers above 0, with commas; got {sizes!r}",
            param_hint=option,
        )
    return tuple(sorted(numbers))


def _command(settings: Settings, output: Path, quick: bool) -> str:
    """The command that makes the whole table."""
    if quick:
        return "sharpmax reproduce max-retrieval --quick"
    sizes = ",".join(map(str, settings.sizes))
    options = [f"--seeds {len(settings.seeds)}", f"--steps {settings.steps}"]
    far = ",".join(map(str, settings.far))
    options += [f"--sizes {sizes}"] if sizes != _SIZES else []
    options += [f"--far {far}"] if far != _FAR else []
    folder = [] if output.is_absolute() else [f"--output {output}"]
    return " ".join(["sharpmax reproduce max-retrieval", *options, *folder])
