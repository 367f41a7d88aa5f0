"""`sharpmax calibrate`: fit a number or two a head, keep what holds, and compare with controls."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

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
from sharpmax.cli._watch import going_on, load, report, said, say, watch_cells, watch_fit

__all__ = ["calibrate"]


def calibrate(
    context: typer.Context,
    model: Model,
    text: Annotated[
        list[Path] | None,
        typer.Option(
            help="File with ordinary text to fit on and choose by. Repeat it for several.",
            show_default="the source code of sharpmax",
        ),
    ] = None,
    test_text: Annotated[
        list[Path] | None,
        typer.Option(
            help="File with text for the test alone. Repeat it for several.",
            show_default="the last quarter of each --text",
        ),
    ] = None,
    tasks: Annotated[
        str,
        typer.Option(
            help="What is fitted: some of passkey, key-value, maximum, with commas; or text, the "
            "loss of the next token in windows as long as the longest of --lengths."
        ),
    ] = "passkey,key-value",
    objective: Annotated[
        str,
        typer.Option(
            help="What heads are chosen by: answers, the nats that right answers take, or exact, "
            "the share of wrong ones; fits follow the nats."
        ),
    ] = "answers",
    lengths: Annotated[
        str, typer.Option(help="Tokens of the prompts that are fitted, with commas.")
    ] = "512,1024",
    families: Annotated[
        str,
        typer.Option(
            help="What may change in a head: some of constant, entropy, gain, constant+gain, "
            "entropy+gain, with commas. Gain alone is always fitted, as a control."
        ),
    ] = "constant,gain,constant+gain",
    flatten: Annotated[
        bool, typer.Option("--flatten", help="Let heads become less sharp, too.")
    ] = False,
    tolerance: Annotated[
        float,
        typer.Option(
            min=0.0, help="Nats by which the loss on ordinary text may rise, two errors included."
        ),
    ] = 0.02,
    steps: Annotated[int, typer.Option(min=1, help="Steps of each fit.")] = 60,
    batch: Annotated[int, typer.Option(min=1, help="Contexts of questions in a step.")] = 4,
    text_batch: Annotated[int, typer.Option(min=1, help="Windows of text in a step.")] = 2,
    text_weight: Annotated[
        float, typer.Option(min=0.0, help="Weight of text in the fit and in the choice of heads.")
    ] = 30.0,
    learning_rate: Annotated[float, typer.Option(min=1e-9, help="Of Adam.")] = 0.03,
    shrink: Annotated[
        float, typer.Option(min=0.0, help="Weight of the sum of absolute values of all numbers.")
    ] = 1e-4,
    contexts: Annotated[
        str,
        typer.Option(
            help="Contexts of each task and length to fit on, to choose by and to test on."
        ),
    ] = "32,24,16",
    windows: Annotated[
        str, typer.Option(help="Windows of text to fit on, to choose by and to test on.")
    ] = "32,24,16",
    evaluate_tasks: Annotated[
        str,
        typer.Option(
            help="What all arms are compared on, with commas. Without any of --tasks, nothing is "
            "said about what the fit did."
        ),
    ] = "passkey,key-value,maximum,text",
    evaluate_lengths: Annotated[
        str, typer.Option(help="Tokens of the prompts and windows of the comparison.")
    ] = "1024,2048,4096",
    questions: Questions = 100,
    evaluate_contexts: Stretches = 25,
    evaluate_windows: Windows = 16,
    seed: QuestionSeed = 0,
    dtype: Dtype = None,
    output: Annotated[
        Path, typer.Option(help="Folder for the calibrations, the results and the report.")
    ] = Path("build/calibration"),
    resume: Resume = False,
) -> None:
    """Fit a number or two to each head of MODEL, keep what holds, and say whether it sharpened.

    Every family is fitted on the same data with the weights frozen; heads whose change does not
    hold on other data are set back, and nothing is kept that raises the loss on ordinary text by
    more than the tolerance. An empty calibration is a good answer. The families are then compared
    on a third text, at longer lengths and in other wordings, with the model as it is and with
    controls that touch no temperature or the wrong heads.

    Writes OUTPUT/calibration.json, for `sharpmax.sharpen`, with one for each family beside it, and
    evaluation.json, report.html, table.md and pictures. A run that was stopped goes on with
    --resume.
    """
    require("matplotlib", extra="report", what="sharpmax calibrate")
    require("transformers", extra="models", what="sharpmax calibrate")
    chosen_lengths = numbers("--lengths", lengths)
    further = numbers("--evaluate-lengths", evaluate_lengths)
    of_contexts: Any = numbers("--contexts", contexts, count=3)
    of_windows: Any = numbers("--windows", windows, count=3)
    texts = read_texts("--text", text or [])
    test_texts = read_texts("--test-text", test_text or [])

    # Imported when the command runs, so that --help answers at once.
    from rich.console import Console

    from sharpmax.models import Splits
    from sharpmax.models._calibration.parameters import FAMILIES
    from sharpmax.models._evaluation import evaluation as measuring
    from sharpmax.models._evaluation.cells import TASKS, cells_of
    from sharpmax.models._evaluation.study import Settings, Study, check_parts, split_texts

    fitted = names("--tasks", tasks, TASKS)
    of_text = "text" in fitted
    if of_text and len(fitted) > 1:
        raise typer.BadParameter(
            f"expected text alone, or tasks without it, which it guards anyway; got {tasks!r}",
            param_hint="--tasks",
        )
    if objective not in ("answers", "exact") or (of_text and objective == "exact"):
        expected = "answers: text has no right ones" if of_text else "answers or exact"
        raise typer.BadParameter(
            f"expected {expected}, got {objective!r}", param_hint="--objective"
        )
    chosen_lengths = (max(chosen_lengths),) if of_text else chosen_lengths
    compared = names("--evaluate-tasks", evaluate_tasks, TASKS)
    wanted = names("--families", families, FAMILIES)
    # What touches no temperature has to be there to compare with, whether it is wanted or not.
    controls = tuple(family for family in ("gain",) if family not in wanted)
    texts = texts or own_text()
    console = Console()
    if not set(fitted) & set(compared):
        say(
            console,
            f"note: none of the fitted tasks, {', '.join(fitted)}, is compared, so nothing will be "
            "said about what the fit did",
        )
    # Before the work, so that a folder that cannot be written is not found out after it.
    output.mkdir(parents=True, exist_ok=True)
    loaded, tokenizer = load(console, model, dtype, causal=True)
    name = name_of(model, loaded)
    settings = Settings(
        model=name,
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
        seed=seed,
        dtype=dtype_of(loaded),
    )
    study = Study(output, settings, command_line(context), resume=resume)
    cells = cells_of(compared, further)
    parts = split_texts(list(texts.values()), list(test_texts.values()))
    of_test = list(test_texts or texts)
    with quiet(bars=False), said(), going_on(console, output):
        with console.status("Reading the texts"):
            check_parts(
                tokenizer, parts, Splits(list(texts), list(texts), of_test), chosen_lengths, further
            )
            asked = [*cells_of(fitted, chosen_lengths), *cells]
            measuring.check_cells(loaded, tokenizer, parts.test, asked)
        measured = measuring.Settings(
            model=name,
            texts={file: len(part) for file, part in zip(of_test, parts.test, strict=True)},
            questions=questions,
            contexts=evaluate_contexts,
            windows=evaluate_windows,
            seed=seed,
            dtype=dtype_of(loaded),
        )
        evaluation = study.evaluation(measured)
        for family in (*wanted, *controls):
            with watch_fit(console, family, "text" if of_text else "answers") as on_progress:
                found = study.fit(family, loaded, tokenizer, parts, on_progress)
            say(console, found.summary())
        study.choose(wanted)
        arms = study.arms(wanted, controls)
        watch_cells(console, evaluation, loaded, tokenizer, parts.test, arms, cells)
    # Also those of earlier runs, which were compared then.
    compared_with = {f: c for f, c in study.calibrations.items() if f in evaluation.arms}
    report(console, output, evaluation, compared_with)
    say(console, f"Calibration: {output / 'calibration.json'}")
