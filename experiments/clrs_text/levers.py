"""The command `levers`: what each part of the recipe of `--learnt` changes in a short training."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import typer
from rich.console import Console

from experiments.clrs_text.evaluation import shares_correct
from experiments.clrs_text.recipe import Recipe, learnt_recipe
from experiments.clrs_text.task import WITH_TIES, example
from experiments.clrs_text.training import Progress, Training, load_trained, train
from experiments.common.cells import percent, source
from experiments.common.command import Output, Quick, Resume, current_command, show
from experiments.common.documents import write_pages
from sharpmax._files import (
    check_settings,
    locked,
    machine,
    read_sealed,
    refuse_earlier,
    versions,
    write_sealed,
)
from sharpmax.report._page.tables import Table

__all__ = ["LEVERS", "levers", "levers_table"]

_KIND = "CLRS-Text levers, format 1"
# Kinds of questions: usual ones, and near ties.
_KINDS = ("usual", "ties")
# Questions of the training split that no training has drawn.
_SEED = 1_000_005

LEVERS: Final[Mapping[str, Mapping[str, Any]]] = {
    "the recipe": {},
    "waves with directions of their own": {"apart": True},
    "much noise": {"noise": 1.0},
    "four heads of 64, feed-forward of 128": {"head_width": 64, "hidden": 128},
    "two heads of 64": {"heads": 2},
    "sorts half as often as others": {"repeats": 2},
    "logits start at twice their usual scale": {"gain": 2.0},
    "learning rate 0.002": {"learning_rate": 2e-3},
    "learning rate 0.008": {"learning_rate": 8e-3},
    "largest size grows over 0.4 of the steps": {"curriculum": 0.4},
    "batches of 64": {"batch": 64},
    "three layers": {"layers": 3},
    "no near ties": {"ties": 0.0},
    "products in float32": {"products": "float32"},
    "last weights, not their average": {"averaging": 0.0},
    "lists begin at their first place": {"positions": "places"},
}
"""What is changed in the recipe, by name."""


def levers(
    context: typer.Context,
    steps: Annotated[int, typer.Option(min=1, help="Batches per training.")] = 3000,
    algorithms: Annotated[
        str, typer.Option(help="Names separated by commas.")
    ] = "quicksort,minimum",
    largest: Annotated[int, typer.Option(min=4, help="Largest training size.")] = 16,
    each: Annotated[int, typer.Option(min=1, help="Questions per algorithm and size.")] = 200,
    only: Annotated[
        str,
        typer.Option(help="Numbers of levers, with commas; 0 is the recipe.", show_default="all"),
    ] = "",
    output: Output = Path("build/clrs_text/levers"),
    quick: Quick = False,
    resume: Resume = False,
) -> None:
    """Change one part of the recipe at a time, and measure what a short training learns.

    All questions are of the training split, so that a recipe can be chosen by them. Writes one file
    per part, and levers.md, to OUTPUT. With --resume, a stopped run continues.
    """
    names = algorithms.split(",")
    if unknown := [name for name in names if name not in WITH_TIES]:
        raise typer.BadParameter(f"expected some of {', '.join(WITH_TIES)}, got {unknown[0]!r}")
    recipe = replace(learnt_recipe(dict.fromkeys(names, (4, largest)), quick=quick), steps=steps)
    if quick:
        recipe, each = replace(recipe, steps=2), 2
    console = Console()
    output.mkdir(parents=True, exist_ok=True)
    with locked(output):
        if not resume and any(output.glob("*.json")):
            refuse_earlier(output)
        command = current_command(context)
        chosen = only.split(",") if only else [str(number) for number in range(len(LEVERS))]
        for number, (name, change) in enumerate(LEVERS.items()):
            if str(number) not in chosen:
                continue
            with console.status(name) as status:
                path = output / f"{number:02}.json"
                _keep(path, name, replace(recipe, **change), each, command, status.update)
        table = levers_table(output)
        pages = {"levers.md": f"# Levers of the recipe\n\n{table.to_markdown(100)}"}
        written = write_pages(output, pages)
    show(console, [table], written)


def levers_table(folder: Path) -> Table:
    """Show what each lever changes: one row per lever in a folder."""
    found = [read_sealed(path, _KIND) for path in sorted(folder.glob("*.json"))]
    rows = [
        [
            each["name"],
            f"{each['loss']:.3f}",
            *(percent(each[kind][which]) for kind in _KINDS for which in ("mean", "min")),
            f"{each['milliseconds']:.0f}",
        ]
        for each in found
    ]
    lengths = found[0]["settings"]["recipe"]["lengths"]
    asked = "; ".join(f"{name} {low} to {high}" for name, (low, high) in lengths.items())
    caption = (
        "Plain softmax, one seed, questions of the training split. Loss: of the last tenth of its "
        "own batches. Accuracy in percent at training sizes, usual questions and near ties: "
        "mean over algorithms and sizes, and the lowest of them. Milliseconds of processor time "
        f"per batch are rough. {found[0]['settings']['recipe']['steps']} batches; {asked}. "
        f"{source(found[0]['command'])}"
    )
    header = ["changed", "loss", "usual", "lowest", "ties", "lowest", "ms"]
    return Table(header, rows, caption=caption)


def _keep(
    path: Path, name: str, recipe: Recipe, each: int, command: str, say: Callable[[str], None]
) -> None:
    """Train and measure a recipe, unless its file is there."""
    settings = {"recipe": recipe.to_dict(), "each": each}
    if path.exists():
        check_settings(read_sealed(path, _KIND)["settings"], settings, path)
        return
    content = {
        "command": command,
        "settings": settings,
        "versions": versions(("numpy", "torch", "transformers", "dm-clrs")),
        "machine": machine(),
        "name": name,
    }
    write_sealed(path, _KIND, content | _measured(recipe, each, path, say))


def _measured(recipe: Recipe, each: int, path: Path, say: Callable[[str], None]) -> dict[str, Any]:
    def on_progress(at: Progress) -> None:
        say(f"{path.stem}: {at.step} of {at.steps}, loss {at.loss:.4f}")

    folder, examples = path.parent / "weights" / path.stem, path.parent / "examples"
    trained = load_trained(train(recipe, 0, folder, on_progress=on_progress, examples=examples))
    losses = trained.losses[-max(1, recipe.steps // 10) :]
    found = {
        kind: [
            _share(trained, name, size, each, ties=kind == "ties")
            for name, (low, high) in recipe.lengths.items()
            for size in sorted({low, (low + high) // 2, high})
        ]
        for kind in _KINDS
    }
    return {
        "loss": float(np.mean(losses)),
        **{kind: {"mean": float(np.mean(own)), "min": min(own)} for kind, own in found.items()},
        "milliseconds": _milliseconds(recipe),
    }


def _share(trained: Training, name: str, size: int, each: int, *, ties: bool) -> float:
    """Return the share of correct answers."""
    asked = [example(name, size, seed=_SEED, index=index, ties=ties) for index in range(each)]
    shares = shares_correct(trained.model, trained.encoder, asked)
    return sum(share == 1 for share in shares) / each


def _milliseconds(recipe: Recipe, steps: int = 10) -> float:
    """Measure the processor time of a batch."""
    losses = Training(recipe, 0).run(steps + 1)
    next(losses)
    start = time.process_time()
    for _ in losses:
        pass
    return 1000 * (time.process_time() - start) / steps
