"""Draw what each table gains, and how AUC grows with the context."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from experiments.tabular.design import chosen_arm, contrast
from experiments.tabular.records import Results
from experiments.tabular.tables import design_of
from sharpmax.report._page import style

__all__ = ["draw_gains", "figures"]


def figures(results: Path) -> list[Path]:
    """Draw the figure from `tabular.json` into the same folder."""
    path = results / "tabular.json"
    return [draw_gains(Results.load(path), results / "gains.png")] if path.exists() else []


def draw_gains(results: Results, path: Path) -> Path:
    """Draw one dot per table: what sharpening gains over plain softmax, for both halves.

    Args:
        results: What was measured.
        path: The file; its suffix sets the format.
    """
    design = design_of(results)
    arm = chosen_arm(design, results) or design.candidates[0]
    halves = {"choose": design.choose_size, "report": design.report_size}
    with style.new_figure(5.2) as figure:
        panels = figure.subplots(1, 2)
        for axes, measure, label in zip(
            panels, ("auc", "calibrated"), ("AUC", "calibrated log-loss (nats)"), strict=True
        ):
            axes.axhline(0.0, color=style.SOFT, linewidth=0.8)
            for half, size in halves.items():
                _draw_half(axes, results, half, size, arm, measure)
            axes.set_xticks([2, 3, 4, 5, 6, 7, 8, 9, 10])
            axes.set_xlabel("classes")
            axes.set_title(f"{label}: {arm} minus plain", fontsize=10.5)
            style.add_grid(axes)
        handles, labels = panels[0].get_legend_handles_labels()
        if handles:
            panels[0].legend(handles, labels, fontsize=8.5, frameon=False)
        figure.subplots_adjust(left=0.08, right=0.98, bottom=0.13, top=0.9, wspace=0.25)
        return style.save(figure, path)


def _draw_half(axes: Any, results: Results, half: str, size: int, arm: str, measure: str) -> None:
    found = contrast(results, half, size, arm, (size, "plain"), measure)
    if found is None:
        return
    classes = {info.name: info.classes for info in results.tables}
    shift = -0.12 if half == "choose" else 0.12
    x = np.array([classes[name] + shift for name in found.differences])
    color, marker = (style.GREY, "o") if half == "choose" else (style.BLUE, "D")
    name = "for choosing" if half == "choose" else "held back"
    axes.scatter(
        x, list(found.differences.values()), s=26, color=color, marker=marker,
        label=f"tables {name}, {size:,} rows",
    )  # fmt: skip
