"""Tables of an evaluation: how calibrations and controls score, cell by cell."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from sharpmax._settings import PLAIN, TASKS
from sharpmax.report._page.tables import Table, plain, quoted, signed
from sharpmax.report.calibration.arms import in_order, series_of

if TYPE_CHECKING:
    from sharpmax.models import Calibration, Evaluation, Verdict
    from sharpmax.models._evaluation.result import CellResult
    from sharpmax.models._evaluation.verdict import Comparison

    _Cells = Callable[[Mapping[str, CellResult]], dict[str, str]]

__all__ = ["arms_table", "changes_table", "heads_table", "means_table", "summary_table"]

_Interval = tuple[float, float]

_ANSWERS = (
    "Questions: {tasks}, {size}. Accuracy is over the questions that an arm was asked. Differences"
    " are in percentage points, over the questions that both arms were asked, with 95% intervals"
    " from resampled contexts. Answer loss: change in negative log-likelihood of the correct"
    " answer, in nats, from plain. Text loss: largest increase over all lengths, in nats per token,"
    " from plain."
)
_TEXT = (
    "Windows of text: {size}. Loss in nats per token, and differences with 95% intervals from"
    " resampled contexts. Text loss: largest increase over all lengths, from plain."
)


def summary_table(
    evaluation: Evaluation, calibrations: Mapping[str, Calibration], verdict: Verdict
) -> Table:
    """Return a table with one row per arm: all questions of the fitted tasks, and ordinary text."""
    from sharpmax.models._evaluation.heads import changed_heads
    from sharpmax.models._evaluation.verdict import compare, surprise

    def versus(arm: str, other: str | None, wording: str | None = None) -> str:
        found = compare(evaluation, arm, other, verdict.tasks, wording=wording)
        return "" if found is None or arm in (PLAIN, other) else in_brackets(shown(found))

    rows = []
    for arm in in_order(evaluation.arms):
        whole = compare(evaluation, arm, PLAIN, verdict.tasks)
        row = [
            f"**{plain(arm)}**" if arm == verdict.subject else plain(arm),
            str(len(changed_heads(calibrations[arm]))) if arm in calibrations else "",
            "" if whole is None else f"{whole.questions:,}",
            "" if whole is None else level(whole.share, whole.of_text),
            versus(arm, PLAIN),
            versus(arm, PLAIN, wording="unseen"),
            versus(arm, verdict.subject),
        ]
        rise = largest_rise(evaluation, arm)
        losses = surprise(evaluation, arm, PLAIN, verdict.tasks), rise and rise[1:]
        row += [change(*each, True) if each and arm != PLAIN else "" for each in losses]
        rows.append(row)
    of_text = verdict.of_text
    header = [
        "arm", "heads changed", "windows" if of_text else "questions",
        "loss" if of_text else "accuracy, %", "vs plain", "vs plain, unseen wording",
        f"vs {plain(verdict.subject or 'best')}", "answer loss", "text loss",
    ]  # fmt: skip
    every = compare(evaluation, PLAIN, PLAIN, verdict.tasks)
    size = "none" if every is None else f"{every.questions:,} in {every.contexts:,} contexts"
    tasks = " and ".join(verdict.tasks) or "none"
    caption = (_TEXT if of_text else _ANSWERS).format(tasks=tasks, size=size)
    return Table(header, rows, title="Results for all arms", caption=caption)


def means_table(evaluation: Evaluation) -> Table:
    """Return a table of means and intervals by length; the best arm of each cell is bold."""

    def cells(results: Mapping[str, CellResult]) -> dict[str, str]:
        of_text = next(iter(results.values())).task == "text"
        means = {arm: mean(result) for arm, result in results.items()}
        best = (min if of_text else max)(means.values(), key=float)
        differ = len(set(means.values())) > 1
        found = {}
        for arm, each in means.items():
            low, high = (level(end, of_text) for end in results[arm].interval)
            found[arm] = f"{f'**{each}**' if differ and each == best else each} [{low}, {high}]"
        return found

    caption = (
        "Exact-match accuracy in percent by prompt length; for text, the loss in nats per"
        f" token. Brackets: 95% intervals from resampled contexts. {source(evaluation)}"
    )
    return _by_length(evaluation, cells, "Accuracy and text loss", caption)


def changes_table(evaluation: Evaluation) -> Table:
    """Return a table of differences from the plain model; significant ones are bold."""

    def cells(results: Mapping[str, CellResult]) -> dict[str, str]:
        plain = results.get(PLAIN)
        found = {}
        for arm, result in results.items():
            if plain is not None and arm != PLAIN:
                difference, interval = result.less(plain)
                said = change(difference, interval, result.task == "text")
                found[arm] = f"**{said}**" if interval[0] > 0 or interval[1] < 0 else said
        return found

    caption = (
        "Paired differences on the same questions, in percentage points; for text, in nats per"
        " token, where an increase is harmful. Brackets: 95% intervals from resampled contexts;"
        " bold if the interval excludes 0."
    )
    return _by_length(evaluation, cells, "Differences from the plain model", caption)


def _by_length(evaluation: Evaluation, cells: _Cells, title: str, caption: str) -> Table:
    """Return one row per task, wording and arm, of what `cells` makes of the results by arm."""
    lengths = sorted({result.length for result in evaluation.results})
    kinds = {(result.task, result.wording) for result in evaluation.results}
    rows = []
    for task, wording in sorted(kinds, key=lambda key: (TASKS.index(key[0]), key[1] == "unseen")):
        own = [each for each in evaluation.results if (each.task, each.wording) == (task, wording)]
        by_length = [{each.arm: each for each in own if each.length == n} for n in lengths]
        told = [cells(found) if found else {} for found in by_length]
        name = f"{task}, unseen wording" if wording == "unseen" else task
        for arm in in_order(evaluation.arms):
            line = [found.get(arm, "") for found in told]
            if any(line):
                rows.append([name, plain(arm), *line])
                # The name is shown once.
                name = ""
    header = ["task", "arm", *(f"{length:,}" for length in lengths)]
    return Table(header, rows, title=title, caption=caption, words=2)


def heads_table(calibration: Calibration) -> Table:
    """Return a table with one row per head that a calibration changes."""
    from sharpmax.models._evaluation.heads import changed_heads

    changes = changed_heads(calibration)
    # A column is shown if some head has a value for it.
    parameters = dict.fromkeys(name for each in changes for name in each.parameters)
    has_gain = any(each.gain != 1 for each in changes)
    rows = []
    for each in changes:
        values = [each.parameters.get(name, "") for name in parameters] + [each.gain] * has_gain
        told = (f"{value:.3f}" if isinstance(value, float) else str(value) for value in values)
        rows.append([str(each.layer), str(each.head), *told])
    return Table(["layer", "head", *parameters, *["gain"] * has_gain], rows, words=0)


def arms_table(evaluation: Evaluation) -> Table:
    """Return a table with the meaning of each arm."""
    rows = [[plain(arm), series.meaning] for arm, series in series_of(evaluation.arms).items()]
    return Table(["arm", "meaning"], rows, words=2)


def largest_rise(evaluation: Evaluation, arm: str | None) -> tuple[int, float, _Interval] | None:
    """Return the largest increase in loss on text: its length, its size and its interval."""
    found = []
    for result in evaluation.results:
        plain = evaluation.find(PLAIN, result.cell)
        if result.task == "text" and result.arm == arm and plain is not None:
            found.append((result.length, *result.less(plain)))
    return max(found, key=lambda each: each[1], default=None)


def level(value: float, of_text: bool) -> str:
    """Format an accuracy in percent, or the loss on text."""
    return f"{value:.3f}" if of_text else f"{100 * value:.1f}"


def mean(result: CellResult) -> str:
    """Format the mean of a cell."""
    return level(result.mean, result.task == "text")


def change(difference: float, interval: _Interval, of_text: bool) -> str:
    """Format a difference, in percentage points or for text in nats, with its interval."""
    scale, digits = (1, 3) if of_text else (100, 1)
    return in_brackets([signed(scale * each, digits) for each in (difference, *interval)])


def shown(found: Comparison) -> list[str]:
    """Format the difference between two arms and its interval; of text, as a change in loss."""
    return [signed(each, 3 if found.of_text else 1) for each in found.shown]


def in_brackets(words: Sequence[str]) -> str:
    """Join a difference and its interval: "+1.0 [+0.5, +1.5]"."""
    return "{} [{}, {}]".format(*words)


def source(evaluation: Evaluation) -> str:
    """Say what was measured, on which data, by which command."""
    settings, commands = evaluation.settings, evaluation.command.splitlines()
    written = quoted(commands[0])
    if len(commands) > 1:
        written = f"the {len(commands)} commands listed in evaluation.json"
    return (
        f"{plain(f'{settings.model}, {settings.dtype}')}, on"
        f" {plain(' and '.join(settings.texts)) or 'no text'}; up to"
        f" {settings.questions:,} questions in {settings.contexts:,} contexts, or"
        f" {settings.windows:,} windows, per cell. Produced by {written}."
    )
