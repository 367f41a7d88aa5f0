"""Draw what each table gains from sharper attention."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np

from experiments.tabular.comparisons import design_of
from experiments.tabular.design import chosen_arm, contrast
from experiments.tabular.records import Results
from experiments.tabular.sizes import draw_sizes
from sharpmax.report._page import style

__all__ = ["draw_gains", "figures"]

_PANELS: Final = {
    "auc": "AUC minus that of plain softmax (right is better)",
    "calibrated": "calibrated log-loss minus that of plain (left is better)",
}


def figures(results: Path) -> list[Path]:
    """Draw one figure per half that has been measured, and one against the size of the context."""
    measured = Results.load(results / "tabular.json")
    halves = [draw_gains(measured, half, results / f"{half}.png") for half in ("choose", "report")]
    drawn = [*halves, draw_sizes(measured, results / "sizes.png")]
    return [path for path in drawn if path is not None]


def draw_gains(results: Results, half: str, path: Path) -> Path | None:
    """Draw one row per table and one mark per arm: the difference to plain softmax.

    Args:
        results: What was measured.
        half: "choose" or "report".
        path: The file; its suffix sets the format.

    Returns:
        The file, or None if nothing of this half has been measured.
    """
    design = design_of(results)
    size = design.choose_size if half == "choose" else design.report_size
    adaptive = chosen_arm(design, results, adaptive=True) or design.candidates[1]
    arms = {"log-length": (style.ORANGE, "o"), adaptive: (style.BLUE, "D")}
    found = {
        (arm, measure): contrast(results, half, size, arm, (size, "plain"), measure)
        for arm in arms
        for measure in _PANELS
    }
    known = {name for each in found.values() if each is not None for name in each.differences}
    infos = sorted(
        (info for info in results.tables if info.name in known),
        key=lambda info: (-info.classes, info.name),
    )
    if not infos:
        return None
    places = {info.name: place for place, info in enumerate(infos)}
    height = 1.6 + 0.24 * len(infos)
    with style.new_figure(height) as figure:
        panels = figure.subplots(1, 2, sharey=True)
        for axes, (measure, label) in zip(panels, _PANELS.items(), strict=True):
            for arm, (color, marker) in arms.items():
                _draw_arm(axes, found[arm, measure], places, color, marker, arm)
            axes.axvline(0.0, color=style.SOFT, linewidth=0.9)
            axes.set_xlabel(label, fontsize=9)
            axes.locator_params(axis="x", nbins=5)
            style.add_grid(axes)
        panels[0].set_yticks(
            range(len(infos)), [f"{info.name} ({info.classes})" for info in infos], fontsize=8.5
        )
        panels[0].set_ylim(-0.6, len(infos) - 0.4)
        kind = "for choosing" if half == "choose" else "held back"
        style.write_title(
            figure, f"Tables {kind}, contexts of {size:,} rows: what sharper attention changes",
            "One row per table, with its number of classes. Dashed: mean over tables.",
        )  # fmt: skip
        style.write_legend(figure, panels[0].get_legend_handles_labels()[0], 0.8)
        figure.subplots_adjust(
            left=0.24, right=0.98, bottom=0.52 / height, top=1 - 0.98 / height, wspace=0.06
        )
        return style.save(figure, path)


def _draw_arm(
    axes: Any, found: Any, places: dict[str, int], color: str, marker: str, arm: str
) -> None:
    """Draw the differences of an arm, and their mean as a line."""
    if found is None:
        return
    names = list(found.differences)
    x = np.array([found.differences[name] for name in names])
    y = np.array([places[name] for name in names], dtype=float)
    axes.scatter(x, y, s=26, color=color, marker=marker, label=arm, zorder=3)
    axes.axvline(found.mean, color=color, linewidth=1.0, linestyle=(0, (4, 2)), zorder=1)
