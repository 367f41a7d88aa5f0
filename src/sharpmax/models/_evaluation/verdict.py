"""Was it the sharpening? Paired differences between arms on the questions of the test."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from sharpmax._resampling import clustered_interval
from sharpmax.models import Calibration
from sharpmax.models._evaluation.changes import certain_gain, changed_heads, kind
from sharpmax.models._evaluation.evaluation import CellResult, Evaluation

__all__ = [
    "PLAIN",
    "Case",
    "Comparison",
    "Verdict",
    "compare",
    "fitted_tasks",
    "judge",
    "surprise",
]

PLAIN = "plain"
"""The arm of the model as it is."""

Case = Literal[
    "nothing", "sharpening", "flattening", "both", "any", "gain", "undecided", "no control"
]


@dataclass(frozen=True)
class Comparison:
    """Two arms on the same questions.

    Attributes:
        arm: The one.
        other: The other.
        share: Of the questions that the one answers right; of text its loss, in nats a token.
        other_share: The same of the other.
        interval: Of the difference, 95%, from resampled contexts.
        questions: How many; of text the number of windows.
        contexts: How many of them are independent.
        of_text: Whether it is text, where less is better.
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
        """By how much the one is better."""
        more = self.share - self.other_share
        return -more if self.of_text else more

    @property
    def better(self) -> bool:
        """Whether the one is better for certain: all of the interval is above 0."""
        return self.interval[0] > 0


@dataclass(frozen=True)
class Verdict:
    """Whether sharpening did it, and what says so.

    Attributes:
        case: Which of the cases that `judge` tells apart.
        subject: The arm that the verdict is about; None where nothing held.
        temperature: The arm that changes temperatures alone, if there is one.
        gain: The arm that changes gains alone, if there is one.
        both: The arm that changes both, if there is one.
        against_plain: Each of these three against the model as it is.
        against_gain: Temperatures alone against gains alone.
        beyond: Both against temperatures alone, and against gains alone.
        sharper: Heads that the temperatures of the subject make sharper.
        flatter: Heads that they make less sharp.
        tasks: Whose questions were compared.
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


def judge(
    evaluation: Evaluation,
    calibrations: Mapping[str, Calibration],
    tasks: Collection[str] | None = None,
) -> Verdict:
    """Say whether sharpening, and not just any calibration, made a model better.

    Compared are, on all questions of the fitted tasks, at every length and in every wording, or on
    text where that was fitted: the model as it is, the best calibration that changes temperatures
    alone, the best that changes gains alone, and the best that changes both; best by the second
    part of the data, which the questions have no part in. An arm is better than another if the
    whole 95% interval of the paired difference is above 0, with contexts resampled. An arm helps if
    it is better than the model as it is. The first of these cases holds that fits:

    - "nothing": no calibration helps.
    - "no control": there is none of temperatures alone, or none of gains alone, to compare with.
    - "both": both together help, and are better than either alone.
    - "sharpening": temperatures alone help and are better than gains alone.
    - "flattening": the same, but more heads have become less sharp than sharper.
    - "gain": gains alone help and are better than temperatures alone.
    - "any": temperatures alone and gains alone help, and neither is better.
    - "undecided": some of them help, but what is between them may be chance.

    Args:
        evaluation: With the results of the arms, and those of "plain".
        calibrations: By the names of their arms.
        tasks: The fitted ones; None takes those that the calibrations name.
    """
    tasks = fitted_tasks(evaluation, calibrations) if tasks is None else tuple(tasks)
    chosen = {of: _best(calibrations, of) for of in ("temperature", "gain", "both")}
    names = [name for name in chosen.values() if name is not None]
    found = {name: compare(evaluation, name, PLAIN, tasks) for name in names}
    against_plain = {name: each for name, each in found.items() if each is not None}
    warm, loud, both = chosen.values()
    pair = compare(evaluation, warm, loud, tasks)
    alone = (compare(evaluation, both, each, tasks) for each in (warm, loud))
    beyond = tuple(each for each in alone if each is not None)
    case, subject = _case(against_plain, warm, loud, both, pair, beyond)
    # Of an arm without temperatures nothing is counted.
    changes = changed_heads(calibrations[subject]) if subject is not None else []
    sharper, flatter = sum(c.sharper for c in changes), sum(c.flatter for c in changes)
    if case == "sharpening" and flatter > sharper:
        case = "flattening"
    return Verdict(
        case, subject, warm, loud, both, against_plain, pair, beyond, sharper, flatter, tasks
    )


def compare(
    evaluation: Evaluation,
    arm: str | None,
    other: str | None,
    tasks: Collection[str],
    *,
    wording: str | None = None,
) -> Comparison | None:
    """Two arms on all cells of some tasks that both have answered.

    Questions about one stretch of text are not independent, whatever is hidden in it and however
    long the prompt is: the same seed draws stretches that begin nearby. They count as one context.

    Args:
        evaluation: With the results.
        arm: The one.
        other: The other.
        tasks: Which tasks. Text is compared where it is the only one: losses are no shares.
        wording: Of the questions; None takes all.

    Returns:
        The comparison; None where there is nothing to compare.
    """
    pairs = _pairs(evaluation, arm, other, tasks, wording)
    if not pairs:
        return None
    clusters = _clusters([mine for mine, _ in pairs])
    ours = np.concatenate([mine.values for mine, _ in pairs])
    theirs = np.concatenate([each.values for _, each in pairs])
    of_text = set(tasks) == {"text"}
    better = theirs - ours if of_text else ours - theirs
    return Comparison(
        arm=str(arm),
        other=str(other),
        share=float(ours.mean()),
        other_share=float(theirs.mean()),
        interval=clustered_interval(better.tolist(), clusters),
        questions=len(ours),
        contexts=len(set(clusters)),
        of_text=of_text,
    )


def surprise(
    evaluation: Evaluation, arm: str, other: str, tasks: Collection[str]
) -> tuple[float, tuple[float, float]] | None:
    """How much more an arm is surprised by right answers than another, and the interval of that.

    In nats an answer, minus the logarithm of its probability: what is fitted, and what tells arms
    apart that answer nothing right, or everything. Text asks for no answers.
    """
    pairs = _pairs(evaluation, arm, other, tasks)
    if not pairs or set(tasks) == {"text"}:
        return None
    change = np.concatenate(
        [np.subtract(theirs.log_probabilities, mine.log_probabilities) for mine, theirs in pairs]
    )
    clusters = _clusters([mine for mine, _ in pairs])
    return float(change.mean()), clustered_interval(change.tolist(), clusters)


def fitted_tasks(
    evaluation: Evaluation, calibrations: Mapping[str, Calibration]
) -> tuple[str, ...]:
    """The tasks that calibrations were fitted on, as far as they name them; else all tasks."""
    every = dict.fromkeys(result.task for result in evaluation.results)
    asked = [task for task in every if task != "text"]
    named = {
        task
        for calibration in calibrations.values()
        for task in calibration.notes.get("settings", {}).get("tasks", ())
    }
    if named == {"text"} and "text" in every:
        return ("text",)
    return tuple(task for task in asked if task in named) or tuple(asked)


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
        if mine.task != "text" or set(tasks) == {"text"}
        if wording in (None, mine.wording)
        for theirs in evaluation.results
        if theirs.arm == other and theirs.cell == mine.cell
    ]


def _clusters(results: Sequence[CellResult]) -> list[Hashable]:
    """What each of the questions is about; those about the same are not independent."""
    found: list[Hashable] = []
    for result in results:
        # Sequences of numbers have no text around them, and are drawn by themselves.
        around = "numbers" if result.task == "maximum" else "text"
        found += [(around, context) for context in result.contexts]
    return found


def _best(calibrations: Mapping[str, Calibration], of: str) -> str | None:
    """The calibration of a kind whose gain is largest for certain, by the second part."""

    def gain(name: str) -> float:
        found = certain_gain(calibrations[name])
        return -np.inf if found is None else found

    names = [name for name, calibration in calibrations.items() if kind(calibration) == of]
    return max(names, key=gain, default=None)


def _case(
    against_plain: Mapping[str, Comparison],
    warm: str | None,
    loud: str | None,
    both: str | None,
    pair: Comparison | None,
    beyond: Sequence[Comparison],
) -> tuple[Case, str | None]:
    """The case, as far as differences tell it, and the arm that it is about."""
    helping = {name: each for name, each in against_plain.items() if each.better}
    if not helping:
        return "nothing", None
    most = max(helping, key=lambda name: helping[name].difference)
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
