"""Figure of accuracy against prompt length, for calibrations and controls."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Final

from sharpmax._settings import TASKS, WORDINGS, is_control
from sharpmax.report._page import style
from sharpmax.report._page.style import Series
from sharpmax.report.calibration.arms import series_of

if TYPE_CHECKING:
    from sharpmax.models._evaluation.result import CellResult, Evaluation

__all__ = ["draw_accuracy"]

_COLUMNS: Final = 3
_APART: Final = 0.035
"""Distance between arms, in powers of two, so that error bars do not hide each other."""


def draw_accuracy(
    evaluation: Evaluation,
    tolerance: float | None = None,
    fitted: Collection[int] = (),
    tasks: Collection[str] = (),
) -> Any:
    """Draw the accuracy against the prompt length, with one line per arm.

    Each task and wording has a panel. The panel of text shows the increase in loss.

    Args:
        evaluation: The results.
        tolerance: Largest acceptable increase in loss, in nats; None draws no line.
        fitted: Lengths that calibrations were fitted on; they are shaded.
        tasks: Tasks that calibrations were fitted on.

    Returns:
        A figure of matplotlib.

    Raises:
        MissingExtraError: matplotlib is not installed.
        LookupError: There are no results.
    """
    panels = _panels(evaluation)
    if not panels:
        raise LookupError("the evaluation has no results to draw")
    columns = min(_COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    arms = series_of(evaluation.arms)
    legend = 0.14 + 0.24 * -(-len(arms) // 4)
    height = legend + 2.95 * rows + 0.5
    with style.new_figure(height) as figure:
        grid = figure.subplots(rows, columns, squeeze=False)
        # The labels of losses are wider than those of accuracies.
        left = 0.092 if panels[-1][0] == "text" and (len(panels) - 1) % columns == 0 else 0.066
        # Laid out by hand: the automatic layout of matplotlib differs in the last digits.
        figure.subplots_adjust(
            left=left, right=0.992, bottom=(legend + 0.5) / height, top=1 - 0.82 / height,
            wspace=0.31 if columns > 1 else 0.0, hspace=0.42,
        )  # fmt: skip
        for axes, (task, wording) in zip(grid.flat, panels, strict=False):
            found = [
                each for each in evaluation.results if (each.task, each.wording) == (task, wording)
            ]
            _draw_panel(axes, evaluation, found, arms, tolerance)
            axes.set_title(_title(task, wording, tasks), fontsize=10)
            if task in (*tasks, "text"):
                _shade_fitted(axes, fitted, named=(task, wording) == panels[0])
        for axes in list(grid.flat)[len(panels) :]:
            axes.remove()
        style.write_title(figure, f"{evaluation.settings.model}: accuracy and prompt length")
        handles = [each.handle(marker=each.marker, markersize=5) for each in arms.values()]
        figure.legend(
            handles=handles, loc="lower left", bbox_to_anchor=(0.005, 0.0), ncols=4, frameon=False,
            fontsize=9, handlelength=2.6, columnspacing=1.6,
        )  # fmt: skip
    return figure


def _panels(evaluation: Evaluation) -> list[tuple[str, str]]:
    """Return tasks and wordings: usual wordings first, text last."""
    there = {(each.task, each.wording) for each in evaluation.results}
    worded = [(task, wording) for wording in WORDINGS for task in TASKS if task != "text"]
    return [each for each in (*worded, ("text", "usual")) if each in there]


def _title(task: str, wording: str, fitted: Collection[str]) -> str:
    if wording == "unseen":
        return f"{task}, unseen wording"
    return task if not fitted or task in (*fitted, "text") else f"{task}, not fitted"


def _shade_fitted(axes: Any, fitted: Collection[int], *, named: bool) -> None:
    """Shade the lengths up to the longest fitted one."""
    left, right = axes.get_xlim()
    # Halfway to twice the longest, on a logarithmic axis.
    edge = min(max(fitted, default=0) * 2**0.5, right)
    if edge <= left:
        return
    axes.axvspan(left, edge, color="#F1F1F1", linewidth=0, zorder=0)
    axes.set_xlim(left, right)
    if named:
        axes.annotate(
            "fitted lengths", (left, 1.0), xycoords=axes.get_xaxis_transform(), xytext=(4, -3),
            textcoords="offset points", va="top", fontsize=8, color="#505050",
        )  # fmt: skip


def _draw_panel(
    axes: Any,
    evaluation: Evaluation,
    found: list[CellResult],
    arms: dict[str, Series],
    tolerance: float | None,
) -> None:
    of_text = found[0].task == "text"
    for place, (arm, series) in enumerate(arms.items()):
        own = sorted((each for each in found if each.arm == arm), key=lambda each: each.length)
        drawn = [(each.length, *_figure(evaluation, each)) for each in own]
        drawn = [each for each in drawn if each[1] is not None]
        if not drawn or (of_text and arm == "plain"):
            continue
        lengths, means, intervals = zip(*drawn, strict=True)
        shift = 2 ** (_APART * (place - (len(arms) - 1) / 2))
        ends = [
            [max(0.0, m - low) for m, (low, _) in zip(means, intervals, strict=True)],
            [max(0.0, high - m) for m, (_, high) in zip(means, intervals, strict=True)],
        ]
        faint = is_control(arm) and arm != "plain"
        axes.errorbar(
            [length * shift for length in lengths], means, ends, color=series.color,
            marker=series.marker, markersize=4.2, linestyle=series.line_style,
            linewidth=1.1 if faint else 1.9, elinewidth=0.9, zorder=2 if faint else 3,
        )  # fmt: skip
    ticks = sorted({each.length for each in found})
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [f"{length:,}" for length in ticks], fontsize=8.6)
    axes.set_xlim(ticks[0] / 2**0.35, ticks[-1] * 2**0.35)
    style.add_grid(axes, "y")
    axes.tick_params(axis="y", labelsize=8.6)
    axes.set_xlabel("tokens", fontsize=9, labelpad=2)
    label = "increase in loss, nats per token" if of_text else "accuracy, %"
    axes.set_ylabel(label, fontsize=9, labelpad=2)
    if of_text:
        _scale_increases(axes, tolerance)
    else:
        axes.set_ylim(-2.0, 108.0)
        axes.set_yticks(range(0, 101, 20))


def _scale_increases(axes: Any, tolerance: float | None) -> None:
    axes.axhline(0.0, color=style.BLACK, linewidth=0.8)
    if tolerance is not None:
        axes.axhline(tolerance, color=style.VERMILION, linewidth=1.0, linestyle=(0, (4, 3)))
        axes.annotate(
            f"tolerance {tolerance:g}", (0.02, tolerance), xycoords=axes.get_yaxis_transform(),
            xytext=(0, 2), textcoords="offset points", fontsize=8,
            color=style.darkened(style.VERMILION),
        )  # fmt: skip
    low, high = axes.dataLim.intervaly
    straight = max(0.05, 2 * (tolerance or 0.0))
    low = min(1.3 * low, -0.1 * straight)
    if high <= straight:
        axes.set_ylim(low, max(1.4 * high, 1.3 * (tolerance or 0.0), 0.01))
    else:
        # On a linear axis, one very harmful arm would leave no room for the others.
        axes.set_yscale("symlog", linthresh=straight, linscale=1.5)
        axes.set_ylim(low, 2.0 * high)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}".replace("-", "\N{MINUS SIGN}"))


def _figure(evaluation: Evaluation, result: CellResult) -> tuple[float | None, tuple[float, float]]:
    """Return the accuracy in percent, or the increase in loss, with its interval."""
    if result.task != "text":
        low, high = result.interval
        return 100 * result.mean, (100 * low, 100 * high)
    plain = evaluation.find("plain", result.cell)
    return (None, (0.0, 0.0)) if plain is None else result.less(plain)
