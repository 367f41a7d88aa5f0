"""Draw the accuracy of the plain and the folded model in every engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from experiments.common.timing import read_benchmark
from experiments.serving.tables import STATES, states
from sharpmax._resampling import clustered_interval
from sharpmax.report._page import style

__all__ = ["figures"]

_COLORS = {"plain": style.GREY, "sharpened": style.BLUE, "folded": style.GREEN}


def figures(results: Path) -> list[Path]:
    """Draw the figure from `serving.json` into the same folder."""
    result = read_benchmark(results / "serving.json")
    cells = list(dict.fromkeys((each["task"], each["length"]) for each in result["records"]))
    rows = states(result)
    height = 1.5 + 0.32 * len(rows)
    with style.new_figure(height) as figure:
        panels: Any = figure.subplots(1, len(cells), sharey=True, squeeze=False)[0]
        for axes, (task, length) in zip(panels, cells, strict=True):
            for each in result["records"]:
                if (each["task"], each["length"]) == (task, length):
                    _draw(axes, rows.index((each["engine"], each["model"])), each)
            axes.set_title(f"{task}, {length:,} tokens", fontsize=10.5)
            axes.set_xlim(0, 100)
            axes.set_xlabel("correct, %", fontsize=9)
            style.add_grid(axes, "x")
        labels = [f"{engine}, {STATES[model]}" for engine, model in rows]
        panels[0].set_yticks(range(len(rows)), labels, fontsize=8.6)
        panels[0].invert_yaxis()
        title = "The folded model keeps the accuracy of the sharpened one in every engine"
        settings = result["settings"]
        note = (
            f"{settings['questions']} questions in {settings['contexts']} contexts per panel; bars:"
            " 95% intervals from resampled contexts"
        )
        style.write_title(figure, title, note)
        figure.tight_layout(rect=(0.0, 0.0, 1.0, 1.0 - 0.6 / height))
        return [style.save(figure, results / "serving.png")]


def _draw(axes: Any, place: int, record: dict[str, Any]) -> None:
    correct = record["correct"]
    mean = 100 * sum(correct) / len(correct)
    low, high = (100 * end for end in clustered_interval(correct, record["contexts"]))
    color = _COLORS[record["model"]]
    axes.plot([low, high], [place, place], color=color, linewidth=1.6)
    axes.plot(mean, place, "o", color=color, markersize=7)
