"""`sharpmax evaluate`: measure accuracy on long prompts, with and without calibrations."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sharpmax._extras import require
from sharpmax._settings import TASKS, WORDINGS, is_control
from sharpmax._settings import EvaluationSettings as Defaults
from sharpmax.cli._command import command_line
from sharpmax.cli._inputs import (
    Contexts,
    Dtype,
    Model,
    Questions,
    Resume,
    Seed,
    Windows,
    joined,
    names,
    numbers,
    read_texts,
)
from sharpmax.cli._models import in_one_line, load, report, resumable, watch_evaluation
from sharpmax.cli._progress import quiet

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
        str, typer.Option(help="Some of passkey, key-value, maximum and text, with commas.")
    ] = joined(TASKS),
    lengths: Annotated[
        str | None,
        typer.Option(
            help="Tokens per prompt and window, with commas.",
            show_default="1024,2048,4096, as far as the model allows",
        ),
    ] = None,
    wordings: Annotated[
        str,
        typer.Option(
            help="Wordings of passkey and key-value: usual, unseen by any fit, or both with a "
            "comma."
        ),
    ] = joined(WORDINGS),
    text: Annotated[
        list[Path] | None,
        typer.Option(
            help="Text file to hide the questions in. It should not be one that a calibration was "
            "fitted on. Repeat it for several.",
            show_default="the source code of sharpmax",
        ),
    ] = None,
    controls: Annotated[
        bool | None,
        typer.Option(
            "--controls/--no-controls",
            help="Also evaluate the paper's rule in all heads, the same beta in all heads, and "
            "the best calibration with its heads shuffled.",
            show_default="with a calibration",
        ),
    ] = None,
    questions: Questions = Defaults.questions,
    contexts: Contexts = Defaults.contexts,
    windows: Windows = Defaults.windows,
    seed: Seed = Defaults.seed,
    dtype: Dtype = None,
    output: Annotated[Path, typer.Option(help="Folder for the results and the report.")] = Path(
        "build/evaluation"
    ),
    resume: Resume = False,
) -> None:
    """Measure the accuracy of MODEL on long prompts, with and without calibrations.

    All of them answer the same questions. To find out whether sharpening is what helps, give a
    calibration of temperatures and one of gains; `sharpmax calibrate` makes both.

    Writes evaluation.json, report.html, table.md and figures to OUTPUT. An interrupted run can be
    resumed with --resume.
    """
    require("matplotlib", extra="report", what="sharpmax evaluate")
    require("transformers", extra="models", what="sharpmax evaluate")
    chosen_lengths = None if lengths is None else numbers("--lengths", lengths)
    chosen_tasks = names("--tasks", tasks, TASKS)
    chosen_wordings = names("--wordings", wordings, WORDINGS)
    texts = read_texts("--text", text)

    # Imported when the command runs, so that --help is fast.
    from rich.console import Console

    from sharpmax.models import evaluate as evaluate_model

    console = Console()
    # Before the work, so that a folder that cannot be written to is found at once.
    output.mkdir(parents=True, exist_ok=True)
    loaded, tokenizer = load(console, model, dtype, causal=True)
    calibrations = _calibrations(calibration or [], loaded)
    with (
        quiet(bars=False),
        in_one_line(),
        resumable(console, output),
        watch_evaluation(console) as on_progress,
    ):
        evaluation = evaluate_model(
            loaded,
            tokenizer,
            texts or None,
            changes=calibrations,
            controls=controls,
            tasks=chosen_tasks,
            lengths=chosen_lengths,
            wordings=chosen_wordings,
            questions=questions,
            contexts=contexts,
            windows=windows,
            seed=seed,
            path=output / "evaluation.json",
            resume=resume,
            command=command_line(context),
            on_progress=on_progress,
        )
    report(console, output, evaluation)


def _calibrations(given: list[str], model: PreTrainedModel) -> dict[str, Calibration]:
    """Load calibrations by name, and check them against the model."""
    from sharpmax.models import Calibration

    found: dict[str, Calibration] = {}
    for each in given:
        name, sign, file = each.partition("=")
        # The name of a file may contain the sign.
        path = Path(file if sign and not Path(each).exists() else each)
        name = name if sign and path == Path(file) else path.stem
        if name in found or is_control(name):
            raise typer.BadParameter(
                f"expected a name that no other arm has, got {name!r}; give NAME={path}",
                param_hint="--calibration",
            )
        found[name] = Calibration.load(path, model)
    return found
