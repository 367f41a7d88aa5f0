"""`sharpmax evaluate`: measure accuracy on long prompts, with and without calibrations."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from typer import Option

from sharpmax._files import locked
from sharpmax._settings import TASKS, WORDINGS, is_control
from sharpmax._settings import EvaluationSettings as Defaults
from sharpmax.cli import _inputs as inputs
from sharpmax.cli._command import command_line
from sharpmax.cli._models import load, report, require_models, resumable, watch_evaluation
from sharpmax.cli._ranks import first

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from sharpmax.models import Calibration


def evaluate(
    context: typer.Context,
    model: inputs.Model,
    calibration: Annotated[
        list[str] | None,
        Option(
            help="File of a calibration, or NAME=FILE. Repeat it for several.", show_default="none"
        ),
    ] = None,
    tasks: Annotated[
        str, Option(help="Some of passkey, key-value, maximum and text, with commas.")
    ] = inputs.joined(TASKS),
    lengths: inputs.Lengths = None,
    wordings: Annotated[
        str, Option(help="Wordings of passkey and key-value: usual, unseen in fits, or both.")
    ] = inputs.joined(WORDINGS),
    text: Annotated[
        list[Path] | None,
        Option(
            help="Text file to hide the questions in. It should not be one that a calibration was "
            "fitted on. Repeat it for several.",
            show_default="the source code of sharpmax",
        ),
    ] = None,
    controls: Annotated[
        bool | None,
        Option(
            "--controls/--no-controls",
            help="Also evaluate the paper's rule in all heads, the same beta in all heads, and "
            "the best calibration with its heads shuffled.",
            show_default="with a calibration",
        ),
    ] = None,
    questions: inputs.Questions = Defaults.questions,
    contexts: inputs.Contexts = Defaults.contexts,
    windows: inputs.Windows = Defaults.windows,
    seed: inputs.Seed = Defaults.seed,
    dtype: inputs.Dtype = None,
    output: Annotated[Path, Option(help="Folder for the results.")] = Path("build/evaluation"),
    resume: inputs.Resume = False,
    engine: inputs.EngineName = "local",
) -> None:
    """Measure the accuracy of MODEL on long prompts, with and without calibrations.

    All of them answer the same questions. To find out whether sharpening is what helps, give a
    calibration of temperatures and one of gains; `sharpmax calibrate` makes both.

    Writes evaluation.json, report.html, table.md and figures to OUTPUT. An interrupted run can be
    resumed with --resume.
    """
    require_models("evaluate")
    chosen_lengths = None if lengths is None else inputs.numbers("--lengths", lengths)
    chosen_tasks = inputs.names("--tasks", tasks, TASKS)
    chosen_wordings = inputs.names("--wordings", wordings, WORDINGS)
    texts = inputs.read_texts("--text", text)

    # Imported when the command runs, so that --help is fast.
    from sharpmax.models import evaluate as evaluate_model

    console = Console()
    # Before the work, so that a folder that cannot be written to is found at once.
    if first():
        output.mkdir(parents=True, exist_ok=True)
        context.with_resource(locked(output))
    loaded, tokenizer = load(console, model, dtype, causal=True)
    calibrations = _calibrations(calibration or [], loaded)
    with resumable(console, output), watch_evaluation(console) as on_progress:
        evaluation = evaluate_model(
            loaded, tokenizer, texts or None, changes=calibrations, controls=controls,
            tasks=chosen_tasks, lengths=chosen_lengths, wordings=chosen_wordings,
            questions=questions, contexts=contexts, windows=windows, seed=seed,
            path=output / "evaluation.json", resume=resume, command=command_line(context),
            engine=engine, on_progress=on_progress,
        )  # fmt: skip
    if first():
        report(console, output, evaluation)


def _calibrations(given: list[str], model: PreTrainedModel) -> dict[str, Calibration]:
    """Load calibrations by name, and check them against the model."""
    from sharpmax.models import Calibration

    found: dict[str, Calibration] = {}
    for each in given:
        name, _, file = each.partition("=")
        # The name of a file may contain the sign.
        path = Path(each if Path(each).exists() else file or each)
        name = path.stem if path == Path(each) else name
        if name in found or is_control(name):
            expected = f"a name that no other arm has, got {name!r}; give NAME={path}"
            inputs.refuse("--calibration", f"expected {expected}")
        found[name] = Calibration.load(path, model)
    return found
