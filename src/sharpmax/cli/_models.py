"""What the commands for models share: loading, progress, errors and the report."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.text import Text

from sharpmax._errors import SharpmaxError
from sharpmax._extras import require
from sharpmax._files import RefusedError
from sharpmax.cli._progress import Bars, quiet, say

if TYPE_CHECKING:
    from sharpmax.models import Evaluation, EvaluationProgress, Stage

_STAGES = {"fit": "fitting", "select": "selecting heads", "test": "testing"}


def require_models(command: str) -> None:
    """Check before the work that what a command for models needs is installed."""
    for module, extra in (("matplotlib", "report"), ("transformers", "models")):
        require(module, extra=extra, what=f"sharpmax {command}")


@contextmanager
def in_one_line() -> Iterator[None]:
    """Report arguments that do not fit as one line."""
    try:
        yield
    except SharpmaxError:
        raise
    except (NotImplementedError, ValueError) as error:
        raise RefusedError(str(error)) from None


@contextmanager
def resumable(console: Console, folder: Path) -> Iterator[None]:
    """Silence the libraries, report errors in one line, and say after Ctrl-C how to resume."""
    try:
        with quiet(bars=False), in_one_line():
            yield
    except KeyboardInterrupt:
        how = "resume with the same command and --resume"
        say(console, f"Interrupted. Finished results are in {folder}; {how}.")
        raise typer.Exit(130) from None


@contextmanager
def watch_fit(console: Console, family: str, what: str) -> Iterator[Callable[[Stage], None]]:
    """Show the progress of fitting a family to the loss on `what`."""
    with Bars(console, transient=True) as bars:
        started: dict[str, Any] = {}

        def on_stage(stage: Stage) -> None:
            if stage.name not in started:
                started[stage.name] = bars.add(f"{family}: {_STAGES[stage.name]}", stage.steps)
            note = ""
            if stage.losses:
                note = f"loss on {what} {stage.losses[0]:.3f}"
                note += f", KL on text {stage.losses[1]:.4f}" if len(stage.losses) > 1 else ""
            bars.step(started[stage.name], stage.step, note)

        yield on_stage


@contextmanager
def watch_evaluation(console: Console) -> Iterator[Callable[[EvaluationProgress], None]]:
    """Show the progress of an evaluation."""
    with Bars(console, transient=True) as bars:
        bar = bars.add("reading the texts", 1)

        def on_progress(at: EvaluationProgress) -> None:
            note = f"{at.cell}, {at.arm}"
            note += "" if at.answered == at.questions else f" {at.answered}/{at.questions}"
            bars.step(bar, at.finished, note, name="evaluating", total=at.total)

        yield on_progress


def load(
    console: Console, model: str, dtype: str | None, *, causal: bool = False
) -> tuple[Any, Any]:
    """Load a model and its tokenizer.

    If `causal`, refuse anything but a causal language model, and note what the model itself does to
    its temperature.
    """
    import torch

    from sharpmax.models import load_model
    from sharpmax.models._inspect import attention_layers, check_causal_lm, own_temperatures
    from sharpmax.models._load import PACKAGED

    here = model in PACKAGED or Path(model).exists()
    with console.status(Text(f"Loading {model}")), quiet(bars=not here):
        loaded, tokenizer = load_model(model)
    if causal:
        check_causal_lm(loaded, attention_layers(loaded))
        for note in own_temperatures(loaded):
            say(console, f"note: {note}")
    return loaded if dtype is None else loaded.to(getattr(torch, dtype)), tokenizer


def is_function(model: str) -> bool:
    """Tell whether a model is named by the function that makes it."""
    return re.fullmatch(r"[\w.]+:[\w.]+", model) is not None and not Path(model).exists()


def load_function(console: Console, name: str, dtype: str | None) -> tuple[Any, Any]:
    """Call the function that makes a model and its inputs."""
    import torch

    module, function = name.split(":")
    # As `python -m` does: a module of the present folder can be imported.
    sys.path.insert(0, str(Path.cwd()))
    try:
        make: Any = attrgetter(function)(importlib.import_module(module))
    except (ImportError, AttributeError) as error:
        raise RefusedError(f"{name}: {error}") from None
    finally:
        sys.path.pop(0)
    with console.status(f"Calling {name}"):
        made = make()
    if not (isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], torch.nn.Module)):
        raise RefusedError(
            f"{name}: expected a function that returns a torch.nn.Module and its inputs, got "
            f"{type(made).__name__}"
        )
    model, inputs = made
    return model if dtype is None else model.to(getattr(torch, dtype)), inputs


def report(console: Console, folder: Path, evaluation: Evaluation) -> None:
    """Print the tables and the verdict, and write the report."""
    from sharpmax.report.calibration.page import write_calibration_report
    from sharpmax.report.calibration.tables import means_table, summary_table
    from sharpmax.report.calibration.text import verdict_sentence

    calibrations, verdict = evaluation.calibrations, evaluation.verdict()
    with console.status("Drawing"):
        written = write_calibration_report(folder, evaluation, calibrations)
    for table in (means_table(evaluation), summary_table(evaluation, calibrations, verdict)):
        if table.rows:
            console.print(table.to_rich())
    for line in (verdict_sentence(verdict), "", *(f"Written: {path}" for path in written)):
        say(console, line)
