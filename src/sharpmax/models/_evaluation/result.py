"""The record of an evaluation: the result of every arm on every cell."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import Any, ClassVar

import numpy as np

from sharpmax._files import SettingsChangedError, machine, typed_fields, versions
from sharpmax._resampling import clustered_interval
from sharpmax._settings import METRIC, TASKS, WORDINGS, EvaluationSettings, Task, Wording
from sharpmax.models._calibration.result import Calibration
from sharpmax.models._evaluation.arms import Change, describe
from sharpmax.models._evaluation.cells import Cell
from sharpmax.models._evaluation.verdict import Verdict, judge
from sharpmax.models._saved import Saved


@dataclass(frozen=True)
class CellResult:
    """The result of one arm on one cell.

    Attributes:
        arm: Name of the arm.
        task: Task of the cell.
        length: Length of the cell.
        wording: Wording of the cell.
        values: One value per question, 1 for an exact answer and 0 for any other; for text one
            value per window, the loss in nats per token; for a metric one value per item.
        log_probabilities: Log-probability of each answer, in nats; empty for text and metrics.
        contexts: The context of each value.
    """

    arm: str
    task: Task
    length: int
    wording: Wording
    values: tuple[float, ...]
    log_probabilities: tuple[float, ...]
    contexts: tuple[int, ...]

    def __post_init__(self) -> None:
        count = len(self.values)
        if (
            not count
            or len(self.contexts) != count
            or len(self.log_probabilities) not in (0, count)
        ):
            raise ValueError("values: expected some, and as many contexts and log-probabilities")

    @property
    def cell(self) -> Cell:
        """The cell."""
        return Cell(self.task, self.length, self.wording)

    @property
    def mean(self) -> float:
        """The accuracy, or the mean loss."""
        return float(np.mean(self.values))

    @cached_property
    def interval(self) -> tuple[float, float]:
        """The 95% interval of the mean, from resampled contexts."""
        return clustered_interval(self.values, self.contexts)

    def less(self, other: CellResult) -> tuple[float, tuple[float, float]]:
        """Subtract the result of another arm on the same cell.

        Returns:
            The mean of the paired differences, and its 95% interval.
        """
        if (self.cell, self.contexts) != (other.cell, other.contexts):
            raise ValueError(f"other: expected a result of {self.cell}, got {other.cell}")
        differences = np.subtract(self.values, other.values)
        return float(differences.mean()), clustered_interval(differences.tolist(), self.contexts)


@dataclass
class Evaluation(Saved):
    """How a model answers, with and without changes. Made by `sharpmax.evaluate`.

    Attributes:
        settings: What all cells have in common.
        command: The commands that produced it, one per line; may be empty.
        results: One result per arm and cell.
        arms: What is done to the model in each arm, as plain data; None for the plain model.
        calibrations: The calibrations among the arms, by name.
        versions: Versions of the software.
        machine: Kind of machine.
    """

    FORMAT: ClassVar = "evaluation of a model, format 1"

    settings: EvaluationSettings
    command: str = ""
    results: list[CellResult] = field(default_factory=list)
    arms: dict[str, Any] = field(default_factory=dict)
    calibrations: dict[str, Calibration] = field(default_factory=dict)
    versions: dict[str, str] = field(
        default_factory=lambda: versions(("numpy", "torch", "transformers"))
    )
    machine: dict[str, Any] = field(default_factory=machine)

    def find(self, arm: str, cell: Cell) -> CellResult | None:
        """Return the result of an arm on a cell; None if there is none yet."""
        return next((r for r in self.results if r.arm == arm and r.cell == cell), None)

    def equal(self, arm: str, cell: Cell) -> CellResult | None:
        """Return the result of an arm that does the same, as an empty calibration and none do."""
        same = (name for name, change in self.arms.items() if change == self.arms[arm])
        found = next((r for name in same if (r := self.find(name, cell)) is not None), None)
        return None if found is None else replace(found, arm=arm)

    def add_arms(self, arms: Mapping[str, Change]) -> None:
        """Add arms by name; refuse another change under the name of an arm."""
        for name, change in arms.items():
            plain = describe(change)
            if self.arms.setdefault(name, plain) != plain:
                raise SettingsChangedError(
                    f"{name!r}: the evaluation has another change under this name; give it another "
                    "name, or start a new evaluation"
                )
            if isinstance(change, Calibration) and "shuffled" not in change.notes:
                self.calibrations[name] = change

    def verdict(
        self,
        calibrations: Mapping[str, Calibration] | None = None,
        tasks: Collection[str] | None = None,
    ) -> Verdict:
        """Judge whether a calibration helps, and whether sharpening is the reason.

        Args:
            calibrations: Calibrations by the names of their arms; by default those of the
                evaluation.
            tasks: The tasks to compare; by default those that the calibrations were fitted on.
        """
        return judge(self, self.calibrations if calibrations is None else calibrations, tasks)

    def summary(self) -> str:
        """Return a table of accuracies and losses, and the verdict if there are calibrations."""
        settings = self.settings
        lengths = sorted({result.length for result in self.results})
        rows = [["task", "arm", *(f"{length:,}" for length in lengths)]]
        kinds = {(result.task, result.wording) for result in self.results}
        for task, wording in product((*TASKS, METRIC), WORDINGS):
            if (task, wording) in kinds:
                name = f"{task}, unseen wording" if wording == "unseen" else task
                for arm in self.arms:
                    found = [self.find(arm, Cell(task, length, wording)) for length in lengths]
                    rows.append([name, arm, *map(_shown, found)])
                    name = ""
        task_width, arm_width, *widths = (max(map(len, each)) for each in zip(*rows, strict=True))
        size = f"{settings.questions} questions in {settings.contexts} contexts"
        size, unit = f"{size}, or {settings.windows} windows", "in tokens; for text the loss"
        unit = f"accuracy by length {unit} in nats per token"
        by_metric = any(result.task == METRIC for result in self.results)
        if by_metric:
            size, unit = f"{settings.questions} items", "metric by length; more is better"
        lines = [f"{settings.model} ({settings.dtype}): {size}, per cell", unit, ""]
        for name, arm, *shown in rows:
            right = (value.rjust(width) for value, width in zip(shown, widths, strict=True))
            lines.append("  ".join([name.ljust(task_width), arm.ljust(arm_width), *right]).rstrip())
        if self.calibrations and not by_metric:
            lines += ["", self.verdict().summary()]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return the evaluation as plain data, with means and intervals beside the values."""
        results = [
            {**asdict(each), "mean": each.mean, "interval": each.interval} for each in self.results
        ]
        calibrations = {name: each.to_dict() for name, each in self.calibrations.items()}
        every = {**vars(self), "settings": asdict(self.settings)}
        return {**every, "calibrations": calibrations, "results": results}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Evaluation:
        """Make an evaluation from what `to_dict` returned.

        Raises:
            KeyError, TypeError, ValueError: The data do not fit.
        """
        names = CellResult.__dataclass_fields__
        results = [{name: entry[name] for name in names} for entry in data["results"]]
        # Files of earlier versions have no calibrations.
        data = {"calibrations": {}, **data, "results": results}
        made: Evaluation = typed_fields(data, cls)
        return made


def _shown(result: CellResult | None) -> str:
    if result is None:
        return ""
    return f"{result.mean:.3f}" if result.task in ("text", METRIC) else f"{result.mean:.1%}"
