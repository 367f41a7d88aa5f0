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
from experiments.models_speed.tables import calibration_table
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
        str, typer.Option(help="Settings of the calibration, such as fit_dtype=bfloat16.")
    ] = "",
    dtype: Annotated[str, typer.Option(help="Data type of the model.")] = "float32",
    output: Output = Path("build/models_speed/calibration"),
    resume: Resume = False,
) -> None:
    """Time how long SmolLM2 takes to calibrate, by stage and family, with few steps and contexts.

    Writes calibration.json to OUTPUT. With --resume, further families are added to it.
    """
    with quiet(bars=False):
        model, tokenizer = load_model("smollm2")
        model = model.to(getattr(torch, dtype))
        texts = {path.name: path.read_text(encoding="utf-8") for path in (text, test_text)}
        fitted, tested = ({name: whole} for name, whole in texts.items())
        chosen: dict[str, Any] = dict(each.split("=") for each in options.split(",") if each)
        settings = CalibrationSettings(
            **facts_of(model, fitted), test_texts=sizes_of(tested), **SIZES, **chosen
        )
        splits = split_texts(list(fitted.values()), list(tested.values()))
        with TemporaryDirectory() as folder:
            study = Study(Path(folder), settings, "")

            def measure(family: Any) -> dict[str, list[dict[str, Any]]]:
                seconds = {"fit": 0.0, "select": 0.0, "test": 0.0}
                last = time.perf_counter()

                def on_stage(stage: Stage) -> None:
                    nonlocal last
                    now = time.perf_counter()
                    # The start of the test is the end of the selection.
                    name = "select" if (stage.name, stage.step) == ("test", 0) else stage.name
                    seconds[name] += now - last
                    last = now

                found = study.fit(family, model, tokenizer, splits, on_stage)
                test = found.notes["test"]["objective"]
                return {"records": [{"family": family, "seconds": seconds, "test": test}]}

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
