"""Train and test every arm, resume a run, and show a quick one."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import TaskID

from experiments.common.command import EngineName, Output, Quick, Resume, current_command, show
from experiments.max_retrieval.arms import Arm, all_arms
from experiments.max_retrieval.evaluation import number_of_sets
from experiments.max_retrieval.figures import figures
from experiments.max_retrieval.records import Record
from experiments.max_retrieval.study import Settings, Study
from experiments.max_retrieval.tables import inference_table
from experiments.max_retrieval.training import Progress
from sharpmax._engine import Engine, Tell, in_order, run_cells
from sharpmax.cli._inputs import numbers
from sharpmax.cli._progress import Bars

__all__ = ["run"]

_SIZES = "16,32,64,128,256,512,1024,2048,4096,8192,16384"
_FAR = "65536,262144,1048576"


def run(
    context: typer.Context,
    seeds: Annotated[
        int, typer.Option(min=1, help="Number of heads; their seeds are 0, 1, …")
    ] = 10,
    steps: Annotated[int, typer.Option(min=2, help="Steps of the standard training.")] = 40_000,
    sizes: Annotated[str, typer.Option(help="Items per test set, separated by commas.")] = _SIZES,
    far: Annotated[
        str, typer.Option(help="Further sizes, tested in double precision, for the best recipe.")
    ] = _FAR,
    arms: Annotated[
        str, typer.Option(help="Trainings, separated by commas; 'list' prints their names.")
    ] = "all",
    output: Output = Path("build/max_retrieval"),
    quick: Quick = False,
    resume: Resume = False,
    engine: EngineName = "local",
) -> None:
    """Train heads on sets of at most 16 items, test them on more, and write OUTPUT/table.json.

    A run that was stopped can be resumed with --resume. With --quick, two seeds are trained for 200
    steps and tested on 64 sets; the run ends with its table and its figures.
    """
    if quick:
        seeds, steps, sizes, far = 2, 200, "16,64,256", "1024"
    near, further = numbers("--sizes", sizes), numbers("--far", far)
    settings = Settings(
        seeds=tuple(range(seeds)),
        steps=steps,
        sizes=near,
        sets=tuple(64 if quick else number_of_sets(n) for n in near),
        far=further,
        far_sets=tuple(8 if quick else number_of_sets(n) for n in further),
    )
    known = {arm.name: arm for arm in all_arms(steps)}
    if arms == "list":
        for name in known:
            typer.echo(name)
        return
    chosen = list(known) if arms == "all" else arms.split(",")
    for name in chosen:
        if name not in known:
            raise typer.BadParameter(
                f"expected 'all', 'list', or some of {', '.join(known)}; got {name!r}",
                param_hint="--arms",
            )
    console = Console()
    study = Study(output, settings, current_command(context), resume=resume)
    _run_arms(console, study, {name: known[name] for name in chosen}, engine)
    with console.status("Measuring logits and attention"):
        for name in chosen:
            study.dissect(known[name])
            if name == "standard":
                study.measure_figures(known[name])
    shown = [inference_table(study.table)] if quick and study.table.main_recipe else []
    with console.status("Drawing"):
        drawn = figures(output) if quick else []
    show(console, shown, [study.table_path, *drawn])


def _run_arms(console: Console, study: Study, arms: dict[str, Arm], engine: Engine) -> None:
    """Train and test the arms that the table lacks, behind progress bars."""
    missing = [name for name, arm in arms.items() if study.misses(arm)]
    with Bars(console) as bars:
        shown: dict[str, list[TaskID]] = {}
        tested = dict.fromkeys(missing, 0)

        def on_message(name: str, at: Any) -> None:
            arm, tests = arms[name], _tests(study, arms[name])
            if name not in shown:
                steps = arm.recipe.steps
                shown[name] = [bars.add(f"{name}: train", steps), bars.add(f"{name}: test", tests)]
            if isinstance(at, Progress):
                bars.step(shown[name][0], at.step, f"loss {at.loss:.4f}")
            else:
                bars.step(shown[name][1], tested[name], "{}, {} weights, n = {:,}".format(*at))
                tested[name] += 1

        found = run_cells(
            partial(_measure, study, arms), missing, engine=engine, folder=study.folder,
            on_message=on_message,
        )  # fmt: skip
        for name, records in in_order(missing, found):
            study.add(arms[name].recipes, records)
            for bar in shown.get(name, ()):
                bars.step(bar, bars.tasks[bar].total or 0)


def _tests(study: Study, arm: Arm) -> int:
    """Count the tests of an arm: one per checkpoint, kind of weights, pass and size."""
    sizes, far = len(arm.sizes(study.settings.sizes)), len(study.settings.far)
    return sum(
        (2 + each.blind) * sizes + each.far * (1 + each.blind) * far for each in arm.checkpoints
    )


def _measure(study: Study, arms: dict[str, Arm], name: str, tell: Tell) -> list[Record]:
    """Train and test one arm."""
    return study.measure(arms[name], tell, lambda checkpoint, *at: tell((checkpoint.recipe, *at)))
