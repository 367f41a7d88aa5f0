"""Tables of an evaluation: how calibrations and controls score, cell by cell."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from sharpmax._settings import PLAIN, TASKS
from sharpmax.report._page.tables import Table, signed
from sharpmax.report.calibration.arms import in_order, series_of

if TYPE_CHECKING:
    from sharpmax.models import Calibration, Evaluation, Verdict
    from sharpmax.models._evaluation.result import CellResult
    from sharpmax.models._evaluation.verdict import Comparison

__all__ = ["arms_table", "changes_table", "heads_table", "means_table", "summary_table"]

_Interval = tuple[float, float]


def summary_table(
    evaluation: Evaluation, calibrations: Mapping[str, Calibration], verdict: Verdict
) -> Table:
    """Return a table with one row per arm: all questions of the fitted tasks, and ordinary text.

    Args:
        evaluation: The results.
        calibrations: Calibrations by the names of their arms.
        verdict: The verdict, whose tasks and subject are shown.
    """
    from sharpmax.models._evaluation.heads import changed_heads
    from sharpmax.models._evaluation.verdict import compare, surprise

    rows = []
    of_text = verdict.of_text
    for arm in in_order(evaluation.arms):
        whole = compare(evaluation, arm, PLAIN, verdict.tasks)
        unseen = compare(evaluation, arm, PLAIN, verdict.tasks, wording="unseen")
        against = compare(evaluation, arm, verdict.subject, verdict.tasks)
        answer_loss = surprise(evaluation, arm, PLAIN, verdict.tasks)
        rise = largest_rise(evaluation, arm)
        itself = arm == PLAIN
        heads = str(len(changed_heads(calibrations[arm]))) if arm in calibrations else ""
        rows.append(
            [
                f"**{arm}**" if arm == verdict.subject else arm,
                heads,
                "" if whole is None else f"{whole.questions:,}",
                "" if whole is None else _share(whole),
                "" if whole is None or itself else _difference(whole),
                "" if unseen is None or itself else _difference(unseen),
                "" if against is None or arm in (PLAIN, verdict.subject) else _difference(against),
                "" if answer_loss is None or itself else nats(*answer_loss),
                "" if rise is None or itself else nats(*rise[1:]),
            ]
        )
    header = [
        "arm", "heads changed", "windows" if of_text else "questions",
        "loss" if of_text else "accuracy, %", "vs plain", "vs plain, unseen wording",
        f"vs {verdict.subject or 'best'}", "answer loss", "text loss",
    ]  # fmt: skip
    every = compare(evaluation, PLAIN, PLAIN, verdict.tasks)
    size = "none" if every is None else f"{every.questions:,} in {every.contexts:,} contexts"
    caption = (
        f"Questions: {' and '.join(verdict.tasks) or 'none'}, {size}. Accuracy is over the"
        " questions that an arm was asked. Differences are in percentage points, over the questions"
        " that both arms were asked, with 95% intervals from resampled contexts. Answer loss:"
        " change in negative log-likelihood of the correct answer, in nats, from plain. Text loss:"
        " largest increase over all lengths, in nats per token, from plain."
    )
    if of_text:
        caption = (
            f"Windows of text: {size}. Loss in nats per token, and differences with 95% intervals"
            " from resampled contexts. Text loss: largest increase over all lengths, from plain."
        )
    return Table(header, rows, title="Results for all arms", caption=caption)


def means_table(evaluation: Evaluation) -> Table:
    """Return a table with one row per task, wording and arm, and one column per length.

    Cells hold means and intervals. The best arm of each cell is bold.
    """

    def cells(results: Mapping[str, CellResult]) -> dict[str, str]:
        of_text = next(iter(results.values())).task == "text"
        means = {arm: mean(result) for arm, result in results.items()}
        best = (min if of_text else max)(means.values(), key=float)
        differ = len(set(means.values())) > 1
        return {
            arm: f"{f'**{each}**' if differ and each == best else each} {_range(results[arm])}"
            for arm, each in means.items()
        }

    return Table(
        ["task", "arm", *_lengths(evaluation)],
        _rows(evaluation, cells),
        title="Accuracy and text loss",
        caption=(
            "Exact-match accuracy in percent by prompt length; for text, the loss in nats per"
            f" token. Brackets: 95% intervals from resampled contexts. {source(evaluation)}"
        ),
        words=2,
    )


def changes_table(evaluation: Evaluation) -> Table:
    """Return a table of differences from the plain model; significant ones are bold."""

    def cells(results: Mapping[str, CellResult]) -> dict[str, str]:
        if "plain" not in results:
            return {}
        found = {}
        for arm, result in results.items():
            change, interval = result.less(results["plain"])
            said = nats(change, interval) if result.task == "text" else points(change, interval)
            significant = interval[0] > 0 or interval[1] < 0
            found[arm] = f"**{said}**" if significant else said
        del found["plain"]
        return found

    return Table(
        ["task", "arm", *_lengths(evaluation)],
        _rows(evaluation, cells),
        title="Differences from the plain model",
        caption=(
            "Paired differences on the same questions, in percentage points; for text, in nats per"
            " token, where an increase is harmful. Brackets: 95% intervals from resampled contexts;"
            " bold if the interval excludes 0."
        ),
        words=2,
    )


def heads_table(calibration: Calibration) -> Table:
    """Return a table with one row per head that a calibration changes."""
    from sharpmax.models._evaluation.heads import changed_heads

    changes = changed_heads(calibration)
    # A column is shown if some head has a value for it.
    parameters = dict.fromkeys(name for each in changes for name in each.parameters)
    has_gain = any(each.gain != 1 for each in changes)
    rows = []
    for each in changes:
        values = [each.parameters.get(name, "") for name in parameters]
        values += [each.gain] if has_gain else []
        shown = (f"{value:.3f}" if isinstance(value, float) else str(value) for value in values)
        rows.append([str(each.layer), str(each.head), *shown])
    return Table(["layer", "head", *parameters, *["gain"] * has_gain], rows, words=0)


def arms_table(evaluation: Evaluation) -> Table:
    """Return a table with the meaning of each arm."""
    rows = [[arm, series.meaning] for arm, series in series_of(evaluation.arms).items()]
    return Table(["arm", "meaning"], rows, words=2)


def largest_rise(evaluation: Evaluation, arm: str | None) -> tuple[int, float, _Interval] | None:
    """Return the largest increase in loss on text: its length, its size and its interval."""
    found = []
    for result in evaluation.results:
        plain = evaluation.find("plain", result.cell)
        if result.task == "text" and result.arm == arm and plain is not None:
            found.append((result.length, *result.less(plain)))
    return max(found, key=lambda each: each[1], default=None)


def points(difference: float, interval: _Interval) -> str:
    """Format a difference between shares in percentage points, with its interval.

    Example:
        >>> points(0.0514, (0.012, 0.1))
        '+5.1 [+1.2, +10.0]'
    """
    low, high = (signed(100 * end, 1) for end in interval)
    return f"{signed(100 * difference, 1)} [{low}, {high}]"


def nats(difference: float, interval: _Interval) -> str:
    """Format a difference between losses in nats, with its interval."""
    low, high = (signed(end, 3) for end in interval)
    return f"{signed(difference, 3)} [{low}, {high}]"


def mean(result: CellResult) -> str:
    """Format the mean of a cell: accuracy in percent, or the loss on text."""
    return f"{result.mean:.3f}" if result.task == "text" else f"{100 * result.mean:.1f}"


def source(evaluation: Evaluation) -> str:
    """Say what was measured, on which data, by which command."""
    settings = evaluation.settings
    commands = evaluation.command.splitlines()
    written = f"`{commands[0]}`"
    if len(commands) > 1:
        written = f"the {len(commands)} commands listed in evaluation.json"
    return (
        f"{settings.model}, {settings.dtype}, on {' and '.join(settings.texts) or 'no text'}; up to"
        f" {settings.questions:,} questions in {settings.contexts:,} contexts, or"
        f" {settings.windows:,} windows, per cell. Produced by {written}."
    )


def _share(found: Comparison) -> str:
    return f"{found.share:.3f}" if found.of_text else f"{100 * found.share:.1f}"


def _difference(found: Comparison) -> str:
    """Format a difference: of text as a change in loss, where less is better."""
    if found.of_text:
        low, high = found.interval
        return nats(-found.difference, (-high, -low))
    return points(found.difference, found.interval)


def _range(result: CellResult) -> str:
    low, high = result.interval
    if result.task == "text":
        return f"[{low:.3f}, {high:.3f}]"
    return f"[{100 * low:.1f}, {100 * high:.1f}]"


def _lengths(evaluation: Evaluation) -> list[str]:
    return [f"{length:,}" for length in sorted({each.length for each in evaluation.results})]


def _rows(
    evaluation: Evaluation, cells: Callable[[Mapping[str, CellResult]], dict[str, str]]
) -> list[list[str]]:
    """Return rows of the texts that `cells` makes of the results of one cell, by arm."""
    by_cell: dict[tuple[str, str], dict[int, dict[str, CellResult]]] = {}
    for result in evaluation.results:
        row = by_cell.setdefault((result.task, result.wording), {})
        row.setdefault(result.length, {})[result.arm] = result
    lengths = sorted({result.length for result in evaluation.results})
    rows = []
    for task, wording in sorted(by_cell, key=lambda key: (TASKS.index(key[0]), key[1] == "unseen")):
        told = {length: cells(found) for length, found in by_cell[task, wording].items()}
        name = f"{task}, unseen wording" if wording == "unseen" else task
        for arm in in_order(evaluation.arms):
            line = [told.get(length, {}).get(arm, "") for length in lengths]
            if any(line):
                rows.append([name, arm, *line])
                # The name is shown once.
                name = ""
    return rows
