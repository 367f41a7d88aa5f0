"""`sharpmax calibrate`: fit one or two numbers per head, keep what helps, and compare."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from typer import Option

from sharpmax._files import locked
from sharpmax._settings import TASKS, EvaluationSettings, only_text
from sharpmax._settings import CalibrationSettings as Defaults
from sharpmax.cli import _inputs as inputs
from sharpmax.cli import _models as shared
from sharpmax.cli._command import command_line
from sharpmax.cli._progress import say
from sharpmax.cli._ranks import first


def calibrate(
    context: typer.Context,
    model: inputs.Model,
    text: Annotated[
        list[Path] | None,
        Option(
            help="File of ordinary text to fit on and to select heads by. Repeat it for several.",
            show_default="the source code of sharpmax",
        ),
    ] = None,
    test_text: Annotated[
        list[Path] | None,
        Option(
            help="File of text for the test alone. Repeat it for several.",
            show_default="the last quarter of each --text",
        ),
    ] = None,
    tasks: Annotated[
        str,
        Option(
            help="What to fit: some of passkey, key-value and maximum, with commas; or text, the "
            "loss per token in windows as long as the longest of --lengths."
        ),
    ] = inputs.joined(Defaults.tasks),
    objective: Annotated[
        Literal["answers", "exact"],
        Option(
            help="What selects heads: answers, the negative log-likelihood of correct answers, or "
            "exact, the share of wrong answers. Fits always use the first."
        ),
    ] = Defaults.objective,
    lengths: Annotated[
        str, Option(help="Tokens per prompt in the fit, with commas.")
    ] = inputs.joined(Defaults.lengths),
    families: Annotated[
        str,
        Option(
            help="What may change in a head: some of constant, entropy, gain, constant+gain and "
            "entropy+gain, with commas. Gain is always fitted as a control."
        ),
    ] = "constant,gain,constant+gain",
    flatten: Annotated[
        bool, Option("--flatten", help="Allow heads to become less sharp.")
    ] = Defaults.flatten,
    tolerance: Annotated[
        float,
        Option(
            min=0.0,
            help="Nats per token by which the loss on ordinary text may rise, including two "
            "standard errors.",
        ),
    ] = Defaults.tolerance,
    steps: Annotated[int, Option(min=1, help="Optimisation steps per fit.")] = Defaults.steps,
    batch: Annotated[int, Option(min=1, help="Contexts of questions per step.")] = Defaults.batch,
    text_batch: Annotated[
        int, Option(min=1, help="Windows of ordinary text per step.")
    ] = Defaults.text_batch,
    text_weight: Annotated[
        float,
        Option(min=0.0, help="Weight of ordinary text in the fit and in the selection of heads."),
    ] = Defaults.text_weight,
    learning_rate: Annotated[
        float, Option(min=1e-9, help="Learning rate of Adam.")
    ] = Defaults.learning_rate,
    shrink: Annotated[
        float, Option(min=0.0, help="Weight of the L1 penalty on the fitted numbers.")
    ] = Defaults.shrink,
    contexts: Annotated[
        str, Option(help="Contexts per task and length for fitting, selecting and testing.")
    ] = inputs.joined(Defaults.contexts),
    windows: Annotated[
        str, Option(help="Windows of ordinary text for fitting, selecting and testing.")
    ] = inputs.joined(Defaults.windows),
    evaluate_tasks: Annotated[
        str, Option(help="Tasks of the evaluation, with commas; a verdict needs one of --tasks.")
    ] = inputs.joined(TASKS),
    evaluate_lengths: inputs.Lengths = None,
    questions: inputs.Questions = EvaluationSettings.questions,
    evaluate_contexts: inputs.Contexts = EvaluationSettings.contexts,
    evaluate_windows: inputs.Windows = EvaluationSettings.windows,
    seed: inputs.Seed = Defaults.seed,
    dtype: inputs.Dtype = None,
    fit_dtype: Annotated[
        Literal["float32", "bfloat16", "float16"] | None,
        Option(
            help="Data type while numbers are fitted and heads selected; bfloat16 halves the time "
            "on processors with bfloat16 products.",
            show_default="that of the model",
        ),
    ] = None,
    check_every: Annotated[
        int,
        Option(
            min=0,
            help="Steps between checks that end a fit when a part of the second split says that it"
            " has nearly converged; 0 for none.",
        ),
    ] = Defaults.check_every,
    output: Annotated[Path, Option(help="Folder for the results.")] = Path("build/calibration"),
    resume: inputs.Resume = False,
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
    shared.require_models("calibrate")
    fitted = inputs.names("--tasks", tasks, TASKS)
    of_text = only_text(fitted)
    if "text" in fitted and not of_text:
        expected = "text alone, or tasks without text, which is always a guard"
        inputs.refuse("--tasks", f"expected {expected}; got {tasks!r}")
    if of_text and objective == "exact":
        inputs.refuse("--objective", "expected answers, because text has no answers; got 'exact'")
    chosen = inputs.numbers("--lengths", lengths)
    chosen = chosen[-1:] if of_text else chosen
    asked = evaluate_lengths and inputs.numbers("--evaluate-lengths", evaluate_lengths)
    of_contexts: Any = inputs.numbers("--contexts", contexts, count=3)
    of_windows: Any = inputs.numbers("--windows", windows, count=3)
    compared = inputs.names("--evaluate-tasks", evaluate_tasks, TASKS)
    texts = inputs.read_texts("--text", text)
    test_texts = inputs.read_texts("--test-text", test_text)

    # Imported when the command runs, so that --help is fast.
    from sharpmax.models import Splits
    from sharpmax.models._calibration.parameters import FAMILIES
    from sharpmax.models._evaluation import evaluate as evaluating
    from sharpmax.models._evaluation.cells import cells_of, check_cells, default_lengths
    from sharpmax.models._evaluation.splits import check_splits, split_texts
    from sharpmax.models._evaluation.study import Study
    from sharpmax.models._open import open_model

    wanted = inputs.names("--families", families, FAMILIES)
    # A family that changes no temperature is needed for comparison in any case.
    controls = () if "gain" in wanted else ("gain",)
    texts = evaluating.named_texts(texts or None)
    console = Console()
    if not set(fitted) & set(compared):
        none = f"none of the fitted tasks ({', '.join(fitted)})"
        say(console, f"note: the evaluation has {none}, so there will be no verdict")
    # Before the work, so that a folder that cannot be written to is found at once.
    if first():
        output.mkdir(parents=True, exist_ok=True)
        context.with_resource(locked(output))
    loaded, tokenizer = shared.load(console, model, dtype, causal=True)
    further = asked or default_lengths(loaded)
    command = command_line(context)
    settings = Defaults(
        **evaluating.facts_of(loaded, texts), test_texts=evaluating.sizes_of(test_texts),
        tasks=fitted, objective=objective, lengths=chosen, contexts=of_contexts, windows=of_windows,
        tolerance=tolerance, flatten=flatten, steps=steps, batch=batch, text_batch=text_batch,
        text_weight=text_weight, learning_rate=learning_rate, shrink=shrink, seed=seed,
        fit_dtype=fit_dtype, check_every=check_every,
    )  # fmt: skip
    ranks = open_model(loaded).share
    study = Study(output, settings, command, resume=resume, share=ranks)
    path, cells = study.evaluation_path, cells_of(compared, further)
    splits = split_texts(list(texts.values()), list(test_texts.values()))
    of_test = dict(zip(test_texts or texts, splits.test, strict=True))
    with shared.resumable(console, output):
        with console.status("Reading the texts"):
            file_names = Splits(list(texts), list(texts), list(of_test))
            check_splits(tokenizer, splits, file_names, chosen, further)
            check_cells(loaded, tokenizer, splits.test, [*cells_of(fitted, chosen), *cells])
        measured = EvaluationSettings(
            **evaluating.facts_of(loaded, of_test), questions=questions, seed=seed,
            contexts=evaluate_contexts, windows=evaluate_windows,
        )  # fmt: skip
        evaluation = ranks.once(
            lambda: evaluating.open_evaluation(path, measured, command, resume=True)
        )
        for family in (*wanted, *controls):
            with shared.watch_fit(console, family, "text" if of_text else "answers") as on_stage:
                found = study.fit(family, loaded, tokenizer, splits, on_stage)
            say(console, found.summary())
        study.choose(wanted)
        arms = study.arms(wanted, controls)
        with shared.watch_evaluation(console) as on_progress:
            evaluating.run(
                evaluation, loaded, tokenizer, splits.test, arms, cells,
                path=path, on_progress=on_progress,
            )  # fmt: skip
    if first():
        shared.report(console, output, evaluation)
    say(console, f"Calibration: {output / 'calibration.json'}")
