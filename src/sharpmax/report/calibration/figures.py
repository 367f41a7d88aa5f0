"""Figures of calibrations: accuracy against prompt length, and answers against ordinary text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from sharpmax._settings import PLAIN, TASKS, WORDINGS, is_control
from sharpmax.report._page import style
from sharpmax.report._page.style import Series
from sharpmax.report._page.tables import numbered
from sharpmax.report.calibration.arms import series_of
from sharpmax.report.calibration.text import objective_words

if TYPE_CHECKING:
    from sharpmax.models import Calibration, Evaluation
    from sharpmax.models._evaluation.result import CellResult

__all__ = ["draw_accuracy", "draw_trade", "tolerance_of"]

_COLUMNS: Final = 3

_APART: Final = 0.035
"""Distance between arms, in powers of two, so that error bars do not hide each other."""

_LIMIT: Final = {"color": style.VERMILION, "linewidth": 1.0, "linestyle": (0, (4, 3))}
"""How the line of the tolerance is drawn."""

_NOTE: Final = {"textcoords": "offset points", "fontsize": 8}

_Point = dict[str, Any]


def tolerance_of(calibrations: Mapping[str, Calibration]) -> float | None:
    """Return the largest increase in loss on text that was accepted, if one was set."""
    found = (calibration.notes.get("tolerance") for calibration in calibrations.values())
    return next((tolerance for tolerance in found if tolerance is not None), None)


def draw_accuracy(evaluation: Evaluation, calibrations: Mapping[str, Calibration]) -> Any:
    """Draw the accuracy against the prompt length, with one line per arm.

    Each task and wording has a panel. The panel of text shows the increase in loss, and a line at
    the tolerance. The fitted lengths are shaded in panels of the fitted tasks.
    """
    from sharpmax.models._evaluation.verdict import fitted_tasks

    tasks = (*fitted_tasks(evaluation, calibrations), "text")
    fitted = max((length for each in calibrations.values() for length in each.lengths), default=0)
    there = {(each.task, each.wording) for each in evaluation.results}
    worded = [(task, wording) for wording in WORDINGS for task in TASKS if task != "text"]
    panels = [each for each in (*worded, ("text", "usual")) if each in there]
    if not panels:
        raise LookupError("the evaluation has no results to draw")
    columns = min(_COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    arms = series_of(evaluation.arms)
    legend = 0.14 + 0.24 * -(-len(arms) // 4)
    height = legend + 2.95 * rows + 0.5
    with style.new_figure(height) as figure:
        grid = style.panels(figure, len(panels), columns)
        # The labels of losses are wider than those of accuracies.
        left = 0.092 if panels[-1][0] == "text" and (len(panels) - 1) % columns == 0 else 0.066
        # Laid out by hand: the automatic layout of matplotlib differs in the last digits.
        figure.subplots_adjust(
            left=left, right=0.992, bottom=(legend + 0.5) / height, top=1 - 0.82 / height,
            wspace=0.31 if columns > 1 else 0.0, hspace=0.42,
        )  # fmt: skip
        for axes, (task, wording) in zip(grid.flat, panels, strict=False):
            found = [r for r in evaluation.results if (r.task, r.wording) == (task, wording)]
            _draw_panel(axes, evaluation, found)
            if task == "text":
                _scale_increases(axes, tolerance_of(calibrations))
            title = task if task in tasks else f"{task}, not fitted"
            title = f"{task}, unseen wording" if wording == "unseen" else title
            axes.set_title(title, fontsize=10)
            if task in tasks:
                _shade_fitted(axes, fitted, named=(task, wording) == panels[0])
        style.write_title(figure, f"{evaluation.settings.model}: accuracy and prompt length")
        handles = [each.handle(marker=each.marker, markersize=5) for each in arms.values()]
        figure.legend(
            handles=handles, loc="lower left", bbox_to_anchor=(0.005, 0.0), ncols=4, frameon=False,
            fontsize=9, handlelength=2.6, columnspacing=1.6,
        )  # fmt: skip
    return figure


def _draw_panel(axes: Any, evaluation: Evaluation, found: Sequence[CellResult]) -> None:
    of_text, arms = found[0].task == "text", series_of(evaluation.arms)
    for place, (arm, series) in enumerate(arms.items()):
        own = sorted((each for each in found if each.arm == arm), key=lambda each: each.length)
        shift = 2 ** (_APART * (place - (len(arms) - 1) / 2))
        drawn = []
        for result in own:
            mean, (low, high) = result.mean, result.interval
            if of_text:
                plain = evaluation.find(PLAIN, result.cell)
                if plain is None or arm == PLAIN:
                    continue
                mean, (low, high) = result.less(plain)
            scale = 1 if of_text else 100
            ends = (max(0.0, scale * mean - scale * low), max(0.0, scale * high - scale * mean))
            drawn.append((result.length * shift, scale * mean, *ends))
        if not drawn:
            continue
        lengths, means, below, above = zip(*drawn, strict=True)
        faint = is_control(arm) and arm != PLAIN
        axes.errorbar(
            lengths, means, [below, above], markersize=4.2, linewidth=1.1 if faint else 1.9,
            elinewidth=0.9, zorder=2 if faint else 3, **series.line,
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
    if not of_text:
        axes.set_ylim(-2.0, 108.0)
        axes.set_yticks(range(0, 101, 20))


def _scale_increases(axes: Any, tolerance: float | None) -> None:
    axes.axhline(0.0, color=style.BLACK, linewidth=0.8)
    if tolerance is not None:
        axes.axhline(tolerance, **_LIMIT)
        axes.annotate(
            f"tolerance {tolerance:g}", (0.02, tolerance), xycoords=axes.get_yaxis_transform(),
            xytext=(0, 2), color=style.darkened(style.VERMILION), **_NOTE,
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


def _shade_fitted(axes: Any, longest: int, *, named: bool) -> None:
    """Shade the lengths up to the longest fitted one."""
    left, right = axes.get_xlim()
    # Halfway to twice the longest, on a logarithmic axis.
    edge = min(longest * 2**0.5, right)
    if edge <= left:
        return
    axes.axvspan(left, edge, color="#F1F1F1", linewidth=0, zorder=0)
    axes.set_xlim(left, right)
    if named:
        axes.annotate(
            "fitted lengths", (left, 1.0), xycoords=axes.get_xaxis_transform(), xytext=(4, -3),
            va="top", color="#505050", **_NOTE,
        )  # fmt: skip


def draw_trade(calibrations: Mapping[str, Calibration]) -> Any:
    """Draw the improvement of the objective against the increase in loss on ordinary text.

    A point is a candidate of the selection of heads. The line joins the Pareto-optimal candidates
    of a family. A ring marks the chosen one.
    """
    noted = {
        name: each.notes["select"]
        for name, each in calibrations.items()
        if each.notes.get("select", {}).get("candidates") and each.objective != "nats per token"
    }
    if not noted:
        raise LookupError("no calibration has candidates with an objective other than text")
    tolerance = tolerance_of(calibrations)
    with style.new_figure(4.6) as figure:
        axes = figure.add_axes((0.085, 0.125, 0.625, 0.775))
        for name, series in series_of(noted).items():
            _draw_family(axes, series, noted[name]["candidates"], noted[name]["chosen"])
        axes.axhline(0.0, color=style.BLACK, linewidth=0.8)
        axes.axvline(0.0, color=style.BLACK, linewidth=0.8)
        if tolerance is not None:
            axes.axvline(tolerance, **_LIMIT)
            axes.annotate(
                f"tolerance {tolerance:g}", (tolerance, 0.02), xytext=(4, 0),
                xycoords=axes.get_xaxis_transform(), color=style.darkened(style.VERMILION),
                **{**_NOTE, "fontsize": 8.6},
            )  # fmt: skip
        axes.set_xlabel("increase in loss on ordinary text, nats per token")
        what, unit = objective_words(calibrations[next(iter(noted))])
        axes.set_ylabel(f"decrease in {what}{',' if unit else ''}{unit}")
        style.add_grid(axes)
        axes.margins(0.08)
        axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=9.2)
        style.write_title(figure, "Trade-off between answers and ordinary text")
    return figure


def frontier(candidates: Sequence[_Point]) -> list[_Point]:
    """Return the Pareto-optimal candidates (more gain at no more rise), sorted by their rise.

    Example:
        >>> points = [(0.0, 1.0), (0.1, 0.5), (0.2, 2.0)]
        >>> [point["rise"] for point in frontier([{"rise": r, "gain": g} for r, g in points])]
        [0.0, 0.2]
    """
    found: list[_Point] = []
    for point in sorted(candidates, key=lambda each: (each["rise"], -each["gain"])):
        if not found or point["gain"] > found[-1]["gain"]:
            found.append(point)
    return found


def _draw_family(
    axes: Any, series: Series, points: Sequence[_Point], chosen: _Point | None
) -> None:
    below = [0.0 if p["certain"] is None else max(0.0, p["gain"] - p["certain"]) for p in points]
    right = [0.0 if p["harm"] is None else max(0.0, p["harm"] - p["rise"]) for p in points]
    none = [0.0] * len(points)
    axes.errorbar(
        *_places(points), [below, none], [none, right], markersize=4.6, elinewidth=0.7, alpha=0.75,
        zorder=2, **{**series.line, "linestyle": "none"},
    )  # fmt: skip
    heads = "none chosen" if chosen is None else numbered(chosen["heads"], "head")
    label, best = style.literal(f"{series.label}: {heads}"), _places(frontier(points))
    axes.plot(*best, markersize=4.6, linewidth=1.8, label=label, zorder=3, **series.line)
    if chosen is not None:
        axes.plot(
            chosen["rise"], chosen["gain"], "o", markersize=13, markerfacecolor="none",
            markeredgecolor=series.color, markeredgewidth=2.0, zorder=4,
        )  # fmt: skip


def _places(points: Sequence[_Point]) -> tuple[list[float], list[float]]:
    return [point["rise"] for point in points], [point["gain"] for point in points]
