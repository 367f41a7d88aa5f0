"""How models answer, with and without a change, cell by cell: a run that can go on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

import sharpmax
from sharpmax._resampling import clustered_interval
from sharpmax.lab.calibration.arms import Change
from sharpmax.lab.calibration.cells import Cell, questions, windows
from sharpmax.lab.results import SettingsChanged, machine, read_sealed, versions, write_sealed
from sharpmax.models import answer, text_loss
from sharpmax.tasks.questions import Tokenizer

__all__ = ["CellResult", "Evaluation", "Settings"]

_KIND = "evaluation of a model, format 1"


@dataclass(frozen=True)
class Settings:
    """What all cells of an evaluation have in common.

    Attributes:
        model: Its name, as results show it.
        texts: Names of the texts that things are hidden in, with their sizes in characters.
        questions: In a cell.
        contexts: Stretches of text in a cell.
        windows: Of text in a cell.
        seed: Of the drawing.
    """

    model: str
    texts: dict[str, int]
    questions: int = 200
    contexts: int = 25
    windows: int = 24
    seed: int = 0


@dataclass(frozen=True)
class CellResult:
    """What a model with a change made of a cell.

    Attributes:
        arm: Name of the change.
        task: Of the cell.
        length: Of the cell.
        wording: Of the cell.
        values: For questions 1 where the answer is exact and 0 where not; for text the loss of
            each window, in nats a token.
        log_probabilities: Of the answers, in nats; empty for text.
        contexts: The context of each value.
    """

    arm: str
    task: str
    length: int
    wording: str
    values: tuple[float, ...]
    log_probabilities: tuple[float, ...]
    contexts: tuple[int, ...]

    @property
    def cell(self) -> Cell:
        """The cell."""
        return Cell(self.task, self.length, self.wording)  # type: ignore[arg-type]

    @property
    def mean(self) -> float:
        """Share of exact answers, or the mean loss."""
        return float(np.mean(self.values))

    @property
    def interval(self) -> tuple[float, float]:
        """Of the mean, 95%, from resampled contexts."""
        return clustered_interval(self.values, self.contexts)

    def less(self, other: CellResult) -> tuple[float, tuple[float, float]]:
        """The mean difference from another arm on the same cell, and its interval.

        Raises:
            ValueError: The other is of another cell.
        """
        if (self.cell, self.contexts) != (other.cell, other.contexts):
            raise ValueError(f"other: expected a result of {self.cell}, got {other.cell}")
        differences = np.subtract(self.values, other.values)
        interval = clustered_interval(differences.tolist(), self.contexts)
        return float(differences.mean()), interval


@dataclass
class Evaluation:
    """Results by arm and cell, in a file that grows.

    Attributes:
        path: The file.
        settings: What all cells have in common.
        command: How to make it again.
        results: What is there so far.
        versions: Of the software.
        machine: The kind of machine.
    """

    path: Path
    settings: Settings
    command: str
    results: list[CellResult] = field(default_factory=list)
    versions: dict[str, str] = field(
        default_factory=lambda: versions(("numpy", "torch", "transformers"))
    )
    machine: dict[str, Any] = field(default_factory=machine)

    @classmethod
    def open(
        cls, path: Path, settings: Settings, command: str, *, resume: bool = False
    ) -> Evaluation:
        """A new evaluation, or one that goes on.

        Raises:
            FileExistsError: There is one, and `resume` is false.
            SettingsChanged: There is one with other settings.
            DamagedFile: The file is cut off or was edited.
        """
        if not path.exists():
            return cls(path, settings, command)
        if not resume:
            what = "holds an earlier evaluation: --resume goes on with it, or choose another file"
            raise FileExistsError(0, what, str(path))
        found = cls.load(path)
        if found.settings != settings:
            raise SettingsChanged(
                f"{path}: the evaluation there has {found.settings}, not {settings}; go on with "
                "the same settings, or choose another file"
            )
        return found

    @classmethod
    def load(cls, path: Path) -> Evaluation:
        """Read an evaluation.

        Raises:
            DamagedFile: The file is cut off, was edited, or is something else.
        """
        data = read_sealed(path, _KIND)
        names = CellResult.__dataclass_fields__
        results = []
        for entry in data["results"]:
            kept = {name: entry[name] for name in names}
            lists = {name: tuple(v) for name, v in kept.items() if isinstance(v, list)}
            results.append(CellResult(**{**kept, **lists}))
        return cls(
            Path(path),
            Settings(**data["settings"]),
            data["command"],
            results,
            data["versions"],
            data["machine"],
        )

    def save(self) -> Path:
        """Write what is there, with means and intervals beside the values."""
        results = [
            {**asdict(result), "mean": result.mean, "interval": result.interval}
            for result in self.results
        ]
        return write_sealed(
            self.path,
            _KIND,
            {
                "command": self.command,
                "settings": asdict(self.settings),
                "versions": self.versions,
                "machine": self.machine,
                "results": results,
            },
        )

    def find(self, arm: str, cell: Cell) -> CellResult | None:
        """The result of an arm on a cell, if it is there."""
        return next((r for r in self.results if r.arm == arm and r.cell == cell), None)

    def run(
        self,
        model: PreTrainedModel,
        tokenizer: Tokenizer,
        texts: Sequence[str],
        arms: Mapping[str, Change],
        cells: Sequence[Cell],
        on_progress: Callable[[str, Cell, int, int], None] = lambda *_: None,
    ) -> None:
        """Ask what is not there yet, and write the file after every cell.

        Args:
            model: The model; it is as it was before afterwards.
            tokenizer: Of the model.
            texts: What things are hidden in, and what the loss is of.
            arms: What is done to the model, by name.
            cells: What is asked.
            on_progress: Called with arm, cell, questions answered and questions in all.
        """
        for cell in cells:
            for arm, change in arms.items():
                if self.find(arm, cell) is not None:
                    continue
                say = partial(on_progress, arm, cell)
                with nullcontext() if change is None else sharpmax.sharpen(model, change):
                    self.results.append(self._ask(model, tokenizer, texts, arm, cell, say))
                self.save()

    def _ask(
        self,
        model: PreTrainedModel,
        tokenizer: Tokenizer,
        texts: Sequence[str],
        arm: str,
        cell: Cell,
        on_progress: Callable[[int, int], None],
    ) -> CellResult:
        settings = self.settings
        if cell.task == "text":
            values, contexts = [], []
            drawn = windows(tokenizer, texts, cell.length, settings.windows)
            with torch.no_grad():
                for number, window in enumerate(drawn):
                    values += text_loss(model, [window]).tolist()
                    contexts.append(window.context)
                    on_progress(number + 1, len(drawn))
            probabilities: tuple[float, ...] = ()
        else:
            asked = questions(
                cell,
                tokenizer,
                texts,
                count=settings.questions,
                contexts=settings.contexts,
                seed=settings.seed,
            )
            answers = answer(model, asked, on_progress)
            values = [float(each.exact) for each in answers]
            contexts = [question.context for question in asked]
            probabilities = tuple(each.log_probability for each in answers)
        return CellResult(
            arm, cell.task, cell.length, cell.wording, tuple(values), probabilities,
            tuple(contexts),
        )  # fmt: skip
