"""Time the stages of a calibration: fitting, selecting heads and testing, per family."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

from experiments.common.command import Output, Resume, current_command, show
from experiments.common.timing import conditions, run_steps
from experiments.models_speed.tables import FULL, calibration_table
from sharpmax._settings import CalibrationSettings
from sharpmax.cli._progress import quiet
from sharpmax.models import Stage, load_model
from sharpmax.models._evaluation.evaluate import facts_of, sizes_of
from sharpmax.models._evaluation.splits import split_texts
from sharpmax.models._evaluation.study import Study

__all__ = ["calibrate"]

SIZES: dict[str, Any] = {
    "steps": 3, "contexts": (12, 1, 1), "windows": (6, 3, 3), "flatten": True,
}  # fmt: skip
"""A small but real setting: every stage runs, on prompts of 512 and 1,024 tokens."""

WHOLE = {"check_every": int, "steps": int}
"""Settings that are whole numbers."""


def calibrate(
    context: typer.Context,
    text: Annotated[Path, typer.Option(help="File with the text to fit on.", show_default=False)],
    test_text: Annotated[
        Path, typer.Option(help="File with the text to test on.", show_default=False)
    ],
    families: Annotated[
        str, typer.Option(help="Families, with commas; each is timed after those before it.")
    ] = "constant,gain,constant+gain",
    options: Annotated[
        str,
        typer.Option(help="Settings of the calibration, such as fit_dtype=bfloat16,check_every=5."),
    ] = "",
    full: Annotated[
        bool, typer.Option("--full", help="Take the setting of the SmolLM2 experiment.")
    ] = False,
    model: Annotated[str, typer.Option(help="Folder or name of a model.")] = "smollm2",
    dtype: Annotated[str, typer.Option(help="Data type of the model.")] = "float32",
    output: Output = Path("build/models_speed/calibration"),
    resume: Resume = False,
) -> None:
    """Time how long a model takes to calibrate, by stage and family, with few steps and contexts.

    Writes calibration.json to OUTPUT. With --resume, further families are added to it. Processor
    time is measured as well: other programs change it little.
    """
    with quiet(bars=False):
        loaded, tokenizer = load_model(model)
        inner: Any = loaded
        inner = inner.to(getattr(torch, dtype))
        texts = {path.name: path.read_text(encoding="utf-8") for path in (text, test_text)}
        fitted, tested = ({name: whole} for name, whole in texts.items())
        given = dict(each.split("=") for each in options.split(",") if each)
        chosen = {name: WHOLE.get(name, str)(value) for name, value in given.items()}
        settings = CalibrationSettings(
            **facts_of(inner, fitted), test_texts=sizes_of(tested),
            **(SIZES | (FULL if full else {}) | chosen),
        )  # fmt: skip
        splits = split_texts(list(fitted.values()), list(tested.values()))
        with TemporaryDirectory() as folder:
            study = Study(Path(folder), settings, "")

            def measure(family: Any) -> dict[str, list[dict[str, Any]]]:
                clocks = {"seconds": time.perf_counter, "processor": time.process_time}
                spent = {name: {"fit": 0.0, "select": 0.0, "test": 0.0} for name in clocks}
                last = {name: clock() for name, clock in clocks.items()}

                def on_stage(stage: Stage) -> None:
                    # The start of the test is the end of the selection.
                    name = "select" if (stage.name, stage.step) == ("test", 0) else stage.name
                    for kind, clock in clocks.items():
                        now = clock()
                        spent[kind][name] += now - last[kind]
                        last[kind] = now

                found = study.fit(family, inner, tokenizer, splits, on_stage)
                notes = found.notes
                record = {
                    "family": family, **spent, "checks": notes["checks"], "test": notes["test"],
                    "chosen": notes["select"]["chosen"],
                }  # fmt: skip
                return {"records": [record]}

            result = run_steps(
                output / "calibration.json",
                {
                    "command": current_command(context),
                    "experiment": "calibration speed",
                    **conditions(["numpy", "torch", "transformers"]),
                    "threads": torch.get_num_threads(),
                    "settings": settings.to_dict(),
                },
                {family: partial(measure, family) for family in families.split(",")},
                resume=resume,
            )
    table = calibration_table({"now": result})
    show(Console(), [table], [output / "calibration.json"])
