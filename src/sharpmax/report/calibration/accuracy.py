"""The figure of right answers against the length: calibrations and their controls."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Final

from sharpmax._extras import require
from sharpmax.report._page import style as _style
from sharpmax.report.calibration.arms import ArmLook, is_control, looks

if TYPE_CHECKING:
    from sharpmax.models._evaluation.evaluation import CellResult, Evaluation

__all__ = ["draw_answers"]

_ORDER: Final = ("passkey", "key-value", "maximum", "text")
_WORDINGS: Final = ("usual", "unseen")
_COLUMNS: Final = 3
_APART: Final = 0.035
"""How far arms stand apart, in powers of two, so that bars do not hide each other."""


def draw_answers(
    evaluation: Evaluation,
    tolerance: float | None = None,
    fitted: Collection[int] = (),
    tasks: Collection[str] = (),
) -> Any:
    """Draw the share of right answers against the length, a line an arm.

    Each task and wording has a panel; that of text shows by how much its loss rises.

    Args:
        evaluation: The results.
        tolerance: Of that rise, in nats; None draws no line.
        fitted: Lengths that calibrations were fitted on, which are shaded.
        tasks: Those that they were fitted on.

    Returns:
        A figure of matplotlib.

    Raises:
        MissingExtraError: matplotlib is not installed.
        LookupError: There are no results.
    """
    matplotlib = require("matplotlib", extra="report", what="drawing a figure")
    figure_module = require("matplotlib.figure", extra="report", what="drawing a figure")
    panels = _panels(evaluation)
    if not panels:
        raise LookupError("the evaluation has no results to draw")
    columns = min(_COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    arms = looks(evaluation.arms)
    legend = 0.14 + 0.24 * -(-len(arms) // 4)
    height = legend + 2.95 * rows + 0.5
    with matplotlib.rc_context(_style.SETTINGS):
        figure = figure_module.Figure(figsize=(9.6, height))
        grid = figure.subplots(rows, columns, squeeze=False)
        # Laid out by hand: what matplotlib works out itself differs in the last digits.
        figure.subplots_adjust(
            left=0.066, right=0.992, bottom=(legend + 0.5) / height, top=1 - 0.82 / height,
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
        _write_words(figure, evaluation, arms, height)
    return figure


def _panels(evaluation: Evaluation) -> list[tuple[str, str]]:
    """Tasks and wordings, usual wordings first, text last."""
    there = {(each.task, each.wording) for each in evaluation.results}
    worded = [(task, wording) for wording in _WORDINGS for task in _ORDER if task != "text"]
    return [each for each in (*worded, ("text", "usual")) if each in there]


def _title(task: str, wording: str, fitted: Collection[str]) -> str:
    if wording == "unseen":
        return f"{task}, unseen wording"
    return task if not fitted or task in (*fitted, "text") else f"{task}, not fitted"


def _shade_fitted(axes: Any, fitted: Collection[int], *, named: bool) -> None:
    """A shade behind lengths up to the longest that was fitted."""
    left, right = axes.get_xlim()
    # Half of the way to the double of it, in powers of two.
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
    arms: dict[str, ArmLook],
    tolerance: float | None,
) -> None:
    of_text = found[0].task == "text"
    for place, (arm, look) in enumerate(arms.items()):
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
            [length * shift for length in lengths], means, ends, color=look.color,
            marker=look.marker, markersize=4.2, linestyle=look.line_style,
            linewidth=1.1 if faint else 1.9, elinewidth=0.9, zorder=2 if faint else 3,
        )  # fmt: skip
    ticks = sorted({each.length for each in found})
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [f"{length:,}" for length in ticks], fontsize=8.6)
    axes.set_xlim(ticks[0] / 2**0.35, ticks[-1] * 2**0.35)
    axes.minorticks_off()
    axes.tick_params(axis="y", labelsize=8.6)
    axes.grid(visible=True, axis="y")
    axes.set_axisbelow(True)
    axes.set_xlabel("tokens", fontsize=9, labelpad=2)
    axes.set_ylabel("rise of the loss, nats" if of_text else "right, %", fontsize=9, labelpad=2)
    if not of_text:
        axes.set_ylim(-2.0, 108.0)
        axes.set_yticks(range(0, 101, 20))
        return
    _scale_rises(axes, tolerance)


def _scale_rises(axes: Any, tolerance: float | None) -> None:
    axes.axhline(0.0, color=_style.BLACK, linewidth=0.8)
    if tolerance is not None:
        axes.axhline(tolerance, color=_style.VERMILION, linewidth=1.0, linestyle=(0, (4, 3)))
        axes.annotate(
            f"tolerance {tolerance:g}", (0.02, tolerance), xycoords=axes.get_yaxis_transform(),
            xytext=(0, 2), textcoords="offset points", fontsize=8,
            color=_style.darkened(_style.VERMILION),
        )  # fmt: skip
    low, high = axes.dataLim.intervaly
    straight = max(0.05, 2 * (tolerance or 0.0))
    low = min(1.3 * low, -0.1 * straight)
    if high <= straight:
        axes.set_ylim(low, max(1.4 * high, 1.3 * (tolerance or 0.0), 0.01))
    else:
        # Far off, an arm that does great harm would leave no room for the others.
        axes.set_yscale("symlog", linthresh=straight, linscale=1.5)
        axes.set_ylim(low, 2.0 * high)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}".replace("-", "\N{MINUS SIGN}"))


def _figure(evaluation: Evaluation, result: CellResult) -> tuple[float | None, tuple[float, float]]:
    """What a panel shows of a result: percent right, or the rise of the loss."""
    if result.task != "text":
        low, high = result.interval
        return 100 * result.mean, (100 * low, 100 * high)
    plain = evaluation.find("plain", result.cell)
    return (None, (0.0, 0.0)) if plain is None else result.less(plain)


def _write_words(
    figure: Any, evaluation: Evaluation, arms: dict[str, ArmLook], height: float
) -> None:
    lines = require("matplotlib.lines", extra="report", what="drawing a figure")
    handles = [
        lines.Line2D(
            [], [], label=arm, color=look.color, marker=look.marker, markersize=5,
            linestyle=look.line_style, linewidth=1.8,
        )
        for arm, look in arms.items()
    ]  # fmt: skip
    figure.legend(
        handles=handles, loc="lower left", bbox_to_anchor=(0.005, 0.0), ncols=4, frameon=False,
        fontsize=9, handlelength=2.6, columnspacing=1.6,
    )  # fmt: skip
    title = f"{evaluation.settings.model}: answers against length"
    figure.text(0.012, 1 - 0.24 / height, title, fontsize=13, fontweight="bold", va="center")
