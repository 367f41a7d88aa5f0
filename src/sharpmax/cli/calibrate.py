"""`sharpmax calibrate`: fit one or two numbers per head, keep what helps, and compare."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from sharpmax._extras import require
from sharpmax._settings import TASKS, CalibrationSettings, EvaluationSettings, only_text
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
from sharpmax.cli._models import (
    in_one_line,
    load,
    report,
    resumable,
    say,
    watch_evaluation,
    watch_fit,
)
from sharpmax.cli._progress import quiet

__all__ = ["calibrate"]


def calibrate(
    context: typer.Context,
    model: Model,
    text: Annotated[
        list[Path] | None,
        typer.Option(
            help="File of ordinary text to fit on and to select heads by. Repeat it for several.",
            show_default="the source code of sharpmax",
        ),
    ] = None,
    test_text: Annotated[
        list[Path] | None,
        typer.Option(
            help="File of text for the test alone. Repeat it for several.",
            show_default="the last quarter of each --text",
        ),
    ] = None,
    tasks: Annotated[
        str,
        typer.Option(
            help="What to fit: some of passkey, key-value and maximum, with commas; or text, the "
            "loss per token in windows as long as the longest of --lengths."
        ),
    ] = joined(CalibrationSettings.tasks),
    objective: Annotated[
        str,
        typer.Option(
            help="What selects heads: answers, the negative log-likelihood of correct answers, or "
            "exact, the share of wrong answers. Fits always use the first."
        ),
    ] = CalibrationSettings.objective,
    lengths: Annotated[
        str, typer.Option(help="Tokens per prompt in the fit, with commas.")
    ] = joined(CalibrationSettings.lengths),
    families: Annotated[
        str,
        typer.Option(
            help="What may change in a head: some of constant, entropy, gain, constant+gain and "
            "entropy+gain, with commas. Gain is always fitted as a control."
        ),
    ] = "constant,gain,constant+gain",
    flatten: Annotated[
        bool, typer.Option("--flatten", help="Allow heads to become less sharp.")
    ] = CalibrationSettings.flatten,
    tolerance: Annotated[
        float,
        typer.Option(
            min=0.0,
            help="Nats per token by which the loss on ordinary text may rise, including two "
            "standard errors.",
        ),
    ] = CalibrationSettings.tolerance,
    steps: Annotated[
        int, typer.Option(min=1, help="Optimisation steps per fit.")
    ] = CalibrationSettings.steps,
    batch: Annotated[
        int, typer.Option(min=1, help="Contexts of questions per step.")
    ] = CalibrationSettings.batch,
    text_batch: Annotated[
        int, typer.Option(min=1, help="Windows of ordinary text per step.")
    ] = CalibrationSettings.text_batch,
    text_weight: Annotated[
        float,
        typer.Option(
            min=0.0, help="Weight of ordinary text in the fit and in the selection of heads."
        ),
    ] = CalibrationSettings.text_weight,
    learning_rate: Annotated[
        float, typer.Option(min=1e-9, help="Learning rate of Adam.")
    ] = CalibrationSettings.learning_rate,
    shrink: Annotated[
        float, typer.Option(min=0.0, help="Weight of the L1 penalty on the fitted numbers.")
    ] = CalibrationSettings.shrink,
    contexts: Annotated[
        str,
        typer.Option(help="Contexts per task and length for fitting, selecting and testing."),
    ] = joined(CalibrationSettings.contexts),
    windows: Annotated[
        str,
        typer.Option(help="Windows of ordinary text for fitting, selecting and testing."),
    ] = joined(CalibrationSettings.windows),
    evaluate_tasks: Annotated[
        str,
        typer.Option(
            help="Tasks of the evaluation, with commas. Without any of --tasks there is no verdict."
        ),
    ] = joined(TASKS),
    evaluate_lengths: Annotated[
        str | None,
        typer.Option(
            help="Tokens per prompt and window in the evaluation, with commas.",
            show_default="1024,2048,4096, as far as the model allows",
        ),
    ] = None,
    questions: Questions = EvaluationSettings.questions,
    evaluate_contexts: Contexts = EvaluationSettings.contexts,
    evaluate_windows: Windows = EvaluationSettings.windows,
    seed: Seed = CalibrationSettings.seed,
    dtype: Dtype = None,
    output: Annotated[
        Path, typer.Option(help="Folder for the calibrations, the results and the report.")
    ] = Path("build/calibration"),
    resume: Resume = False,
) -> None:
    """Fit one or two numbers per head of MODEL, keep what helps, and test why it helps.

    Every family is fitted on the same data with frozen weights. Heads whose change does not help on
    a second split are reset, and nothing is kept that raises the loss on ordinary text by more than
    the tolerance. An empty calibration is a valid result. The families are then evaluated on a
    third split, at longer lengths and in unseen wordings, against the plain model and controls.

    Writes calibration.json, for `sharpmax.sharpen`, to OUTPUT, one calibration per family to
    families/, and evaluation.json, report.html, table.md and figures. An interrupted run can be
    resumed with --resume.
    """
    require("matplotlib", extra="report", what="sharpmax calibrate")
    require("transformers", extra="models", what="sharpmax calibrate")
    fitted = names("--tasks", tasks, TASKS)
    of_text = only_text(fitted)
    if "text" in fitted and not of_text:
        raise typer.BadParameter(
            f"expected text alone, or tasks without text, which is always a guard; got {tasks!r}",
            param_hint="--tasks",
        )
    if objective not in ("answers", "exact") or (of_text and objective == "exact"):
        expected = "answers, because text has no answers" if of_text else "answers or exact"
        raise typer.BadParameter(
            f"expected {expected}; got {objective!r}", param_hint="--objective"
        )
    chosen_lengths = numbers("--lengths", lengths)
    chosen_lengths = (max(chosen_lengths),) if of_text else chosen_lengths
    asked_lengths = evaluate_lengths and numbers("--evaluate-lengths", evaluate_lengths)
    of_contexts: Any = numbers("--contexts", contexts, count=3)
    of_windows: Any = numbers("--windows", windows, count=3)
    compared = names("--evaluate-tasks", evaluate_tasks, TASKS)
    texts = read_texts("--text", text)
    test_texts = read_texts("--test-text", test_text)

    # Imported when the command runs, so that --help is fast.
    from rich.console import Console

    from sharpmax.models import Splits
    from sharpmax.models._calibration.parameters import FAMILIES
    from sharpmax.models._evaluation import evaluate as evaluating
    from sharpmax.models._evaluation.cells import cells_of, check_cells, default_lengths
    from sharpmax.models._evaluation.splits import check_splits, split_texts
    from sharpmax.models._evaluation.study import Study

    wanted = names("--families", families, FAMILIES)
    # A family that changes no temperature is needed for comparison in any case.
    controls = tuple(family for family in ("gain",) if family not in wanted)
    texts = evaluating.named_texts(texts or None)
    console = Console()
    if not set(fitted) & set(compared):
        say(
            console,
            f"note: the evaluation has none of the fitted tasks ({', '.join(fitted)}), so there "
            "will be no verdict",
        )
    # Before the work, so that a folder that cannot be written to is found at once.
    output.mkdir(parents=True, exist_ok=True)
    loaded, tokenizer = load(console, model, dtype, causal=True)
    further = asked_lengths or default_lengths(loaded)
    facts: dict[str, Any] = {
        "model": evaluating.model_name(loaded),
        "seed": seed,
        "dtype": str(loaded.dtype).removeprefix("torch."),
    }
    settings = CalibrationSettings(
        **facts,
        texts={file: len(content) for file, content in texts.items()},
        test_texts={file: len(content) for file, content in test_texts.items()},
        tasks=fitted,
        objective=objective,  # type: ignore[arg-type]
        lengths=chosen_lengths,
        contexts=of_contexts,
        windows=of_windows,
        tolerance=tolerance,
        flatten=flatten,
        steps=steps,
        batch=batch,
        text_batch=text_batch,
        text_weight=text_weight,
        learning_rate=learning_rate,
        shrink=shrink,
    )
    command = command_line(context)
    study = Study(output, settings, command, resume=resume)
    cells = cells_of(compared, further)
    splits = split_texts(list(texts.values()), list(test_texts.values()))
    of_test = list(test_texts or texts)
    with quiet(bars=False), in_one_line(), resumable(console, output):
        with console.status("Reading the texts"):
            file_names = Splits(list(texts), list(texts), of_test)
            check_splits(tokenizer, splits, file_names, chosen_lengths, further)
            asked = [*cells_of(fitted, chosen_lengths), *cells]
            check_cells(loaded, tokenizer, splits.test, asked)
        measured = EvaluationSettings(
            **facts,
            texts={file: len(part) for file, part in zip(of_test, splits.test, strict=True)},
            questions=questions,
            contexts=evaluate_contexts,
            windows=evaluate_windows,
        )
        path = study.evaluation_path
        evaluation = evaluating.open_evaluation(path, measured, command, resume=True)
        for family in (*wanted, *controls):
            with watch_fit(console, family, "text" if of_text else "answers") as on_stage:
                found = study.fit(family, loaded, tokenizer, splits, on_stage)
            say(console, found.summary())
        study.choose(wanted)
        arms = study.arms(wanted, controls)
        with watch_evaluation(console) as on_progress:
            evaluating.run(
                evaluation, loaded, tokenizer, splits.test, arms, cells,
                path=path, on_progress=on_progress,
            )  # fmt: skip
    report(console, output, evaluation)
    say(console, f"Calibration: {output / 'calibration.json'}")
