"""A calibration study: fit several families on the same data, choose one, and compare them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from sharpmax._files import check_settings, refuse_earlier
from sharpmax._settings import CalibrationSettings, only_text
from sharpmax.models._calibration.calibrate import Stage, calibrate
from sharpmax.models._calibration.objectives import Splits, Window
from sharpmax.models._calibration.parameters import FamilyName
from sharpmax.models._calibration.result import Calibration
from sharpmax.models._calibration.shared import Shared
from sharpmax.models._evaluation.arms import Change, arms_of
from sharpmax.models._evaluation.cells import windows
from sharpmax.models._evaluation.heads import best
from sharpmax.models._evaluation.splits import question_splits
from sharpmax.models._share import Share
from sharpmax.tasks import Tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Settings that go to `calibrate` as they are.
_OPTIONS = (
    "tolerance", "steps", "batch", "text_batch", "text_weight", "learning_rate", "shrink", "seed",
    "check_every",
)  # fmt: skip


class Study:
    """A calibration study in a folder, which can be interrupted and resumed.

    The folder holds `families/NAME.json`, one calibration per family; `calibration.json`, the best
    of them; and `evaluation.json`, which grows cell by cell. Without `resume`, a folder that holds
    a study is refused; with it, one with other settings. Of several ranks, the first reads and
    writes the files.
    """

    def __init__(
        self,
        folder: Path,
        settings: CalibrationSettings,
        command: str,
        *,
        resume: bool = False,
        share: Share | None = None,
    ) -> None:
        self._share = share or Share()
        self.folder = folder
        self.settings = settings
        self.command = command
        self.evaluation_path = folder / "evaluation.json"
        self._drawn: tuple[PreTrainedModel, Splits[str], dict[str, Any], Shared] | None = None
        self.calibrations = self._share.once(lambda: self._found(resume))

    def _found(self, resume: bool) -> dict[str, Calibration]:
        """Read the calibrations in the folder."""
        files = sorted((self.folder / "families").glob("*.json"))
        if not resume and (files or self.evaluation_path.exists()):
            refuse_earlier(self.folder)
        found = {}
        for file in files:
            calibration = Calibration.load(file)
            # Earlier versions had one objective, one precision and no checks, and stored none.
            before = {
                "objective": "answers",
                "fit_dtype": None,
                "check_every": 0,
                **calibration.notes.get("settings", {}),
            }
            check_settings(before, self.settings.to_dict(), file)
            found[file.stem] = calibration
        return found

    def fit(
        self,
        family: FamilyName,
        model: PreTrainedModel,
        tokenizer: Tokenizer,
        texts: Splits[str],
        on_progress: Callable[[Stage], None] = lambda _: None,
    ) -> Calibration:
        """Calibrate a model with a family and write the file, unless it exists."""
        known = self.calibrations.get(family)
        if known is not None:
            known.check(model)
            return known
        settings = self.settings
        data, shared = self._data(model, tokenizer, texts)
        options: dict[str, Any] = {name: getattr(settings, name) for name in _OPTIONS}
        # Families of the entropy never flatten.
        flatten = settings.flatten and "entropy" not in family
        fit_dtype = None if settings.fit_dtype is None else getattr(torch, settings.fit_dtype)
        found = calibrate(
            model, family=family, flatten=flatten, fit_dtype=fit_dtype, shared=shared,
            on_progress=on_progress, **data, **options,
        )  # fmt: skip
        notes = {**found.notes, "settings": settings.to_dict(), "command": self.command}
        found = replace(found, notes=notes)
        if self._share.first:
            found.save(self.folder / "families" / f"{family}.json")
        self.calibrations[family] = found
        return found

    def _data(
        self, model: PreTrainedModel, tokenizer: Tokenizer, texts: Splits[str]
    ) -> tuple[dict[str, Any], Shared]:
        """Return what all families are fitted on, drawn once for the same model and texts."""
        if self._drawn is None or self._drawn[0] is not model or self._drawn[1] is not texts:
            settings = self.settings
            passages, length = vars(texts).values(), max(settings.lengths)
            ordinary: Splits[Window] = Splits(
                *(
                    windows(tokenizer, part, length, count)
                    for part, count in zip(passages, settings.windows, strict=True)
                )
            )
            data: dict[str, Any] = {"data": ordinary, "objective": "text", "text": None}
            if not only_text(settings.tasks):
                questions = question_splits(
                    tokenizer, texts, settings.tasks, settings.lengths,
                    contexts=settings.contexts, seed=settings.seed,
                )  # fmt: skip
                data = {"data": questions, "objective": settings.objective, "text": ordinary}
            self._drawn = (model, texts, data, Shared())
        return self._drawn[2:]

    def choose(self, families: Sequence[str]) -> Calibration:
        """Write the best of some families, or the first, empty, as `calibration.json`."""
        name = best({family: self.calibrations[family] for family in families})
        chosen = self.calibrations[name or families[0]]
        if self._share.first:
            chosen.save(self.folder / "calibration.json")
        return chosen

    def arms(self, families: Sequence[str], controls: Sequence[str] = ()) -> dict[str, Change]:
        """Collect families, their controls and the plain model, by name.

        Families among `controls` are never shuffled.
        """
        found = arms_of({family: self.calibrations[family] for family in families})
        return found | {family: self.calibrations[family] for family in controls}
