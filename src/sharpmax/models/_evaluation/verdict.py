"""Judge whether sharpening helps: paired differences between arms on the test questions."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np

from sharpmax._resampling import clustered_interval
from sharpmax._settings import PLAIN, only_text
from sharpmax.models._calibration.result import Calibration
from sharpmax.models._evaluation.heads import Kind, best, changed_heads, kind

if TYPE_CHECKING:
    from sharpmax.models._evaluation.result import CellResult, Evaluation

Case = Literal[
    "nothing", "no control", "both", "sharpening", "flattening", "gain", "any", "undecided"
]

CASES: dict[Case, str] = {
    "nothing": "no calibration improves on the plain model",
    "no control": "a calibration helps, but there is none of temperatures alone or none of gains "
    "alone to compare with",
    "both": "temperatures and gains together improve on the plain model and on either alone",
    "sharpening": "temperatures alone improve on the plain model and on gains alone",
    "flattening": "temperatures alone improve on the plain model and on gains alone, and flatten "
    "more heads than they sharpen",
    "gain": "gains alone improve on the plain model and on temperatures alone",
    "any": "temperatures alone and gains alone both improve on the plain model, and neither is "
    "better",
    "undecided": "a calibration helps, but its difference from the others may be chance",
}
"""The cases that a verdict distinguishes; the first that fits holds."""


@dataclass(frozen=True)
class Comparison:
    """Two arms on the same questions.

    Attributes:
        arm: The first arm.
        other: The second arm.
        share: Accuracy of the first arm; for text its loss, in nats per token.
        other_share: The same for the second arm.
        interval: 95% interval of the improvement, from resampled contexts.
        questions: Number of questions; for text the number of windows.
        contexts: Number of independent contexts.
        of_text: Whether the comparison is on text, where less is better.
    """

    arm: str
    other: str
    share: float
    other_share: float
    interval: tuple[float, float]
    questions: int
    contexts: int
    of_text: bool = False

    @property
    def difference(self) -> float:
        """The improvement of the first arm over the second."""
        more = self.share - self.other_share
        return -more if self.of_text else more

    @property
    def shown(self) -> tuple[float, float, float]:
        """The difference and its interval, in percentage points; for text, as a change in loss."""
        low, high = self.interval
        if self.of_text:
            return -self.difference, -high, -low  # a loss falls if it improves
        return 100 * self.difference, 100 * low, 100 * high

    @property
    def better(self) -> bool:
        """Whether the first arm is significantly better: the whole interval is above 0."""
        return self.interval[0] > 0


@dataclass(frozen=True)
class Verdict:
    """Whether a calibration helps, and whether sharpening is the reason.

    Compared are, on all questions of the fitted tasks or on text if that was fitted: the plain
    model, the best calibration of temperatures alone, the best of gains alone, and the best of
    both. The best is chosen by the second split of the data of the calibration, not by these
    questions. An arm is better than another if the whole 95% interval of the paired difference is
    above 0. An arm helps if it is better than the plain model.

    Attributes:
        case: The first of `CASES` that fits.
        subject: The arm that the verdict is about; None if nothing helps.
        temperature: The arm that changes temperatures alone, if there is one.
        gain: The arm that changes gains alone, if there is one.
        both: The arm that changes both, if there is one.
        against_plain: Each of these three against the plain model.
        against_gain: Temperatures alone against gains alone.
        beyond: Both against temperatures alone, and against gains alone.
        sharper: Number of heads that the subject sharpens.
        flatter: Number of heads that it flattens.
        tasks: The tasks that are compared.
    """

    case: Case
    subject: str | None
    temperature: str | None
    gain: str | None
    both: str | None
    against_plain: Mapping[str, Comparison] = field(default_factory=dict)
    against_gain: Comparison | None = None
    beyond: tuple[Comparison, ...] = ()
    sharper: int = 0
    flatter: int = 0
    tasks: tuple[str, ...] = ()

    @property
    def of_text(self) -> bool:
        """Whether losses on text are compared, where less is better."""
        return only_text(self.tasks)

    def summary(self) -> str:
        """Return the verdict in one line, followed by the comparisons behind it."""
        subject = "" if self.subject is None else f" ({self.subject})"
        lines = [f"verdict: {self.case}{subject}: {CASES[self.case]}"]
        pairs = [*self.against_plain.values(), self.against_gain, *self.beyond]
        return "\n".join(lines + [_line(pair) for pair in pairs if pair is not None])


def judge(
    evaluation: Evaluation,
    calibrations: Mapping[str, Calibration],
    tasks: Collection[str] | None = None,
) -> Verdict:
    """Judge whether a calibration helps, by the rules of `Verdict`, on the fitted tasks."""
    tasks = fitted_tasks(evaluation, calibrations) if tasks is None else tuple(tasks)
    warm, loud, both = (_best(calibrations, of) for of in ("temperature", "gain", "both"))
    found = [compare(evaluation, name, PLAIN, tasks) for name in (warm, loud, both)]
    plain = {each.arm: each for each in found if each is not None}
    pair = compare(evaluation, warm, loud, tasks)
    alone = (compare(evaluation, both, each, tasks) for each in (warm, loud))
    beyond = tuple(each for each in alone if each is not None)
    case, subject = _case(plain, warm, loud, both, pair, beyond)
    changes = changed_heads(calibrations[subject]) if subject is not None else []
    sharper, flatter = sum(c.sharper for c in changes), sum(c.flatter for c in changes)
    if case == "sharpening" and flatter > sharper:
        case = "flattening"
    return Verdict(case, subject, warm, loud, both, plain, pair, beyond, sharper, flatter, tasks)


def compare(
    evaluation: Evaluation,
    arm: str | None,
    other: str | None,
    tasks: Collection[str],
    *,
    wording: str | None = None,
) -> Comparison | None:
    """Compare two arms on all cells of some tasks, or of a wording, that both have answered.

    Text is compared only if it is the only task: a loss is no accuracy.
    """
    pairs = _pairs(evaluation, arm, other, tasks, wording)
    if not pairs:
        return None
    clusters = _clusters(pairs)
    ours = np.concatenate([mine.values for mine, _ in pairs])
    theirs = np.concatenate([each.values for _, each in pairs])
    of_text = only_text(tasks)
    better = theirs - ours if of_text else ours - theirs
    interval = clustered_interval(better.tolist(), clusters)
    return Comparison(
        str(arm), str(other), float(ours.mean()), float(theirs.mean()), interval,
        questions=len(ours), contexts=len(set(clusters)), of_text=of_text,
    )  # fmt: skip


def surprise(
    evaluation: Evaluation, arm: str, other: str, tasks: Collection[str]
) -> tuple[float, tuple[float, float]] | None:
    """Compare the negative log-probability of correct answers in two arms, in nats per answer.

    This is what a fit minimises. It distinguishes arms that answer nothing, or everything,
    correctly. Returns the mean difference with its 95% interval; None for text.
    """
    pairs = _pairs(evaluation, arm, other, tasks)
    if not pairs or only_text(tasks):
        return None
    change = np.concatenate(
        [np.subtract(theirs.log_probabilities, mine.log_probabilities) for mine, theirs in pairs]
    )
    return float(change.mean()), clustered_interval(change.tolist(), _clusters(pairs))


def fitted_tasks(
    evaluation: Evaluation, calibrations: Mapping[str, Calibration]
) -> tuple[str, ...]:
    """Find the evaluated tasks that calibrations were fitted on; all tasks if they name none."""
    every = dict.fromkeys(result.task for result in evaluation.results)
    asked = [task for task in every if task != "text"]
    fitted = {
        task
        for calibration in calibrations.values()
        for task in calibration.notes.get("settings", {}).get("tasks", ())
    }
    if only_text(fitted) and "text" in every:
        return ("text",)
    return tuple(task for task in asked if task in fitted) or tuple(asked)


def _pairs(
    evaluation: Evaluation,
    arm: str | None,
    other: str | None,
    tasks: Collection[str],
    wording: str | None = None,
) -> list[tuple[CellResult, CellResult]]:
    """Results of two arms on the same cells."""
    return [
        (mine, theirs)
        for mine in evaluation.results
        if mine.arm == arm and mine.task in tasks
        if mine.task != "text" or only_text(tasks)
        if wording in (None, mine.wording)
        for theirs in evaluation.results
        if theirs.arm == other and theirs.cell == mine.cell
    ]


def _clusters(pairs: Sequence[tuple[CellResult, CellResult]]) -> list[Hashable]:
    """The context of each question, over all cells.

    Questions about one passage are not independent, whatever is hidden in it and however long the
    prompt is: the same seed draws passages that start nearby. They count as one context. Sequences
    of numbers have no text around them, and are drawn independently.
    """
    return [(mine.task == "maximum", context) for mine, _ in pairs for context in mine.contexts]


def _line(found: Comparison) -> str:
    digits, unit = (3, "nats per token") if found.of_text else (1, "percentage points")
    difference, low, high = (f"{each:+.{digits}f}" for each in found.shown)
    told = f"{difference} {unit}, 95% interval {low} to {high}"
    return f"{found.arm} against {found.other}: {told}"


def _best(calibrations: Mapping[str, Calibration], of: Kind) -> str | None:
    own = {name: each for name, each in calibrations.items() if kind(each) == of}
    return best(own) or next(iter(own), None)


def _case(
    plain: Mapping[str, Comparison],
    warm: str | None,
    loud: str | None,
    both: str | None,
    pair: Comparison | None,
    beyond: Sequence[Comparison],
) -> tuple[Case, str | None]:
    """The case, as far as differences show it, and the arm that it is about."""
    helping = {name: each.difference for name, each in plain.items() if each.better}
    if not helping:
        return "nothing", None
    most = max(helping, key=lambda name: helping[name])
    if pair is None:
        return "no control", most
    if both in helping and len(beyond) == 2 and all(each.better for each in beyond):
        return "both", both
    if warm in helping and pair.better:
        return "sharpening", warm
    if loud in helping and pair.interval[1] < 0:
        return "gain", loud
    if warm in helping and loud in helping:
        return "any", warm
    return "undecided", most
