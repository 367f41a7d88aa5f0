"""The curve of a calibration: what the answers gain against what ordinary text loses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sharpmax._extras import require
from sharpmax.report._page import style as _style
from sharpmax.report.calibration.arms import ArmLook, looks
from sharpmax.report.calibration.text import objective_words

if TYPE_CHECKING:
    from sharpmax.models import Calibration

__all__ = ["draw_trade"]

_Point = dict[str, Any]


def draw_trade(calibrations: Mapping[str, Calibration]) -> Any:
    """Draw the gain of the objective against the rise of the loss on text, for each family.

    A point is a candidate of the choice of heads; the line joins those that no other of the family
    beats in both, and a ring is around the one that was kept.

    Args:
        calibrations: By name, with what the choice has noted in them.

    Returns:
        A figure of matplotlib.

    Raises:
        MissingExtraError: matplotlib is not installed.
        LookupError: No calibration has noted its candidates, or text itself is what they gain.
    """
    matplotlib = require("matplotlib", extra="report", what="drawing a figure")
    figure_module = require("matplotlib.figure", extra="report", what="drawing a figure")
    noted = {name: each.notes.get("select", {}) for name, each in calibrations.items()}
    noted = {
        name: each
        for name, each in noted.items()
        if each.get("candidates") and calibrations[name].objective != "nats per token"
    }
    if not noted:
        raise LookupError("no calibration has noted candidates that gain something else than text")
    tolerances = [each.notes.get("tolerance") for each in calibrations.values()]
    with matplotlib.rc_context(_style.SETTINGS):
        figure = figure_module.Figure(figsize=(9.6, 4.6))
        axes = figure.add_axes((0.085, 0.125, 0.625, 0.775))
        for name, look in looks(list(noted)).items():
            _draw_family(axes, name, look, noted[name])
        axes.axhline(0.0, color=_style.BLACK, linewidth=0.8)
        axes.axvline(0.0, color=_style.BLACK, linewidth=0.8)
        if tolerances and tolerances[0] is not None:
            _draw_tolerance(axes, tolerances[0])
        axes.set_xlabel("rise of the loss on ordinary text, nats a token")
        what, unit = objective_words(next(calibrations[name] for name in noted))
        axes.set_ylabel(f"fall of {what}{',' if unit else ''}{unit}")
        axes.grid(visible=True)
        axes.set_axisbelow(True)
        axes.margins(0.08)
        axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=9.2)
        title = "What answers gain against what ordinary text loses"
        figure.text(0.012, 0.96, title, fontsize=13, fontweight="bold", va="center")
    return figure


def frontier(candidates: Sequence[_Point]) -> list[_Point]:
    """Those that no other beats: more gain at no more rise, in the order of their rise.

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


def _draw_family(axes: Any, name: str, look: ArmLook, noted: Mapping[str, Any]) -> None:
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
        [below, none], [none, right], color=look.color, marker=look.marker, linestyle="none",
        markersize=4.6, elinewidth=0.7, alpha=0.75, zorder=2,
    )  # fmt: skip
    best = frontier(points)
    heads = "nothing kept"
    if chosen is not None:
        heads = "one head kept" if chosen["heads"] == 1 else f"{chosen['heads']} heads kept"
    axes.plot(
        [point["rise"] for point in best], [point["gain"] for point in best], color=look.color,
        linestyle=look.line_style, linewidth=1.8, marker=look.marker, markersize=4.6,
        label=f"{name}: {heads}", zorder=3,
    )  # fmt: skip
    if chosen is not None:
        axes.plot(
            chosen["rise"], chosen["gain"], "o", markersize=13, markerfacecolor="none",
            markeredgecolor=look.color, markeredgewidth=2.0, zorder=4,
        )  # fmt: skip


def _draw_tolerance(axes: Any, tolerance: float) -> None:
    axes.axvline(tolerance, color=_style.VERMILION, linewidth=1.0, linestyle=(0, (4, 3)))
    axes.annotate(
        f"tolerance {tolerance:g}", (tolerance, 0.02), xycoords=axes.get_xaxis_transform(),
        xytext=(4, 0), textcoords="offset points", fontsize=8.6,
        color=_style.darkened(_style.VERMILION),
    )  # fmt: skip
