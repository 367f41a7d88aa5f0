"""Fold a calibration, and ask engines the same questions with the plain and the folded model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from transformers import LlamaConfig, LlamaForCausalLM

import sharpmax
from experiments.common.command import (
    EngineName,
    Output,
    Quick,
    Resume,
    current_command,
    say,
    show,
)
from experiments.common.documents import EXPERIMENTS
from experiments.common.timing import Step, conditions, run_steps
from experiments.common.tiny import save_tiny
from experiments.serving.engines import ENGINES, Ask, ask_model, export, missing, open_engine
from experiments.serving.figures import figures
from experiments.serving.tables import table
from sharpmax._files import locked
from sharpmax.cli._inputs import numbers
from sharpmax.cli._progress import Bars, quiet
from sharpmax.models import Calibration, fold_gguf, load_model
from sharpmax.models._evaluation.cells import Cell, cells_of, questions
from sharpmax.models._load import gguf_file
from sharpmax.policies import Constant
from sharpmax.tasks import Question, own_source

__all__ = ["run"]

CALIBRATION = EXPERIMENTS / "smollm2/results/families/constant+gain.json"
MODEL = "smollm2"
ANSWER_ROOM = 64
"""Tokens that an engine keeps for an answer."""


@dataclass(frozen=True)
class Served:
    """The plain model, its calibration, and where its files are written.

    Attributes:
        model: As `sharpmax.models.load_model` takes it.
        calibration: A calibration of it.
        folder: Folder for checkpoints and files of the engines.
        gguf: The model as a GGUF file, if there is one.
    """

    model: str
    calibration: Calibration
    folder: Path
    gguf: Path | None

    def engines(self) -> dict[str, str | None]:
        """Return why each engine cannot be asked, or None if it can."""
        found = {engine: missing(engine) for engine in ENGINES}
        if self.gguf is None:
            found["llama.cpp"] = "there is no GGUF file of the quick model"
        return found

    def path(self, engine: str, which: str) -> Path:
        """Write what an engine loads, unless it exists: of the plain or of the folded model."""
        if engine == "llama.cpp":
            assert self.gguf is not None
            target = self.folder / "folded.gguf"
            if which == "folded" and not target.exists():
                fold_gguf(self.gguf, self.calibration, target)
            return self.gguf if which == "plain" else target
        target = self.folder / (which if engine == "transformers" else f"{which}.onnx")
        if not target.exists():
            model, tokenizer = load_model(self.model)
            if which == "folded":
                sharpmax.fold(model, self.calibration, tokenizer)
            if engine == "transformers":
                # A checkpoint of the GGUF file says how it was quantised, which it is no longer.
                model.save_pretrained(target)
            else:
                export(model, target)
        return target

    @contextmanager
    def asking(self, engine: str, which: str, positions: int) -> Iterator[Ask]:
        """Open an engine with a model; "sharpened" is the plain model under `sharpmax.sharpen`."""
        if which == "sharpened":
            model, _ = load_model(self.model)
            with sharpmax.sharpen(model, self.calibration):
                yield ask_model(model)
        else:
            yield open_engine(engine, self.path(engine, which), positions)


def run(
    context: typer.Context,
    text: Annotated[
        Path | None,
        typer.Option(
            help="File with the text that hides the questions.",
            show_default="required without --quick",
        ),
    ] = None,
    lengths: Annotated[str, typer.Option(help="Tokens per prompt, with commas.")] = "1024",
    asked: Annotated[
        int, typer.Option("--questions", min=1, help="Questions per task and length.")
    ] = 50,
    contexts: Annotated[int, typer.Option(min=1, help="Passages of text.")] = 25,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the questions.")] = 0,
    models: Annotated[
        Path, typer.Option(help="Folder for checkpoints, ONNX and GGUF files; 3 GB.")
    ] = Path("build/serving/models"),
    output: Output = Path("build/serving"),
    quick: Quick = False,
    resume: Resume = False,
    engine: EngineName = "local",
) -> None:
    """Ask transformers, onnxruntime and llama.cpp questions, with SmolLM2 plain and folded.

    All engines get the same questions, as tokens. Engines that are not installed are left out. A
    full run takes about an hour on two cores. With --quick, a tiny Llama with random weights takes
    the place of SmolLM2.
    """
    console = Console()
    if quick:
        models, lengths, asked, contexts = output / "models", "400", 4, 2
        served, written = _tiny(models), own_source()
    else:
        if text is None:
            raise typer.BadParameter("expected --text, or --quick", param_hint="--text")
        models.mkdir(parents=True, exist_ok=True)
        served = Served(MODEL, Calibration.load(CALIBRATION), models, gguf_file(MODEL))
        written = text.read_text(encoding="utf-8")
    chosen = numbers("--lengths", lengths)
    _, tokenizer = load_model(served.model)
    steps: dict[str, Step] = {}

    states: list[tuple[str, str]] = [("transformers", "sharpened")]
    for program, reason in served.engines().items():
        if reason is None:
            states += [(program, "plain"), (program, "folded")]
        else:
            say(console, f"note: {program} is left out: {reason}")
    # Cell by cell, so that a run that is stopped compares all engines on some of them.
    for cell in cells_of(["key-value", "passkey"], chosen, ["usual"]):
        drawn = questions(cell, tokenizer, [written], count=asked, contexts=contexts, seed=seed)
        for program, which in states:
            name = f"{program}, {which}: {cell}"
            steps[name] = partial(_measure, served, program, which, cell, drawn)
    with quiet(bars=False), locked(models), Bars(console, transient=True) as bars:
        # Before the cells, which may run beside each other.
        for program, which in states[1:]:
            served.path(program, which)
        bar = bars.add("Asking", len(steps))
        result = run_steps(
            output / "serving.json",
            {
                "command": current_command(context),
                "experiment": "serving",
                **conditions(["transformers", "onnxruntime", "xllamacpp", "gguf", "torch"]),
                "settings": {
                    "lengths": chosen, "questions": asked, "contexts": contexts, "seed": seed,
                },
            },
            steps,
            resume=resume,
            on_step=lambda number, name: bars.step(bar, number, name), engine=engine,
        )  # fmt: skip
    show(console, [table(result)], [output / "serving.json", *figures(output)])


def _measure(
    served: Served,
    engine: str,
    which: str,
    cell: Cell,
    drawn: list[Question],
) -> dict[str, list[dict[str, Any]]]:
    """Ask one engine with one model all questions of a cell."""
    with served.asking(engine, which, cell.length + ANSWER_ROOM) as ask:
        correct = ask(drawn)
    record = {
        "engine": engine, "model": which, "task": cell.task, "length": cell.length,
        "correct": list(map(int, correct)), "contexts": [each.context for each in drawn],
    }  # fmt: skip
    return {"records": [record]}


def _tiny(folder: Path) -> Served:
    """Write a tiny Llama, with a calibration that is made up."""
    config = LlamaConfig(
        vocab_size=128, hidden_size=32, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512,
    )  # fmt: skip
    place = save_tiny(LlamaForCausalLM, config, folder / "tiny")
    model, _ = load_model(place)
    made_up = Calibration.of(
        model, {0: Constant([1.4, 1.0, 0.8, 1.0])}, gains={1: [1.0, 1.2, 1.0, 0.7]}
    )
    return Served(str(place), made_up, folder, None)
