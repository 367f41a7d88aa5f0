"""Map of all heads: how fast the entropy of each grows with the length."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from sharpmax._extras import require
from sharpmax.report._page import style
from sharpmax.report.diagnosis.verdicts import counts

if TYPE_CHECKING:
    from sharpmax.models import Diagnosis

__all__ = ["draw_slopes"]

_COLORS: Final = "cividis"

_Places = dict[str, list[tuple[int, int]]]


def draw_slopes(diagnosis: Diagnosis) -> Any:
    """Draw the slope of the entropy against log n, with one cell per layer and head.

    Dark is flat, bright disperses. A dot marks a sink. Heads with a sliding window and heads that
    could not be measured are grey.

    Args:
        diagnosis: The diagnosis.

    Returns:
        A figure of matplotlib.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    layers = list(dict.fromkeys(head.layer for head in diagnosis.heads))
    most = 1 + max(head.head for head in diagnosis.heads)
    slopes = np.full((most, len(layers)), np.nan)
    known = np.zeros_like(slopes, dtype=bool)
    marks: _Places = {"sink": [], "dispersing": []}
    for head in diagnosis.heads:
        column = layers.index(head.layer)
        known[head.head, column] = True
        if head.slope is not None and head.verdict not in ("local", None):
            slopes[head.head, column] = head.slope
        if head.verdict in marks:
            marks[head.verdict].append((column, head.head))
    # Cells are as square as the room allows, and no larger than needed.
    wide, tall = min(0.4, 7.5 / len(layers)), min(0.31, 9.0 / most)
    height = 1.54 + max(tall * most, 0.95)
    with style.new_figure(height) as figure:
        bottom, share = 0.56 / height, 1 - 1.54 / height
        across = wide * len(layers) / style.WIDTH
        axes = figure.add_axes((0.075, bottom, across, share))
        grey = np.where(known, 0.15, np.nan)
        axes.imshow(grey, cmap="Greys", vmin=0, vmax=1, aspect="auto", interpolation="nearest")
        matplotlib = require("matplotlib", extra="report", what="drawing a figure")
        color_map = matplotlib.colormaps[_COLORS].with_extremes(bad=(0, 0, 0, 0))
        image = axes.imshow(
            slopes, cmap=color_map, vmin=0.0, vmax=1.0, aspect="auto", interpolation="nearest"
        )
        _draw_marks(axes, marks, min(wide, tall))
        _label_axes(axes, layers, most)
        bar = figure.add_axes((0.1 + across, bottom, 0.016, share))
        figure.colorbar(image, cax=bar, extend="neither")
        bar.set_yticks([0.0, 0.1, 0.5, 1.0], ["0  flat", "0.1", "0.5", "1  uniform"])
        bar.tick_params(labelsize=8.6, length=2)
        bar.set_title("slope", fontsize=9, fontweight="normal", loc="left", pad=6)
        title = f"{len(marks['dispersing'])} of {len(diagnosis.heads)} heads disperse"
        style.write_title(figure, title, _subtitle(diagnosis, marks))
    return figure


def _draw_marks(axes: Any, marks: _Places, cell: float) -> None:
    for place in marks["sink"]:
        axes.plot(
            *place, "o", markersize=13 * cell, color="white", markeredgecolor="black",
            markeredgewidth=0.5,
        )  # fmt: skip
    patches = require("matplotlib.patches", extra="report", what="drawing a figure")
    for column, row in marks["dispersing"]:
        frame = patches.Rectangle(
            (column - 0.44, row - 0.44), 0.88, 0.88, fill=False, linewidth=4.4 * cell,
            edgecolor=style.VERMILION,
        )  # fmt: skip
        axes.add_patch(frame)


def _label_axes(axes: Any, layers: list[int], most: int) -> None:
    step = max(1, -(-len(layers) // 32))
    shown = range(0, len(layers), step)
    axes.set_xticks(list(shown), [str(layers[place]) for place in shown], fontsize=8.6)
    shown = range(0, most, max(1, -(-most // 16)))
    axes.set_yticks(list(shown), [str(head) for head in shown], fontsize=8.6)
    axes.set_xlabel("layer", labelpad=3)
    axes.set_ylabel("head", labelpad=3)
    # Lines between the cells.
    axes.set_xticks(np.arange(len(layers) + 1) - 0.5, minor=True)
    axes.set_yticks(np.arange(most + 1) - 0.5, minor=True)
    axes.grid(visible=True, which="minor", color="white", linewidth=1.0)
    axes.tick_params(which="both", length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _subtitle(diagnosis: Diagnosis, marks: _Places) -> str:
    parts = ["slope of the entropy against log n"]
    if marks["dispersing"]:
        parts.append("frame: 0.5 or more")
    if marks["sink"]:
        parts.append("dot: weight mostly on the first token or a sink")
    if {"local", None} & counts(diagnosis.heads).keys():
        parts.append("grey: sliding window, or not measured")
    return "; ".join(parts)
