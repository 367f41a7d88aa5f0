"""Compare calibrations with what a team would do instead: adapters, and examples in the prompt."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from safetensors.torch import load_file, save_file

import sharpmax
from experiments.common.command import Output, Quick, Resume, current_command, show
from experiments.common.timing import Step, conditions, run_steps
from experiments.smollm2.adapters import adapted, train
from experiments.smollm2.run import own_texts, tiny_llama
from experiments.smollm2.tables import METHODS, alternatives_table
from sharpmax._settings import CalibrationSettings, EvaluationSettings
from sharpmax.cli._progress import Bars, quiet
from sharpmax.models import Calibration, answer, load_model, text_loss
from sharpmax.models._evaluation.cells import Cell, cells_of, items
from sharpmax.models._evaluation.evaluate import facts_of, sizes_of
from sharpmax.models._evaluation.splits import split_texts
from sharpmax.models._evaluation.study import Study
from sharpmax.models._way import evaluation_mode
from sharpmax.tasks import Question, start_tokens
from sharpmax.tasks._key_value import WORDINGS as KEY_VALUE
from sharpmax.tasks._passkey import WORDINGS as PASSKEY

__all__ = ["alternatives"]

FULL = {"lengths": (512, 1024), "contexts": (45, 6, 8), "windows": (90, 16, 16), "flatten": True}
QUICK: dict[str, Any] = {
    "lengths": (400,), "contexts": (2, 2, 2), "windows": (2, 2, 2), "flatten": True,
    "batch": 1, "text_batch": 1,
}  # fmt: skip


@dataclass
class Comparison:
    """The model, the data and the folder of a comparison."""

    model: Any
    tokenizer: Any
    texts: dict[str, str]  # to fit on
    test_texts: dict[str, str]
    settings: CalibrationSettings
    asked: int  # questions per cell, the first of `drawn`
    drawn: EvaluationSettings
    folder: Path

    @property
    def study(self) -> Study:
        """The calibrations, one file per family."""
        return Study(self.folder, self.settings, "", resume=True)

    def fit(self, method: str) -> dict[str, list[dict[str, Any]]]:
        """Fit a method, write what it would ship, and return its size."""
        splits = split_texts(list(self.texts.values()), list(self.test_texts.values()))
        began = time.perf_counter()
        numbers, size, kept = 0, 0, 1.0
        if method in ("constant", "gain", "constant+gain"):
            found = self.study.fit(method, self.model, self.tokenizer, splits)  # type: ignore[arg-type]
            numbers = sum(filter(None, found.head_counts)) * len(method.split("+"))
            size = len(json.dumps(found.to_dict()["layers"]))
            kept = (found.notes["select"]["chosen"] or {"scale": 0.0})["scale"]
        elif method != "plain" and method != "examples":
            data, _ = self.study._data(self.model, self.tokenizer, splits)
            kind, rank = _adapter(method)
            trained = train(self.model, kind, rank, data["data"], data["text"], self.settings)
            path = self.folder / "adapters" / f"{method}.safetensors"
            path.parent.mkdir(exist_ok=True)
            save_file({n: v.contiguous() for n, v in trained.weights.items()}, path)
            numbers, size, kept = trained.numbers, path.stat().st_size, trained.scale
        seconds = time.perf_counter() - began
        record = {
            "method": method, "task": "fit", "numbers": numbers, "seconds": seconds, "bytes": size,
            "kept": kept,
        }  # fmt: skip
        return {"records": [record]}

    @contextmanager
    def changed(self, method: str) -> Iterator[None]:
        """Change the model by a fitted method within a block."""
        change: AbstractContextManager[Any] = nullcontext()
        if method in ("constant", "gain", "constant+gain"):
            found: Calibration = self.study.calibrations[method]
            change = sharpmax.sharpen(self.model, found) if found.layers else change
        elif method != "plain" and method != "examples":
            weights = load_file(self.folder / "adapters" / f"{method}.safetensors")
            change = adapted(self.model, *_adapter(method), weights)
        with change, evaluation_mode(self.model), torch.no_grad():
            yield

    def measure(
        self, method: str, cell: Cell, draw: Callable[[Cell], list[Any]]
    ) -> dict[str, list[dict[str, Any]]]:
        """Ask a changed model the questions of a cell, or measure its loss on text."""
        drawn = draw(cell)
        if cell.task != "text":
            drawn = drawn[: self.asked]
            if method == "examples":
                drawn = [self._with_examples(cell, each) for each in drawn]
        with self.changed(method):
            values = (
                [text_loss(self.model, [window]).item() for window in drawn]
                if cell.task == "text"
                else [float(each.exact) for each in answer(self.model, drawn)]
            )
        record = {
            "method": method, "task": cell.task, "length": cell.length, "wording": cell.wording,
            "values": values, "contexts": [each.context for each in drawn],
        }  # fmt: skip
        return {"records": [record]}

    def _with_examples(self, cell: Cell, question: Question) -> Question:
        """Put three solved questions, in the wordings of the fit, before a prompt."""
        lines = PASSKEY if cell.task == "passkey" else KEY_VALUE
        examples = ""
        for number, (hidden, asked) in enumerate(lines[:3]):
            names = {"key": ("Zumeko", "Tabilo", "Rofena")[number]}
            value = ("48213", "90657", "31748")[number][: 5 if cell.task == "passkey" else 4]
            told = {"key": value} if cell.task == "passkey" else {**names, "value": value}
            examples += f"{hidden.format(**told)}{asked.format(**names)} {value}\n"
        start = start_tokens(self.tokenizer)
        tokens = self.tokenizer.encode(examples, add_special_tokens=False)
        ids = (*question.ids[: len(start)], *tokens, *question.ids[len(start) :])
        return replace(question, ids=ids)


def alternatives(
    context: typer.Context,
    text: Annotated[
        Path | None,
        typer.Option(help="File with the text to fit on.", show_default="required without --quick"),
    ] = None,
    test_text: Annotated[
        Path | None,
        typer.Option(
            help="File with the text to test on.", show_default="required without --quick"
        ),
    ] = None,
    methods: Annotated[str, typer.Option(help="Methods, with commas.")] = ",".join(METHODS),
    steps: Annotated[int, typer.Option(min=1, help="Steps of every fit.")] = 45,
    length: Annotated[int, typer.Option(min=1, help="Tokens per prompt of the test.")] = 1024,
    asked: Annotated[
        int, typer.Option("--questions", min=1, help="Questions per task and wording, up to 200.")
    ] = 100,
    windows: Annotated[int, typer.Option(min=2, help="Windows of text of the test.")] = 16,
    output: Output = Path("build/smollm2/alternatives"),
    quick: Quick = False,
    resume: Resume = False,
) -> None:
    """Fit calibrations and adapters on the same data, and compare what they answer and cost.

    Every method has the same steps, the same loss and the same guard on text. Results are written
    after each fit and each cell. With --quick, a tiny Llama takes the place of SmolLM2.
    """
    sizes: dict[str, Any] = dict(FULL, steps=steps)
    name = "smollm2"
    if quick:
        name, (text, test_text) = str(tiny_llama(output / "model")), own_texts(output)
        sizes, length, asked, windows = dict(QUICK, steps=min(steps, 2)), 400, 4, 2
    if text is None or test_text is None:
        raise typer.BadParameter("expected --text and --test-text, or --quick", param_hint="--text")
    console = Console()
    with quiet(bars=False):
        loaded, tokenizer = load_model(name)
        model: Any = loaded
        model = model.to(torch.float32 if quick else torch.bfloat16)
        texts, test_texts = ({p.name: p.read_text(encoding="utf-8")} for p in (text, test_text))
        settings = CalibrationSettings(
            **facts_of(model, texts), test_texts=sizes_of(test_texts), **sizes
        )
        drawn = EvaluationSettings(
            **facts_of(model, test_texts), questions=max(200, asked) if not quick else asked,
            contexts=2 if quick else 25, windows=windows,
        )  # fmt: skip
        compared = Comparison(model, tokenizer, texts, test_texts, settings, asked, drawn, output)

        @cache
        def draw(cell: Cell) -> list[Any]:
            return items(cell, tokenizer, list(test_texts.values()), model, drawn)

        planned: dict[str, Step] = {}
        for method in methods.split(","):
            planned[f"fit {method}"] = partial(compared.fit, method)
            for cell in cells_of(["passkey", "key-value", "text"], [length]):
                planned[f"{method}: {cell}"] = partial(compared.measure, method, cell, draw)
        with Bars(console, transient=True) as bars:
            bar = bars.add("Comparing", len(planned))
            result = run_steps(
                output / "alternatives.json",
                {
                    "command": current_command(context),
                    "experiment": "alternatives",
                    **conditions(["numpy", "peft", "torch", "transformers"]),
                    "settings": {**settings.to_dict(), "length": length, "questions": asked},
                },
                planned,
                resume=resume,
                on_step=lambda number, name: bars.step(bar, number, name),
            )
    show(console, [alternatives_table(result)], [output / "alternatives.json"])


def _adapter(method: str) -> tuple[str, int]:
    """Return kind and rank of an adapter by the name of its method."""
    return ("lora", int(method.partition(" ")[2])) if method.startswith("lora") else ("ia3", 0)
