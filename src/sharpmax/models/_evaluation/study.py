"""The whole experiment: fit every family on the same data, choose, and compare with controls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from transformers import PreTrainedModel

from sharpmax._files import check_settings, refuse_earlier
from sharpmax.models import Calibration, Splits, Stage, Window, calibrate
from sharpmax.models._calibration.calibrate import TEXT_WEIGHT, TOLERANCE
from sharpmax.models._calibration.parameters import FamilyName
from sharpmax.models._evaluation import evaluation as measuring
from sharpmax.models._evaluation.arms import Change, control_arms
from sharpmax.models._evaluation.cells import Task, check_texts, fitting_splits, windows
from sharpmax.models._evaluation.changes import certain_gain
from sharpmax.models._evaluation.evaluation import Evaluation
from sharpmax.models._evaluation.verdict import PLAIN
from sharpmax.tasks import Tokenizer

__all__ = ["Settings", "Study", "arms_of", "best", "check_parts", "split_texts"]

_FIT_SHARE, _KEPT_SHARE = 0.7, 0.75

_PARTS = {"fit": "fitting", "select": "choosing heads", "test": "the test"}


@dataclass(frozen=True)
class Settings:
    """What all families of a run have in common.

    Attributes:
        model: Its name, as results show it.
        texts: Names of the texts for fitting and choosing, with their sizes in characters.
        test_texts: The same of those for the test; empty where the ends of the others are.
        tasks: What the objective asks; "text" alone is the loss of the next token.
        objective: What heads are chosen by: "answers", nats that right answers take, or "exact",
            the share of wrong ones.
        lengths: Tokens of the prompts.
        contexts: Contexts of each task and length, for fitting, choosing and the test.
        windows: Windows of ordinary text, for the same, each as long as the longest prompt.
        tolerance: Nats by which the loss on ordinary text may rise.
        flatten: Whether heads may become less sharp, in families that can.
        steps: Of a fit.
        batch: Contexts in a step.
        text_batch: Windows in a step.
        text_weight: Of their drift in the fit, and of their loss in the choice of heads.
        learning_rate: Of Adam.
        shrink: Weight of the sum of absolute values.
        seed: Of the drawing and of the order of the data.
        dtype: Of the numbers that the model computes with.
    """

    model: str
    texts: dict[str, int]
    test_texts: dict[str, int]
    tasks: tuple[Task, ...] = ("passkey", "key-value")
    objective: Literal["answers", "exact"] = "answers"
    lengths: tuple[int, ...] = (512, 1024)
    contexts: tuple[int, int, int] = (32, 24, 16)
    windows: tuple[int, int, int] = (32, 24, 16)
    tolerance: float = TOLERANCE
    flatten: bool = False
    steps: int = 60
    batch: int = 4
    text_batch: int = 2
    text_weight: float = TEXT_WEIGHT
    learning_rate: float = 0.03
    shrink: float = 1e-4
    seed: int = 0
    dtype: str = "float32"

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as it comes back from JSON."""
        return {n: list(v) if isinstance(v, tuple) else v for n, v in asdict(self).items()}


class Study:
    """A run in a folder, which can be stopped at any moment and go on.

    The folder holds `families/NAME.json`, a calibration for each family that is done; then
    `calibration.json`, the best of them; and `evaluation.json`, which grows cell by cell.

    Args:
        folder: Where the run is.
        settings: What all families have in common.
        command: How to run this again.
        resume: Go on with what the folder holds; without it a folder that holds a run is refused.

    Raises:
        FileExistsError: The folder holds a run, and `resume` is false.
        SettingsChangedError: The folder holds a run with other settings.
        DamagedFileError: A file in the folder is cut off or was edited.
    """

    def __init__(
        self, folder: Path, settings: Settings, command: str, *, resume: bool = False
    ) -> None:
        self.folder = folder
        self.settings = settings
        self.command = command
        self.calibrations: dict[str, Calibration] = {}
        files = sorted((folder / "families").glob("*.json"))
        if not resume and (files or self.evaluation_path.exists()):
            refuse_earlier(folder)
        for file in files:
            calibration = Calibration.load(file)
            # Runs of earlier versions had one objective.
            before = {"objective": "answers", **calibration.notes.get("settings", {})}
            check_settings(before, settings.to_dict(), file)
            self.calibrations[file.stem] = calibration

    @property
    def evaluation_path(self) -> Path:
        """The file of the results on the test."""
        return self.folder / "evaluation.json"

    def fit(
        self,
        family: FamilyName,
        model: PreTrainedModel,
        tokenizer: Tokenizer,
        texts: Splits[str],
        on_progress: Callable[[Stage], None] = lambda _: None,
    ) -> Calibration:
        """Calibrate a model with a family, unless the folder has it, and write the file.

        Args:
            family: What may change in a head.
            model: The model; it is as it was before afterwards.
            tokenizer: Of the model.
            texts: For each part its own, as `split_texts` makes them.
            on_progress: Called during the work.

        Raises:
            OtherModelError: The folder has a calibration of another model.
            ValueError: A text is too short.
        """
        known = self.calibrations.get(family)
        if known is not None:
            known.check(model)
            return known
        settings = self.settings
        windows = self._windows(tokenizer, texts)
        of_text = settings.tasks == ("text",)
        found = calibrate(
            model,
            windows if of_text else self._questions(tokenizer, texts),
            "text" if of_text else settings.objective,
            # Text that is the objective needs no other guard.
            text=None if of_text else windows,
            tolerance=settings.tolerance,
            family=family,
            # The law of the entropy never flattens.
            flatten=settings.flatten and "entropy" not in family,
            steps=settings.steps,
            batch=settings.batch,
            text_batch=settings.text_batch,
            text_weight=settings.text_weight,
            learning_rate=settings.learning_rate,
            shrink=settings.shrink,
            seed=settings.seed,
            on_progress=on_progress,
        )
        notes = {**found.notes, "settings": settings.to_dict(), "command": self.command}
        found = replace(found, notes=notes)
        found.save(self.folder / "families" / f"{family}.json")
        self.calibrations[family] = found
        return found

    def choose(self, families: Sequence[str]) -> Calibration:
        """Write the best of some families that are done as `calibration.json`.

        Args:
            families: Which; where none of them holds, the first, which is empty then.
        """
        name = best({family: self.calibrations[family] for family in families})
        chosen = self.calibrations[name or families[0]]
        chosen.save(self.folder / "calibration.json")
        return chosen

    def arms(self, families: Sequence[str], controls: Sequence[str] = ()) -> dict[str, Change]:
        """What families that are done are compared with, and they themselves, by name.

        Args:
            families: Which.
            controls: Families that are only compared with: no numbers of theirs are shuffled.
        """
        found = arms_of({family: self.calibrations[family] for family in families})
        return found | {family: self.calibrations[family] for family in controls}

    def evaluation(self, settings: measuring.Settings) -> Evaluation:
        """The comparison of the families, new or going on; its `run` asks what is missing.

        Raises:
            SettingsChangedError: There is one with other settings.
            DamagedFileError: The file is cut off or was edited.
        """
        return Evaluation.open(self.evaluation_path, settings, self.command, resume=True)

    def _questions(self, tokenizer: Tokenizer, texts: Splits[str]) -> Splits[Any]:
        settings = self.settings
        return fitting_splits(
            tokenizer, texts, settings.tasks, settings.lengths,
            contexts=settings.contexts, seed=settings.seed,
        )  # fmt: skip

    def _windows(self, tokenizer: Tokenizer, texts: Splits[str]) -> Splits[Window]:
        length = max(self.settings.lengths)
        return Splits(
            *(
                windows(tokenizer, part, length, count)
                for part, count in zip(vars(texts).values(), self.settings.windows, strict=True)
            )
        )


def arms_of(calibrations: Mapping[str, Calibration], *, controls: bool = True) -> dict[str, Change]:
    """The model as it is, some calibrations, and the controls of the best of them, by name.

    Args:
        calibrations: By name.
        controls: Whether the controls are among the arms.
    """
    if not controls:
        return {PLAIN: None, **calibrations}
    chosen = best(calibrations) or next(iter(calibrations), "")
    every = control_arms(calibrations.get(chosen), chosen)
    return {PLAIN: every.pop(PLAIN), **calibrations, **every}


def best(calibrations: Mapping[str, Calibration]) -> str | None:
    """The one whose gain on the second part of the data is the largest that is certain.

    What raises the loss on ordinary text by more than the tolerance is in no calibration, and the
    test has no part in this.

    Returns:
        Its name; None where none holds.
    """
    gains = {name: certain_gain(calibration) for name, calibration in calibrations.items()}
    held = {name: gain for name, gain in gains.items() if gain is not None}
    return max(held, key=lambda name: held[name], default=None)


def split_texts(texts: Sequence[str], test_texts: Sequence[str] = ()) -> Splits[str]:
    """Three parts of texts that have nothing in common, each a list of stretches.

    Each text is cut into a stretch for fitting, 70 percent, and one for choosing. Without texts for
    the test, the last quarter of each is kept apart for it before.

    Args:
        texts: For fitting and choosing.
        test_texts: For the test; none takes the ends of the others.

    Example:
        >>> split_texts(["a" * 28 + "b" * 12], ["c"])
        Splits(fit=['aaaaaaaaaaaaaaaaaaaaaaaaaaaa'], select=['bbbbbbbbbbbb'], test=['c'])
        >>> [len(part[0]) for part in vars(split_texts(["a" * 40])).values()]
        [21, 9, 10]
    """
    fit, select, test = [], [], list(test_texts)
    for text in texts:
        kept = len(text) if test_texts else round(_KEPT_SHARE * len(text))
        cut = round(_FIT_SHARE * kept)
        fit.append(text[:cut])
        select.append(text[cut:kept])
        if not test_texts:
            test.append(text[kept:])
    return Splits(fit, select, test)


def check_parts(
    tokenizer: Tokenizer,
    texts: Splits[str],
    names: Splits[str],
    lengths: Sequence[int],
    test_lengths: Sequence[int],
) -> None:
    """See before the work whether every stretch is as long as the longest prompt in it.

    Args:
        tokenizer: Of the model.
        texts: As `split_texts` makes them.
        names: Of the texts that these are stretches of, in the same order.
        lengths: Tokens of the prompts for fitting, choosing and the figures of a calibration.
        test_lengths: Tokens of the prompts of the comparison, which is on the third part.

    Raises:
        ValueError: Naming the text, what was expected and what came.
    """
    most = {"fit": max(lengths), "select": max(lengths), "test": max([*lengths, *test_lengths])}
    for part, longest in most.items():
        of_part = dict(zip(getattr(names, part), getattr(texts, part), strict=True))
        check_texts(tokenizer, of_part, longest, f", in its part for {_PARTS[part]}")
