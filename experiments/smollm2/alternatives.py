"""Compare calibrations with what a team would do instead: adapters, and examples in the prompt."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from safetensors.torch import load_file, save_file

import sharpmax
from experiments.common.command import Output, Quick, Resume, current_command, show
from experiments.common.timing import conditions, read_benchmark
from experiments.smollm2.adapters import adapted, train
from experiments.smollm2.run import own_texts, tiny_llama
from experiments.smollm2.tables import METHODS, alternatives_tables
from sharpmax._files import SettingsChangedError, check_settings, locked, refuse_earlier, write_json
from sharpmax._settings import PLAIN, CalibrationSettings, EvaluationSettings
from sharpmax.cli import _inputs as inputs
from sharpmax.cli._progress import Bars, quiet
from sharpmax.models import (
    Calibration,
    CannotFoldError,
    Evaluation,
    Shared,
    Splits,
    answer,
    load_model,
    text_loss,
)
from sharpmax.models._evaluation.cells import Cell, cells_of, items
from sharpmax.models._evaluation.evaluate import facts_of, open_evaluation, sizes_of
from sharpmax.models._evaluation.splits import split_texts
from sharpmax.models._evaluation.study import Study
from sharpmax.models._handle import Sharpened
from sharpmax.models._open import open_model
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

CALIBRATIONS = ("constant", "gain", "constant+gain")
UNFITTED = (PLAIN, "examples")

Record = dict[str, Any]


@dataclass
class Comparison:
    """The model, the data and the folder of a comparison."""

    model: Any
    tokenizer: Any
    splits: Splits[str]
    settings: CalibrationSettings
    asked: int  # questions per cell, the first of those that are drawn
    folder: Path
    draw: Callable[[Cell], list[Any]]
    earlier: Evaluation | None = None
    shared: Shared = field(default_factory=Shared)  # of all adapters

    def __post_init__(self) -> None:
        self.study = Study(self.folder, self.settings, "", resume=True)
        if self.earlier is not None:
            # Refuses answers of other calibrations.
            self.earlier.add_arms({PLAIN: None, **self.study.calibrations})

    def fit(self, method: str, on_step: Callable[[int], None]) -> Record:
        """Fit a method, write what it would ship, and return its size."""
        record: Record = {"method": method, "task": "fit", "numbers": 0, "seconds": None}
        if method in CALIBRATIONS:
            known = method in self.study.calibrations
            began = time.process_time()
            found = self.study.fit(method, self.model, self.tokenizer, self.splits)  # type: ignore[arg-type]
            record |= {
                "numbers": sum(filter(None, found.head_counts)) * len(method.split("+")),
                "seconds": None if known else time.process_time() - began,
                "bytes": len(json.dumps(found.to_dict()["layers"])),
                "kept": (found.notes["select"]["chosen"] or {"scale": 0.0})["scale"],
                "merges": self._merges(found), "sha256": _sha256(self._file(method)),
            }  # fmt: skip
        elif method not in UNFITTED:
            data, _ = self.study._data(self.model, self.tokenizer, self.splits)
            kind, rank = _adapter(method)
            path = self._file(method)
            path.parent.mkdir(exist_ok=True)
            state = path.with_suffix(".fit")
            with own_attention(self.model):
                trained = train(
                    self.model, kind, rank, data["data"], data["text"], self.settings,
                    shared=self.shared, state=state, on_step=on_step,
                )  # fmt: skip
            save_file({n: v.contiguous() for n, v in trained.weights.items()}, path)
            state.unlink(missing_ok=True)
            record |= {
                "numbers": trained.numbers, "seconds": trained.seconds, "kept": trained.scale,
                "bytes": path.stat().st_size, "sha256": _sha256(path), "merges": True,
            }  # fmt: skip
        return record

    def measure(self, method: str, cell: Cell, fit: Record) -> Record:
        """Ask a changed model the questions of a cell, or measure its loss on text."""
        drawn = self.draw(cell)
        drawn = drawn if cell.task == "text" else drawn[: self.asked]
        contexts = [each.context for each in drawn]
        record: Record = {
            "method": method, "task": cell.task, "length": cell.length, "wording": cell.wording,
            "earlier": False, "contexts": contexts,
        }  # fmt: skip
        known = None if self.earlier is None else self.earlier.find(method, cell)
        # Losses on text are all measured by the same code: they differ by its rounding.
        if known is not None and cell.task != "text":
            if list(known.contexts[: len(drawn)]) != contexts:
                raise SettingsChangedError(
                    f"{cell}: expected the questions of the earlier evaluation, got others; go on "
                    "without --earlier"
                )
            return record | {"earlier": True, "values": list(known.values[: len(drawn)])}
        if method == "examples":
            drawn = [self._with_examples(cell, each) for each in drawn]
        with self._changed(method, fit):
            values = (
                [text_loss(self.model, [window]).item() for window in drawn]
                if cell.task == "text"
                else [float(each.exact) for each in answer(self.model, drawn)]
            )
        return record | {"values": values}

    @contextmanager
    def _changed(self, method: str, fit: Record) -> Iterator[None]:
        """Change the model by a fitted method within a block."""
        change: AbstractContextManager[Any] = nullcontext()
        if method not in UNFITTED:
            path = self._file(method)
            if not path.exists() or _sha256(path) != fit["sha256"]:
                raise SettingsChangedError(
                    f"{path}: expected the file that was fitted, got "
                    f"{'another' if path.exists() else 'none'}; copy it there, or remove the "
                    f"records of {method!r} to fit it again"
                )
            if method not in CALIBRATIONS:
                change = adapted(self.model, *_adapter(method), load_file(path))
        found = self.study.calibrations[method] if method in CALIBRATIONS else None
        if found is not None and found.layers:
            own = sharpmax.sharpen(self.model, found)
        else:
            own = own_attention(self.model)
        with own, change, evaluation_mode(self.model), torch.no_grad():
            yield

    def _merges(self, calibration: Calibration) -> bool:
        """Tell whether a calibration can be written into the weights, which is verified."""
        with TemporaryDirectory() as folder:
            try:
                calibration.to_peft(folder, self.model, self.tokenizer)
            except CannotFoldError:
                return False
        return True

    def _file(self, method: str) -> Path:
        """Return the file with what was fitted."""
        if method in CALIBRATIONS:
            return self.folder / "families" / f"{method}.json"
        return self.folder / "adapters" / f"{method}.safetensors"

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


def own_attention(model: Any) -> Sharpened:
    """Let a model compute what it does with the kernel of calibrations, which saves time."""
    return Sharpened(open_model(model), stock=False)


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
    model: Annotated[str, typer.Option(help="Folder or name of a model.")] = "smollm2",
    methods: Annotated[str, typer.Option(help="Methods, with commas.")] = ",".join(METHODS),
    steps: Annotated[int, typer.Option(min=1, help="Steps of every fit.")] = 45,
    lengths: Annotated[
        str, typer.Option(help="Tokens per prompt of the test, with commas.")
    ] = "1024,2048,4096",
    asked: Annotated[
        int, typer.Option("--questions", min=1, help="Questions per task and wording, up to 200.")
    ] = 100,
    windows: Annotated[int, typer.Option(min=2, help="Windows of text of the test.")] = 16,
    earlier: Annotated[
        Path | None,
        typer.Option(
            help="Results of `run`: calibrations and answers that it has are not made again. Its"
            " data and settings have to be the same.",
            show_default=False,
        ),
    ] = None,
    output: Output = Path("build/smollm2/alternatives"),
    quick: Quick = False,
    resume: Resume = False,
) -> None:
    """Fit calibrations and adapters on the same data, and compare what they answer and cost.

    Every method has the same steps, the same loss and the same guard on text. Results are written
    after each fit and each cell, and a fit after every fifth step. With --resume, methods and
    lengths can be added in further runs. With --quick, a tiny Llama takes the place of the model.
    """
    chosen = inputs.numbers("--lengths", lengths)
    named = inputs.names("--methods", methods, [*METHODS])
    sizes: dict[str, Any] = dict(FULL, steps=steps)
    if quick:
        model, (text, test_text) = str(tiny_llama(output / "model")), own_texts(output)
        sizes, chosen, asked, windows = dict(QUICK, steps=min(steps, 2)), (400, 440), 4, 2
    if text is None or test_text is None:
        raise typer.BadParameter("expected --text and --test-text, or --quick", param_hint="--text")
    path = output / "alternatives.json"
    if path.exists() and not resume:
        refuse_earlier(output)
    output.mkdir(parents=True, exist_ok=True)
    console = Console()
    with quiet(bars=False), locked(output):
        loaded, tokenizer = load_model(model)
        inner: Any = loaded
        inner = inner.to(torch.float32 if quick else torch.bfloat16)
        texts, test_texts = ({p.name: p.read_text(encoding="utf-8")} for p in (text, test_text))
        settings = CalibrationSettings(
            **facts_of(inner, texts), test_texts=sizes_of(test_texts), **sizes
        )
        drawn = EvaluationSettings(
            **facts_of(inner, test_texts), questions=max(200, asked) if not quick else asked,
            contexts=2 if quick else 25, windows=windows,
        )  # fmt: skip

        @cache
        def draw(cell: Cell) -> list[Any]:
            return items(cell, tokenizer, list(test_texts.values()), inner, drawn)

        compared = Comparison(
            inner, tokenizer, split_texts(list(texts.values()), list(test_texts.values())),
            settings, asked, output, draw,
            None if earlier is None else _taken_over(earlier, drawn, output),
        )  # fmt: skip
        header = {
            "experiment": "alternatives",
            "settings": {**settings.to_dict(), "questions": asked, "test_windows": windows},
        }
        session = {
            "command": current_command(context),
            **conditions(["numpy", "peft", "torch", "transformers"]),
        }
        result = _opened(path, header, session)
        cells = cells_of(["passkey", "key-value", "text"], chosen)
        with Bars(console, transient=True) as bars:
            bar = bars.add("Comparing", len(named) * (1 + len(cells)))
            for done, (method, cell) in enumerate(product(named, [None, *cells])):
                # Examples in prompts change nothing about text.
                if cell is not None and (method, cell.task) == ("examples", "text"):
                    continue
                note = f"{method}: {cell or 'fit'}"
                bars.step(bar, done, note)
                fit = _find(result, method)
                if cell is None and fit is None:
                    record = compared.fit(method, partial(_tell, bars, bar, done, note))
                elif cell is not None and _find(result, method, cell) is None:
                    record = compared.measure(method, cell, fit or {})
                else:
                    continue
                result["records"].append({**record, "session": len(result["sessions"]) - 1})
                write_json(path, result)
    show(console, alternatives_tables(result), [path])


def _tell(bars: Bars, bar: Any, done: int, note: str, step: int) -> None:
    bars.step(bar, done, f"{note}, step {step}")


def _taken_over(earlier: Path, drawn: EvaluationSettings, folder: Path) -> Evaluation:
    """Copy the calibrations of an earlier run, and return its evaluation."""
    evaluation = open_evaluation(earlier / "evaluation.json", drawn, "", resume=True)
    (folder / "families").mkdir(exist_ok=True)
    for family in CALIBRATIONS:
        source, target = (each / "families" / f"{family}.json" for each in (earlier, folder))
        if source.exists() and not target.exists():
            shutil.copy(source, target)
    return evaluation


def _opened(path: Path, header: Record, session: Record) -> Record:
    """Read the records of earlier sessions, and add one of now."""
    result: Record = {**json.loads(json.dumps(header)), "sessions": [], "records": []}
    if path.exists():
        found = read_benchmark(path)
        check_settings(
            found, result | {name: found.get(name) for name in ("sessions", "records")}, path
        )
        result = found
    result["sessions"].append(session)
    # Before the first fit, whose state belongs to these settings.
    write_json(path, result)
    return result


def _find(result: Record, method: str, cell: Cell | None = None) -> Record | None:
    """Return the record of a method on a cell, or of its fit."""
    key = ("fit", None, None) if cell is None else (cell.task, cell.length, cell.wording)
    for each in result["records"]:
        found: Record = each
        if (each["task"], each.get("length"), each.get("wording")) != key:
            continue
        if each["method"] == method:
            return found
    return None


def _adapter(method: str) -> tuple[str, int]:
    """Return kind and rank of an adapter by the name of its method."""
    return ("lora", int(method.partition(" ")[2])) if method.startswith("lora") else ("ia3", 0)


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
