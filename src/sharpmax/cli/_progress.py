"""Progress bars of trainings and tests, and quiet where others would speak."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from sharpmax.lab.max_retrieval.arms import Arm, Look
    from sharpmax.lab.max_retrieval.study import Study

__all__ = ["quiet", "run_arm"]


def run_arm(console: Console, study: Study, arm: Arm) -> None:
    """Train and test an arm behind progress bars.

    Args:
        console: Where to draw.
        study: The run that the arm belongs to.
        arm: What to train and test.
    """
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
    sizes, far = len(arm.sizes(study.settings.sizes)), len(study.settings.far)
    tests = sum((2 + look.blind) * sizes + look.far * (1 + look.blind) * far for look in arm.looks)
    with Progress(*columns, console=console) as progress:
        said = 0
        trained = progress.add_task(f"{arm.name}: train", total=arm.recipe.steps, note="")
        tested = progress.add_task(f"{arm.name}: test", total=tests, note="")

        def on_training(at: training.Progress) -> None:
            progress.update(trained, completed=at.step, note=f"loss {at.loss:.4f}")
            # A bar cannot move in a file: there, a line every twentieth of the way.
            nonlocal said
            if not console.is_terminal and at.step * 20 // at.steps > said:
                said = at.step * 20 // at.steps
                console.print(f"{arm.name}: step {at.step:,} of {at.steps:,}, loss {at.loss:.4f}")

        def on_testing(look: Look, weights: str, n: int) -> None:
            progress.update(trained, completed=arm.recipe.steps)
            note = f"{weights} weights, n = {n:,}"
            progress.update(tested, advance=1, note=note)
            if not console.is_terminal:
                console.print(f"{arm.name}: testing {look.recipe}, {note}")

        study.run(arm, on_training, on_testing)
        progress.update(trained, completed=arm.recipe.steps)
        progress.update(tested, completed=tests, note="")


@contextmanager
def quiet(bars: bool) -> Iterator[None]:
    """No remarks of transformers and the hub while a model is loaded or saved.

    Args:
        bars: Whether their progress bars are shown, as for a download.
    """
    from huggingface_hub.utils import logging as hub_logging
    from transformers.utils import logging as library_logging

    logging: Any = library_logging
    before = [(each, each.get_verbosity()) for each in (logging, hub_logging)]
    shown = logging.is_progress_bar_enabled()
    for each, _ in before:
        each.set_verbosity_error()
    if not bars:
        logging.disable_progress_bar()
    try:
        yield
    finally:
        for each, level in before:
            each.set_verbosity(level)
        if shown:
            logging.enable_progress_bar()
