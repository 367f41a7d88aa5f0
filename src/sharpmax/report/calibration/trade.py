"""Figure of the trade-off of a calibration: better answers against loss on ordinary text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sharpmax.report._page import style
from sharpmax.report._page.style import Series
from sharpmax.report.calibration.arms import series_of
from sharpmax.report.calibration.text import objective_words

if TYPE_CHECKING:
    from sharpmax.models import Calibration

__all__ = ["draw_trade"]

_Point = dict[str, Any]


def draw_trade(calibrations: Mapping[str, Calibration]) -> Any:
    """Draw the improvement of the objective against the increase in loss on ordinary text.

    A point is a candidate of the selection of heads. The line joins the Pareto-optimal candidates
    of a family. A ring marks the chosen one.

    Args:
        calibrations: Calibrations by name, with the notes of their selection.

    Returns:
        A figure of matplotlib.

    Raises:
        MissingExtraError: matplotlib is not installed.
        LookupError: No calibration has notes about candidates, or the objective is text itself.
    """
    noted = {name: each.notes.get("select", {}) for name, each in calibrations.items()}
    noted = {
        name: each
        for name, each in noted.items()
        if each.get("candidates") and calibrations[name].objective != "nats per token"
    }
    if not noted:
        raise LookupError("no calibration has candidates with an objective other than text")
    tolerances = [each.notes.get("tolerance") for each in calibrations.values()]
    with style.new_figure(4.6) as figure:
        axes = figure.add_axes((0.085, 0.125, 0.625, 0.775))
        for name, series in series_of(noted).items():
            _draw_family(axes, series, noted[name])
        axes.axhline(0.0, color=style.BLACK, linewidth=0.8)
        axes.axvline(0.0, color=style.BLACK, linewidth=0.8)
        if tolerances and tolerances[0] is not None:
            _draw_tolerance(axes, tolerances[0])
        axes.set_xlabel("increase in loss on ordinary text, nats per token")
        what, unit = objective_words(next(calibrations[name] for name in noted))
        axes.set_ylabel(f"decrease in {what}{',' if unit else ''}{unit}")
        style.add_grid(axes)
        axes.margins(0.08)
        axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=9.2)
        style.write_title(figure, "Trade-off between answers and ordinary text")
    return figure


def frontier(candidates: Sequence[_Point]) -> list[_Point]:
    """Return the Pareto-optimal candidates (more gain at no more rise), sorted by their rise.

    Example:
        >>> found = frontier(
        ...     [{"rise": 0.0, "gain": 1.0}, {"rise": 0.1, "gain": 0.5}, {"rise": 0.2, "gain": 2.0}]
        ... )
        >>> [point["rise"] for point in found]
        [0.0, 0.2]
    """
    found: list[_Point] = []
    for point in sorted(candidates, key=lambda each: (each["rise"], -each["gain"])):
        if not found or point["gain"] > found[-1]["gain"]:
            found.append(point)
    return found


def _draw_family(axes: Any, series: Series, noted: Mapping[str, Any]) -> None:
    points, chosen = noted["candidates"], noted["chosen"]
    below = [
        0.0 if point["certain"] is None else max(0.0, point["gain"] - point["certain"])
        for point in points
    ]
    right = [
        0.0 if point["harm"] is None else max(0.0, point["harm"] - point["rise"])
        for point in points
    ]
    none = [0.0] * len(points)
    axes.errorbar(
        [point["rise"] for point in points], [point["gain"] for point in points],
        [below, none], [none, right], color=series.color, marker=series.marker, linestyle="none",
        markersize=4.6, elinewidth=0.7, alpha=0.75, zorder=2,
    )  # fmt: skip
    best = frontier(points)
    heads = "none chosen"
    if chosen is not None:
        heads = "1 head" if chosen["heads"] == 1 else f"{chosen['heads']} heads"
    axes.plot(
        [point["rise"] for point in best], [point["gain"] for point in best], color=series.color,
        linestyle=series.line_style, linewidth=1.8, marker=series.marker, markersize=4.6,
        label=f"{series.label}: {heads}", zorder=3,
    )  # fmt: skip
    if chosen is not None:
        axes.plot(
            chosen["rise"], chosen["gain"], "o", markersize=13, markerfacecolor="none",
            markeredgecolor=series.color, markeredgewidth=2.0, zorder=4,
        )  # fmt: skip


def _draw_tolerance(axes: Any, tolerance: float) -> None:
    axes.axvline(tolerance, color=style.VERMILION, linewidth=1.0, linestyle=(0, (4, 3)))
    axes.annotate(
        f"tolerance {tolerance:g}", (tolerance, 0.02), xycoords=axes.get_xaxis_transform(),
        xytext=(4, 0), textcoords="offset points", fontsize=8.6,
        color=style.darkened(style.VERMILION),
    )  # fmt: skip
