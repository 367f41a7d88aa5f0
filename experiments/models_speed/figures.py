"""Draw the ratios of the benchmark of models with their targets, and the memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from experiments.common.timing import machine_line, read_benchmark
from experiments.models_speed.tables import TITLES, compared
from sharpmax.report._page import style

__all__ = ["draw_cost", "figures"]

_TEXT: dict[str, Any] = {
    "va": "center",
    "fontsize": 8.6,
    "bbox": {"facecolor": "white", "edgecolor": "none", "pad": 0.8},
}

_MET, _MISSED, _WITHOUT = style.GREEN, style.VERMILION, style.BLUE


def figures(results: Path) -> Iterator[Path]:
    """Draw the figures of a run into its folder and yield their paths."""
    result = read_benchmark(results / "benchmark.json")
    yield draw_cost(result, results / "cost.png")


def draw_cost(result: dict[str, Any], path: str | Path) -> Path:
    """Draw one bar per workload, with its target, and one dot per measurement of memory.

    Args:
        result: What the benchmark wrote.
        path: Where to write; the suffix decides the format (.png, .svg, .pdf).

    Returns:
        The path.
    """
    records = sorted(result["records"], key=lambda each: list(TITLES).index(each["workload"]))
    memory = result["memory"]
    heights = [0.6 + 0.36 * len(records), 0.6 + 0.36 * len(memory)][: 2 if memory else 1]
    height = 1.3 + sum(heights)
    with style.new_figure(height) as figure:
        panels = figure.subplots(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
        _draw_ratios(panels[0], records)
        if memory:
            _draw_memory(panels[1], memory)
        where = machine_line(result, {"torch": "PyTorch", "transformers": "transformers"})
        title = "Cost of diagnosing and sharpening a model"
        style.write_title(figure, title, f"{result['model']['name']}; {where}")
        figure.tight_layout(rect=(0.0, 0.0, 1.0, 1.0 - 0.6 / height))
        return style.save(figure, path)


def _draw_ratios(axes: Any, records: list[dict[str, Any]]) -> None:
    labels = []
    for place, record in enumerate(records):
        ratio, target = compared(record), record["target"]
        at_least = record["bound"] == "at least"
        color = _WITHOUT
        if target is not None:
            color = _MET if (ratio >= target if at_least else ratio <= target) else _MISSED
            axes.plot([target] * 2, [place - 0.4, place + 0.4], color=style.BLACK, linewidth=1.6)
        axes.barh(place, ratio, height=0.56, color=color)
        note = "" if target is None else f"  (target {'≥' if at_least else '≤'} {target:g})"
        right = max(ratio, target or 0.0)
        axes.text(right + 0.02, place, f"{ratio:.2f}{note}", **_TEXT)
        labels.append(
            f"{TITLES[record['workload']]}\n{record['length']:,} tokens,"
            f" {record['threads']} thread{'s'[: record['threads'] > 1]}"
        )
    _finish(axes, labels)
    axes.axvline(1.0, color=style.GREY, linewidth=1.0, linestyle=(0, (4, 3)), zorder=0)
    axes.set_xlim(0.0, 1.35 * max(1.0, *(compared(record) for record in records)))
    axes.set_xlabel("ratio to the baseline in the same run", fontsize=9)


def _draw_memory(axes: Any, memory: list[dict[str, Any]]) -> None:
    for place, entry in enumerate(memory):
        mebibytes = max(entry["mebibytes"], 0.1)
        axes.plot(mebibytes, place, "o", color=style.BLUE, markersize=7)
        axes.text(1.25 * mebibytes, place, f"{entry['mebibytes']:,.0f} MiB", **_TEXT)
    _finish(
        axes,
        [f"{each['method']}, {each['model']}, {each['length']:,} tokens" for each in memory],
    )
    axes.set_xscale("log")
    sizes = [max(entry["mebibytes"], 0.1) for entry in memory]
    axes.set_xlim(min(sizes) / 2, 8 * max(sizes))
    axes.set_xlabel("peak memory beyond the model, MiB", fontsize=9)


def _finish(axes: Any, labels: list[str]) -> None:
    axes.set_yticks(range(len(labels)), labels, fontsize=8.6)
    axes.invert_yaxis()
    style.add_grid(axes, "x")
