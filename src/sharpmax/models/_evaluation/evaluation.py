"""How models answer, with and without a change, cell by cell: a run that can go on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

import sharpmax
from sharpmax._files import (
    SettingsChangedError,
    machine,
    read_sealed,
    refuse_earlier,
    versions,
    write_sealed,
)
from sharpmax._resampling import clustered_interval
from sharpmax.models import Calibration, Window, answer, text_loss
from sharpmax.models._evaluation.arms import Change
from sharpmax.models._evaluation.cells import Cell, questions, windows
from sharpmax.models._inspect import positions
from sharpmax.tasks import Question, Tokenizer

__all__ = ["CellResult", "Evaluation", "Settings", "check_cells"]

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
        dtype: Of the numbers that the model computes with.
    """

    model: str
    texts: dict[str, int]
    questions: int = 200
    contexts: int = 25
    windows: int = 24
    seed: int = 0
    dtype: str = "float32"


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

    @cached_property
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
        command: How to make it again: a line a command, where it went on with others.
        results: What is there so far.
        arms: What was done to the model, by name, as plain data.
        versions: Of the software.
        machine: The kind of machine.
    """

    path: Path
    settings: Settings
    command: str
    results: list[CellResult] = field(default_factory=list)
    arms: dict[str, Any] = field(default_factory=dict)
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
            SettingsChangedError: There is one with other settings.
            DamagedFileError: The file is cut off or was edited.
        """
        if not path.exists():
            return cls(path, settings, command)
        if not resume:
            refuse_earlier(path)
        found = cls.load(path)
        if found.settings != settings:
            raise SettingsChangedError(
                f"{path}: the evaluation there has {found.settings}, not {settings}; resume "
                "it with the same settings, or choose another file"
            )
        if command not in found.command.splitlines():
            found.command += f"\n{command}"
        return found

    @classmethod
    def load(cls, path: Path) -> Evaluation:
        """Read an evaluation.

        Raises:
            DamagedFileError: The file is cut off, was edited, or is something else.
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
            data["arms"],
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
                "arms": self.arms,
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

        Raises:
            SettingsChangedError: An arm that is there already was another change.
            ValueError: A text is too short for a cell, or the model has too few positions.
        """
        self._name_arms(arms)
        for cell in cells:
            missing = {arm: arms[arm] for arm in arms if self.find(arm, cell) is None}
            if not missing:
                continue
            # The same for all arms, so that differences are of pairs.
            ask = self._questions(model, tokenizer, texts, cell)
            for arm, change in missing.items():
                self.results.append(
                    self._known(arm, cell)
                    or _asked(ask, model, arm, change, partial(on_progress, arm, cell))
                )
                self.save()

    def _known(self, arm: str, cell: Cell) -> CellResult | None:
        """What another arm that does the same made of a cell; an empty calibration does nothing."""
        same = (name for name, change in self.arms.items() if change == self.arms[arm])
        found = next((r for name in same if (r := self.find(name, cell)) is not None), None)
        return None if found is None else replace(found, arm=arm)

    def _name_arms(self, arms: Mapping[str, Change]) -> None:
        for name, change in arms.items():
            plain = description(change)
            if self.arms.setdefault(name, plain) != plain:
                raise SettingsChangedError(
                    f"{self.path}: {name!r} there is another change of the model than the one "
                    "given now; give it another name, or choose another file"
                )

    def _questions(
        self, model: PreTrainedModel, tokenizer: Tokenizer, texts: Sequence[str], cell: Cell
    ) -> _Ask:
        """What asks the model all of a cell, drawn once."""
        settings = self.settings
        if cell.task == "text":
            drawn = windows(tokenizer, texts, cell.length, settings.windows)
            check_positions(model, [len(window.ids) for window in drawn])
            return partial(_read_windows, model, cell, drawn)
        asked = questions(
            cell,
            tokenizer,
            texts,
            count=settings.questions,
            contexts=settings.contexts,
            seed=settings.seed,
        )
        check_positions(model, [len(each.ids) + len(each.answer_ids) - 1 for each in asked])
        return partial(_ask_questions, model, cell, asked)


_Say = Callable[[int, int], None]
_Ask = Callable[[str, _Say], CellResult]


def description(change: Change) -> dict[str, Any] | None:
    """What is done to a model, as plain data: without how it was found."""
    if change is None:
        return None
    if isinstance(change, Calibration):
        return {"layers": change.to_dict()["layers"]} if change.layers else None
    return change.to_dict()


def _asked(
    ask: _Ask, model: PreTrainedModel, arm: str, change: Change, on_progress: _Say
) -> CellResult:
    with nullcontext() if change is None else sharpmax.sharpen(model, change):
        return ask(arm, on_progress)


def check_positions(model: PreTrainedModel, sizes: Sequence[int]) -> None:
    """Refuse what is longer than the model can read.

    Raises:
        ValueError: Saying how many tokens it can.
    """
    limit = positions(model)
    if limit is not None and max(sizes) > limit:
        raise ValueError(
            f"lengths: expected at most the {limit:,} positions of {type(model).__name__}, got "
            f"{max(sizes):,} tokens with the answer; leave the longer ones out"
        )


def check_cells(
    model: PreTrainedModel, tokenizer: Tokenizer, texts: Sequence[str], cells: Sequence[Cell]
) -> None:
    """See before the work whether all cells can be asked: that takes hours, and this does not.

    Raises:
        ValueError: A text or a length is too short, or the model has too few positions.
    """
    longest = max(cell.length for cell in cells)
    check_positions(model, [longest])
    # Long texts take long to encode, and what is asked about needs no more than this.
    texts = [text[: 64 * longest] for text in texts]
    for cell in cells:
        if cell.task == "text":
            windows(tokenizer, texts, cell.length, count=1)
            continue
        # Two contexts, twice: all wordings of a cell.
        asked = questions(cell, tokenizer, texts, count=4, contexts=2, seed=0)
        check_positions(model, [len(each.ids) + len(each.answer_ids) - 1 for each in asked])


def _read_windows(
    model: PreTrainedModel, cell: Cell, drawn: Sequence[Window], arm: str, on_progress: _Say
) -> CellResult:
    values: list[float] = []
    with torch.no_grad():
        for window in drawn:
            values += text_loss(model, [window]).tolist()
            on_progress(len(values), len(drawn))
    contexts = tuple(window.context for window in drawn)
    return CellResult(arm, cell.task, cell.length, cell.wording, tuple(values), (), contexts)


def _ask_questions(
    model: PreTrainedModel, cell: Cell, asked: Sequence[Question], arm: str, on_progress: _Say
) -> CellResult:
    answers = answer(model, asked, on_progress)
    return CellResult(
        arm, cell.task, cell.length, cell.wording,
        values=tuple(float(each.exact) for each in answers),
        log_probabilities=tuple(each.log_probability for each in answers),
        contexts=tuple(question.context for question in asked),
    )  # fmt: skip
