"""Tables of an evaluation: how calibrations and their controls answer, cell by cell."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from sharpmax.report._page.tables import Table
from sharpmax.report.calibration.arms import in_order
from sharpmax.report.diagnosis.verdicts import VERDICTS, counts

if TYPE_CHECKING:
    from sharpmax.models import Calibration, Diagnosis
    from sharpmax.models._evaluation.evaluation import CellResult, Evaluation
    from sharpmax.models._evaluation.verdict import Comparison, Verdict

__all__ = [
    "changes_table",
    "dispersing_table",
    "headline_table",
    "heads_table",
    "means_table",
    "summary_table",
]

_MINUS: Final = "\N{MINUS SIGN}"
_WAYS: Final = ("sharper", "flatter")
_ORDER: Final = ("passkey", "key-value", "maximum", "text")


def summary_table(
    evaluation: Evaluation, calibrations: Mapping[str, Calibration], verdict: Verdict
) -> Table:
    """Every arm at a glance: on all questions of the fitted tasks, and on ordinary text.

    Args:
        evaluation: The results.
        calibrations: By the names of their arms.
        verdict: Whose tasks and subject are taken.

    Returns:
        A row an arm.
    """
    from sharpmax.models._evaluation.changes import changed_heads
    from sharpmax.models._evaluation.verdict import PLAIN, compare, surprise

    rows = []
    of_text = set(verdict.tasks) == {"text"}
    for arm in in_order(evaluation.arms):
        whole = compare(evaluation, arm, PLAIN, verdict.tasks)
        unseen = compare(evaluation, arm, PLAIN, verdict.tasks, wording="unseen")
        less = compare(evaluation, arm, verdict.subject, verdict.tasks)
        surprised = surprise(evaluation, arm, PLAIN, verdict.tasks)
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
                "" if less is None or arm in (PLAIN, verdict.subject) else _difference(less),
                "" if surprised is None or itself else nats(*surprised),
                "" if rise is None or itself else nats(*rise[1:]),
            ]
        )
    subject = verdict.subject or "the best"
    every = compare(evaluation, PLAIN, PLAIN, verdict.tasks)
    asked = "none" if every is None else f"{every.questions:,} in {every.contexts:,} contexts"
    return Table(
        ["arm", "heads", "windows" if of_text else "questions", "loss" if of_text else "right, %",
         "against plain", "in unseen wordings",
         f"against {subject}", "surprise", "loss on text"],
        rows,
        title="Every arm at a glance",
        caption=(
            f"On windows of text, {asked}: the loss in nats a token, then how it differs, with 95%"
            " intervals from resampled contexts. Loss on text: the largest rise over the lengths."
            if of_text
            else f"On questions of {' and '.join(verdict.tasks) or 'any task'}, {asked}: percent"
            " right of those that an arm was asked, then differences on those that both were asked,"
            " in points with 95% intervals from resampled contexts."
            " Surprise: nats that the right answer takes, less those with plain. Loss on text: the"
            " largest rise over the lengths, in nats a token."
        ),
    )  # fmt: skip


def headline_table(evaluation: Evaluation, arms: Sequence[str]) -> Table:
    """A few arms on the cells that all of them were asked, in the usual wording.

    Args:
        evaluation: The results.
        arms: Which, in the order of the columns.

    Returns:
        A row a task and length, a column an arm.
    """
    asked = {result.cell for result in evaluation.results if result.wording != "unseen"}
    rows = []
    for cell in sorted(asked, key=lambda cell: (_ORDER.index(cell.task), cell.length)):
        found = [evaluation.find(arm, cell) for arm in arms]
        means = [_mean(result) for result in found if result is not None]
        if len(means) == len(arms):
            name = "loss on text" if cell.task == "text" else f"{cell.task}, % right"
            rows.append([name, f"{cell.length:,}", *means])
    return Table(["task", "tokens", *arms], rows, caption=_source(evaluation))


def means_table(evaluation: Evaluation) -> Table:
    """Every arm on every cell, with its interval; the best of each cell is bold.

    Args:
        evaluation: The results.

    Returns:
        A row a task, wording and arm, a column a length.
    """

    def cells(results: Mapping[str, CellResult]) -> dict[str, str]:
        of_text = next(iter(results.values())).task == "text"
        means = {arm: _mean(result) for arm, result in results.items()}
        best = (min if of_text else max)(means.values(), key=float)
        differ = len(set(means.values())) > 1
        return {
            arm: f"{f'**{mean}**' if differ and mean == best else mean} {_range(results[arm])}"
            for arm, mean in means.items()
        }

    return Table(
        ["task", "arm", *_lengths(evaluation)],
        _rows(evaluation, cells),
        title="Right answers, and the loss on text",
        caption=(
            "Percent of the answers that are right, token by token, by the length of the prompt;"
            " for text the loss in nats a token. In brackets 95% intervals from resampled contexts."
            f" {_source(evaluation)}"
        ),
        words=2,
    )


def changes_table(evaluation: Evaluation) -> Table:
    """What every arm changes on every cell; bold where that is no chance.

    Args:
        evaluation: The results.

    Returns:
        A row a task, wording and arm but plain, a column a length.
    """

    def cells(results: Mapping[str, CellResult]) -> dict[str, str]:
        if "plain" not in results:
            return {}
        found = {}
        for arm, result in results.items():
            change, interval = result.less(results["plain"])
            said = nats(change, interval) if result.task == "text" else points(change, interval)
            sure = interval[0] > 0 or interval[1] < 0
            found[arm] = f"**{said}**" if sure else said
        del found["plain"]
        return found

    return Table(
        ["task", "arm", *_lengths(evaluation)],
        _rows(evaluation, cells),
        title="Changes against the model as it is",
        caption=(
            "Differences on the same questions: points of percent, and for text nats a token, where"
            " a rise is harm. In brackets 95% intervals from resampled contexts; bold where 0 is"
            " outside."
        ),
        words=2,
    )


def heads_table(calibration: Calibration) -> Table:
    """The heads that a calibration changes.

    Args:
        calibration: Which.

    Returns:
        A row a head.
    """
    from sharpmax.models._evaluation.changes import changed_heads

    changes = changed_heads(calibration)
    # What no head has needs no column.
    every: dict[str, tuple[bool, Callable[[Any], str]]] = {
        "beta": (
            any(each.beta != 1 for each in changes),
            lambda each: "by row" if each.beta is None else f"{each.beta:.3f}",
        ),
        "strength": (
            any(each.strength is not None for each in changes),
            lambda each: "" if each.strength is None else f"{each.strength:.3f}",
        ),
        "reference, nats": (
            any(each.reference is not None for each in changes),
            lambda each: "" if each.reference is None else f"{each.reference:.2f}",
        ),
        "gain": (any(each.gain != 1 for each in changes), lambda each: f"{each.gain:.3f}"),
    }
    shown = {name: told for name, (some, told) in every.items() if some}
    rows = [
        [str(each.layer), str(each.head), *(told(each) for told in shown.values())]
        for each in changes
    ]
    return Table(["layer", "head", *shown], rows, words=0)


def dispersing_table(calibration: Calibration, diagnosis: Diagnosis, most: int = 27) -> Table:
    """What a calibration does to heads that disperse, and to others.

    Args:
        calibration: One that `sharpmax.calibrate` made of all layers.
        diagnosis: Of the same model.
        most: So many heads are the ones that help most.

    Returns:
        A row a verdict of the diagnosis.
    """
    from sharpmax.models._evaluation.changes import changed_heads

    verdicts = {(head.layer, head.head): head.verdict for head in diagnosis.heads}
    changes = changed_heads(calibration)
    heads = [
        (i, head) for i, count in enumerate(calibration.head_counts) for head in range(count or 0)
    ]
    # Of the loss, so what helps is negative.
    contributions = map(sum, zip(*calibration.notes["select"]["contributions"], strict=True))
    ranked = sorted(zip(contributions, heads, strict=True))[:most]
    rows = []
    for verdict, number in counts(diagnosis.heads).items():
        mine = [each for each in changes if verdicts[each.layer, each.head] == verdict]
        best = sum(verdicts[head] == verdict for _, head in ranked)
        sharper, flatter = (sum(getattr(each, way) for each in mine) for way in _WAYS)
        figures = (number, len(mine), sharper, flatter, best)
        rows.append([VERDICTS[verdict].label, *(f"{figure:,}" for figure in figures)])
    return Table(
        ["verdict", "heads", "changed", "sharper", "less sharp", f"of the {most} that help most"],
        rows,
    )


def largest_rise(
    evaluation: Evaluation, arm: str | None
) -> tuple[int, float, tuple[float, float]] | None:
    """The largest rise of the loss on text: at which length, how much, and its interval."""
    found = []
    for result in evaluation.results:
        plain = evaluation.find("plain", result.cell)
        if result.task == "text" and result.arm == arm and plain is not None:
            found.append((result.length, *result.less(plain)))
    return max(found, key=lambda each: each[1], default=None)


def _share(found: Comparison) -> str:
    return f"{found.share:.3f}" if found.of_text else f"{100 * found.share:.1f}"


def _difference(found: Comparison) -> str:
    """Of a loss with its own sign, less is better; of shares in points."""
    if found.of_text:
        low, high = found.interval
        return nats(-found.difference, (-high, -low))
    return points(found.difference, found.interval)


def points(difference: float, interval: tuple[float, float]) -> str:
    """A difference of shares, in points of percent.

    Example:
        >>> points(0.0514, (0.012, 0.1))
        '+5.1 [+1.2, +10.0]'
    """
    return _signed(100 * difference, [100 * end for end in interval], 1)


def nats(difference: float, interval: tuple[float, float]) -> str:
    """A difference of losses, in nats."""
    return _signed(difference, list(interval), 3)


def _signed(value: float, ends: list[float], digits: int) -> str:
    one, *others = (f"{each:+.{digits}f}".replace("-", _MINUS) for each in (value, *ends))
    return f"{one} [{', '.join(others)}]"


def _mean(result: CellResult) -> str:
    return f"{result.mean:.3f}" if result.task == "text" else f"{100 * result.mean:.1f}"


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
    """Rows of what `cells` makes of the results of a cell by arm."""
    by_cell: dict[tuple[str, str], dict[int, dict[str, CellResult]]] = {}
    for result in evaluation.results:
        row = by_cell.setdefault((result.task, result.wording), {})
        row.setdefault(result.length, {})[result.arm] = result
    lengths = sorted({result.length for result in evaluation.results})
    # Usual wordings before those that are not.
    order = sorted(by_cell, key=lambda key: (_ORDER.index(key[0]), key[1] == "unseen"))
    rows = []
    for task, wording in order:
        told = {length: cells(found) for length, found in by_cell[task, wording].items()}
        name = f"{task}, unseen wording" if wording == "unseen" else task
        for arm in in_order(evaluation.arms):
            line = [told.get(length, {}).get(arm, "") for length in lengths]
            if any(line):
                rows.append([name, arm, *line])
                # Said once.
                name = ""
    return rows


def _source(evaluation: Evaluation) -> str:
    settings = evaluation.settings
    commands = evaluation.command.splitlines()
    written = f"`{commands[0]}`"
    if len(commands) > 1:
        written = f"{len(commands)} commands, which evaluation.json lists"
    return (
        f"{settings.model}, in {settings.dtype}, on {' and '.join(settings.texts) or 'no text'};"
        f" {settings.questions:,} questions in"
        f" {settings.contexts:,} contexts and {settings.windows:,} windows a cell at the most."
        f" Written by {written}."
    )
