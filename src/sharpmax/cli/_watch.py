"""How far calibrations and evaluations are: bars on a terminal, lines in a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from sharpmax.cli._progress import Bars, quiet

if TYPE_CHECKING:
    from rich.console import Console

    from sharpmax.models import Calibration, Stage
    from sharpmax.models._evaluation.arms import Change
    from sharpmax.models._evaluation.cells import Cell
    from sharpmax.models._evaluation.evaluation import Evaluation

__all__ = ["going_on", "load", "report", "said", "say", "watch_cells", "watch_fit"]

_STAGES = {"fit": "fitting", "select": "choosing heads", "test": "testing"}


@contextmanager
def going_on(console: Console, folder: Path) -> Iterator[None]:
    """After Ctrl-C, say what is left and how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        say(
            console,
            f"Interrupted. What is done is in {folder}; the same command with --resume goes on.",
        )
        raise typer.Exit(130) from None


@contextmanager
def said() -> Iterator[None]:
    """What does not fit together is said in a line."""
    from sharpmax._files import RefusedError

    try:
        yield
    except RefusedError:
        raise
    except (NotImplementedError, ValueError) as error:
        raise RefusedError(str(error)) from None


@contextmanager
def watch_fit(
    console: Console, family: str, what: str = "answers"
) -> Iterator[Callable[[Stage], None]]:
    """Show the progress of a calibration.

    Args:
        console: Where to write.
        family: Name of the family.
        what: Whose loss is fitted.
    """
    with Bars(console, transient=True) as bars:
        started: dict[str, Any] = {}

        def on_stage(stage: Stage) -> None:
            if stage.name not in started:
                started[stage.name] = bars.add(f"{family}: {_STAGES[stage.name]}", stage.steps)
            note = ""
            if stage.losses:
                note = f"loss of {what} {stage.losses[0]:.3f}"
                note += f", drift of text {stage.losses[1]:.4f}" if len(stage.losses) > 1 else ""
            bars.step(started[stage.name], stage.step, note)

        yield on_stage


def watch_cells(
    console: Console,
    evaluation: Evaluation,
    model: Any,
    tokenizer: Any,
    texts: Sequence[str],
    arms: Mapping[str, Change],
    cells: Sequence[Cell],
) -> None:
    """Run an evaluation behind a progress bar.

    Args:
        console: Where to draw.
        evaluation: What is run.
        model: As it takes it.
        tokenizer: As it takes it.
        texts: As it takes them.
        arms: As it takes them.
        cells: As it takes them.
    """
    missing = [(arm, cell) for cell in cells for arm in arms if not evaluation.find(arm, cell)]
    with Bars(console, transient=True) as bars:
        bar = bars.add("evaluating", len(missing))

        def on_progress(arm: str, cell: Cell, done: int, total: int) -> None:
            wording = ", unseen wording" if cell.wording == "unseen" else ""
            what = f"{cell.task} at {cell.length:,}{wording}, {arm}"
            # Some arms are known without being asked, so what is done is looked up.
            finished = sum(evaluation.find(*each) is not None for each in missing)
            note = what if done == total else f"{what} {done}/{total}"
            bars.step(bar, finished + (done == total), note)

        evaluation.run(model, tokenizer, texts, arms, cells, on_progress)
        bars.step(bar, len(missing))


def load(
    console: Console, model: str, dtype: str | None, *, causal: bool = False
) -> tuple[Any, Any]:
    """The model and its tokenizer.

    Args:
        console: Where to say that it is being loaded.
        model: Its name.
        dtype: Name of the type of its numbers; None leaves them.
        causal: Refuse what is no causal language model with attention that can be reached, and say
            what the model does itself to its temperature.
    """
    import torch

    from sharpmax.models import load_model
    from sharpmax.models._inspect import attention_layers, check_causal_lm, own_temperatures
    from sharpmax.models._load import SMOLLM2

    here = model == SMOLLM2 or Path(model).exists()
    with console.status(f"Loading {model}"), quiet(bars=not here):
        loaded, tokenizer = load_model(model)
    if causal:
        check_causal_lm(loaded, attention_layers(loaded))
        for note in own_temperatures(loaded):
            say(console, f"note: {note}")
    return loaded if dtype is None else loaded.to(getattr(torch, dtype)), tokenizer


def report(
    console: Console, folder: Path, evaluation: Evaluation, calibrations: Mapping[str, Calibration]
) -> None:
    """Print the verdict and the tables, and write the report."""
    from sharpmax.models._evaluation.verdict import judge
    from sharpmax.report.calibration.page import write_calibration_report
    from sharpmax.report.calibration.tables import means_table, summary_table
    from sharpmax.report.calibration.text import verdict_sentence

    with console.status("Drawing"):
        written = write_calibration_report(folder, evaluation, calibrations)
    verdict = judge(evaluation, calibrations)
    for table in (
        means_table(evaluation),
        summary_table(evaluation, calibrations, verdict),
    ):
        if table.rows:
            console.print(table.to_rich())
    say(console, verdict_sentence(verdict))
    say(console, "")
    for path in written:
        say(console, f"Written: {path}")


def say(console: Console, line: str) -> None:
    """Print a line as it is."""
    console.print(line, soft_wrap=True, highlight=False, markup=False)
