"""Draw the ratio to PyTorch's attention against the number of keys."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from matplotlib.lines import Line2D

from experiments.attention_speed.tables import length_label, thread_label
from experiments.attention_speed.workloads import APART, KINDS
from experiments.common.timing import machine_line, read_benchmark
from sharpmax.report._page import style

__all__ = ["HEADLINES", "draw_comparison", "draw_ratios", "figures"]

HEADLINES: Final = ("prefill", "sharp", "curve")
"""Workloads of the figure in the documents."""

_COLUMNS: Final = 4

_COLORS: Final = {
    "Paper": style.VERMILION,
    "Exponential": style.BLUE,
    "EntropyTarget": style.GREEN,
    None: style.BLACK,
}

_DASHES: Final = {"linestyle": (0, (2, 1.5)), "markerfacecolor": "white"}
_STYLES: Final[dict[tuple[int, bool], dict[str, Any]]] = {
    (64, True): {"marker": "o", "linestyle": "-"},
    (64, False): {"marker": "s", "linestyle": "-"},
    (128, True): {"marker": "o", **_DASHES},
    (128, False): {"marker": "s", **_DASHES},
}
"""By width and mask: a circle is causal, a square full; filled is width 64, open 128."""

_TARGET: Final[dict[str, Any]] = {
    "color": style.GREY,
    "linewidth": 1.0,
    "linestyle": (0, (4, 3)),
}

_BOX: Final = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}

Record = dict[str, Any]


def figures(results: Path) -> Iterator[Path]:
    """Draw the figures of a run into its folder and yield their paths.

    `ratio.png` has the workloads of `HEADLINES`, `workloads.png` all of them, and `comparison.png`
    the other implementations. A figure without data is not drawn.
    """
    path = results / "benchmark.json"
    if path.exists():
        result = read_benchmark(path)
        for drawn in (
            draw_ratios(result, results / "ratio.png", HEADLINES),
            draw_ratios(result, results / "workloads.png"),
            draw_comparison(result, results / "comparison.png"),
        ):
            if drawn is not None:
                yield drawn


def draw_ratios(
    result: Record, path: str | Path, workloads: Sequence[str] = tuple(KINDS)
) -> Path | None:
    """Draw one panel per workload and number of threads.

    Args:
        result: What the benchmark wrote.
        path: Where to write; the suffix decides the format (.png, .svg, .pdf).
        workloads: Kinds of workload to draw, of those that the result has.

    Returns:
        The path, or None if the result has nothing to draw.
    """
    drawn = [
        record
        for record in result["records"]
        if record["workload"] in workloads and record["workload"] not in APART
    ]
    kinds = [kind for kind in KINDS if any(record["workload"] == kind for record in drawn)]
    if not kinds:
        return None
    threads = sorted({record["threads"] for record in drawn})
    columns = min(len(kinds), _COLUMNS)
    rows = math.ceil(len(kinds) / columns) * len(threads)
    highest = max(1.25, *(record["ratio"] for record in drawn)) * 1.08
    height = 1.4 + 2.6 * rows
    with style.new_figure(height, max(1.6 + 3.1 * columns, 7.2)) as figure:
        grid = figure.subplots(rows, columns, sharey=True, squeeze=False)
        for axes in grid.flat:
            axes.set_visible(False)
        for place, kind in enumerate(kinds):
            for row, count in enumerate(threads, start=place // columns * len(threads)):
                axes = grid[row][place % columns]
                axes.set_visible(True)
                _draw_panel(
                    axes,
                    [r for r in drawn if r["workload"] == kind and r["threads"] == count],
                )
                axes.set_ylim(0.0, highest)
                axes.set_title(KINDS[kind] if count == threads[0] else "", fontsize=11)
                axes.set_xlabel("number of keys" if count == threads[-1] else "")
                axes.set_ylabel(thread_label(count) if place % columns == 0 else "")
        _write_head(figure, "Time of sharpmax.attention relative to PyTorch's attention", result)
        style.write_legend(figure, _legend(drawn), top=0.95, columns=columns + 2)
        figure.tight_layout(rect=(0.0, 0.0, 1.0, 1.0 - 1.2 / height), w_pad=1.2)
        return style.save(figure, path)


def draw_comparison(result: Record, path: str | Path) -> Path | None:
    """Draw one bar per implementation and number of threads, on the same inputs.

    Args:
        result: What the benchmark wrote.
        path: Where to write; the suffix decides the format (.png, .svg, .pdf).

    Returns:
        The path, or None if the result has nothing to draw.
    """
    drawn = [record for record in result["records"] if record["workload"] == "comparison"]
    if not drawn:
        return None
    height = 1.5 + 0.32 * len(drawn)
    with style.new_figure(height) as figure:
        axes = figure.subplots()
        labels = []
        for place, record in enumerate(drawn):
            own = record["implementation"].startswith("sharpmax")
            axes.plot(record["ratio"], place, "o", color=style.BLUE if own else style.VERMILION)
            number = f"{record['ratio']:.3g}"
            axes.text(1.15 * record["ratio"], place, number, va="center", fontsize=8.6, bbox=_BOX)
            mask = "causal" if record["causal"] else "full"
            labels.append(f"{record['implementation']}, {mask}, {thread_label(record['threads'])}")
        axes.set_xscale("log")
        axes.axvline(1.0, color=style.BLACK, linewidth=1.4, zorder=1)
        axes.set_xlim(right=3 * max(record["ratio"] for record in drawn))
        axes.set_yticks(range(len(labels)), labels, fontsize=8.6)
        axes.invert_yaxis()
        style.add_grid(axes, "x")
        axes.set_xlabel(f"time ratio, {length_label(drawn[0]['length'])} queries and keys")
        _write_head(figure, "Time relative to PyTorch's attention", result)
        figure.tight_layout(rect=(0.0, 0.0, 1.0, 1.0 - 0.6 / height))
        return style.save(figure, path)


def _write_head(figure: Any, title: str, result: Record) -> None:
    where = machine_line(result, {"torch": "PyTorch"})
    style.write_title(figure, title, f"float32, {where}")


def _draw_panel(axes: Any, records: Sequence[Record]) -> None:
    lines: dict[tuple[str | None, int, bool], list[Record]] = {}
    for record in sorted(records, key=lambda record: record["length"]):
        lines.setdefault((record["policy"], record["width"], record["causal"]), []).append(record)
    axes.axhline(1.0, color=style.BLACK, linewidth=1.4, zorder=1)
    if records and records[0]["target"] is not None:
        axes.axhline(records[0]["target"], zorder=1, **_TARGET)
    for (policy, width, causal), points in lines.items():
        axes.plot(
            [point["length"] for point in points],
            [point["ratio"] for point in points],
            color=_COLORS[policy],
            # Policies cost almost the same, so the line below is wider to stay visible.
            linewidth=3.4 if policy == "Paper" else 1.2,
            markersize=7.5 if policy == "Paper" else 4.2,
            zorder=2 if policy == "Paper" else 3,
            **_STYLES[width, causal],
        )
    lengths = sorted({record["length"] for record in records})
    axes.set_xscale("log", base=2)
    # Eight labels would overlap.
    ticks = lengths if len(lengths) <= 5 else lengths[::-2][::-1]
    axes.set_xticks(ticks, [length_label(length) for length in ticks], fontsize=9)
    axes.minorticks_off()
    style.add_grid(axes)


def _legend(records: Sequence[Record]) -> list[Line2D]:
    """Explain what occurs: colours are policies, markers are masks and widths."""
    handles = [
        Line2D([], [], color=color, linewidth=2.4, label=policy or "statistics")
        for policy, color in _COLORS.items()
        if any(record["policy"] == policy for record in records)
    ]
    for (width, causal), shown in _STYLES.items():
        if any((record["width"], record["causal"]) == (width, causal) for record in records):
            label = f"{'causal' if causal else 'full'}, width {width}"
            handles.append(Line2D([], [], color=style.SOFT, markersize=4.6, label=label, **shown))
    handles.append(Line2D([], [], color=style.BLACK, linewidth=1.4, label="PyTorch's attention"))
    if any(record["target"] is not None for record in records):
        handles.append(Line2D([], [], label="target", **_TARGET))
    return handles
