"""`sharpmax evaluate`: plain against calibrated against controls, at growing lengths."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sharpmax._extras import require
from sharpmax.cli._command import command_line
from sharpmax.cli._inputs import (
    Dtype,
    Model,
    Questions,
    QuestionSeed,
    Resume,
    Stretches,
    Windows,
    dtype_of,
    name_of,
    names,
    numbers,
    own_text,
    read_texts,
)
from sharpmax.cli._progress import quiet
from sharpmax.cli._watch import going_on, load, report, said, watch_cells

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from sharpmax.models import Calibration

__all__ = ["evaluate"]


def evaluate(
    context: typer.Context,
    model: Model,
    calibration: Annotated[
        list[str] | None,
        typer.Option(
            help="File of a calibration, or NAME=FILE. Repeat it for several.",
            show_default="none",
        ),
    ] = None,
    tasks: Annotated[
        str, typer.Option(help="Some of passkey, key-value, maximum, text, with commas.")
    ] = "passkey,key-value,maximum,text",
    lengths: Annotated[
        str, typer.Option(help="Tokens of the prompts and windows, with commas.")
    ] = "1024,2048,4096",
    wordings: Annotated[
        str,
        typer.Option(help="Of passkey and key-value: usual, unseen by any fit, or both."),
    ] = "usual,unseen",
    text: Annotated[
        list[Path] | None,
        typer.Option(
            help="File with text to hide questions in, which nothing was fitted on. Repeat it for "
            "several.",
            show_default="the source code of sharpmax",
        ),
    ] = None,
    controls: Annotated[
        bool,
        typer.Option(
            help="Compare with the paper's rule in all heads, uniform beta and shuffled heads, too."
        ),
    ] = True,
    questions: Questions = 100,
    contexts: Stretches = 25,
    windows: Windows = 16,
    seed: QuestionSeed = 0,
    dtype: Dtype = None,
    output: Annotated[Path, typer.Option(help="Folder for the results and the report.")] = Path(
        "build/evaluation"
    ),
    resume: Resume = False,
) -> None:
    """Ask MODEL questions at growing lengths: as it is, calibrated, and with the controls.

    All arms are asked the same questions. To learn whether sharpening did it, give a calibration
    of temperatures alone and one of gains alone; `sharpmax calibrate` makes both.

    Writes OUTPUT/evaluation.json, report.html, table.md and pictures. A run that was stopped goes
    on with --resume.
    """
    require("matplotlib", extra="report", what="sharpmax evaluate")
    require("transformers", extra="models", what="sharpmax evaluate")
    chosen_lengths = numbers("--lengths", lengths)
    texts = read_texts("--text", text or [])

    # Imported when the command runs, so that --help answers at once.
    from rich.console import Console

    from sharpmax.models._evaluation.cells import TASKS, WORDINGS, cells_of, check_texts
    from sharpmax.models._evaluation.evaluation import Evaluation, Settings, check_cells
    from sharpmax.models._evaluation.study import arms_of

    chosen_tasks = names("--tasks", tasks, TASKS)
    chosen_wordings = names("--wordings", wordings, WORDINGS)
    texts = texts or own_text()
    console = Console()
    # Before the work, so that a folder that cannot be written is not found out after it.
    output.mkdir(parents=True, exist_ok=True)
    loaded, tokenizer = load(console, model, dtype, causal=True)
    calibrations = _calibrations(calibration or [], loaded)
    settings = Settings(
        model=name_of(model, loaded),
        texts={file: len(content) for file, content in texts.items()},
        questions=questions,
        contexts=contexts,
        windows=windows,
        seed=seed,
        dtype=dtype_of(loaded),
    )
    path = output / "evaluation.json"
    evaluation = Evaluation.open(path, settings, command_line(context), resume=resume)
    cells = cells_of(chosen_tasks, chosen_lengths, chosen_wordings)
    arms = arms_of(calibrations, controls=controls)
    with quiet(bars=False), said(), going_on(console, output):
        with console.status("Reading the texts"):
            check_texts(tokenizer, texts, max(chosen_lengths))
            check_cells(loaded, tokenizer, list(texts.values()), cells)
        watch_cells(console, evaluation, loaded, tokenizer, list(texts.values()), arms, cells)
    report(console, output, evaluation, calibrations)


def _calibrations(given: list[str], model: PreTrainedModel) -> dict[str, Calibration]:
    """Calibrations by name, each checked against the model."""
    from sharpmax.models import Calibration
    from sharpmax.report.calibration.arms import is_control

    found: dict[str, Calibration] = {}
    for each in given:
        name, sign, file = each.partition("=")
        # A file may have the sign in its name.
        path = Path(file if sign and not Path(each).exists() else each)
        name = name if sign and path == Path(file) else path.stem
        if name in found or is_control(name):
            raise typer.BadParameter(
                f"expected names that no other arm has, got {name!r}; give NAME={path}",
                param_hint="--calibration",
            )
        found[name] = Calibration.load(path, model)
    return found
