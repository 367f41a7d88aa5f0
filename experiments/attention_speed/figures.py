"""The figure of the attention benchmark: ratio to PyTorch's attention against the length."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from sharpmax._extras import require
from sharpmax.report._page import style as _style

__all__ = ["draw_ratios"]

_PANELS: Final = {
    "prefill": "prefill",
    "sharp": "prefill, sharp rows",
    "curve": "256 queries, n keys",
}

_COLORS: Final = {"Paper": _style.VERMILION, "Exponential": _style.BLUE}

_STYLES: Final[dict[tuple[int, bool], dict[str, Any]]] = {
    (64, True): {"marker": "o", "linestyle": "-"},
    (64, False): {"marker": "s", "linestyle": "-"},
    (128, True): {"marker": "o", "linestyle": (0, (2, 1.5)), "markerfacecolor": "white"},
    (128, False): {"marker": "s", "linestyle": (0, (2, 1.5)), "markerfacecolor": "white"},
}
"""By width and mask: a circle is causal, a square full; filled is width 64, open 128."""


def draw_ratios(result: dict[str, Any], path: str | Path) -> Path:
    """Draw the ratio against the number of keys: a row of panels for each number of threads.

    Args:
        result: What the attention benchmark measured.
        path: Where to write; the suffix decides the format (.png, .svg, .pdf).

    Returns:
        The path that was written; folders on the way to it are made.

    Raises:
        MissingExtraError: matplotlib is not installed.
        ValueError: There is nothing to draw: none of the works has a panel.
    """
    matplotlib = require("matplotlib", extra="experiments", what="drawing a figure")
    figure_module = require("matplotlib.figure", extra="experiments", what="drawing a figure")
    drawn = [record for record in result["records"] if record["work"] in _PANELS]
    panels = [work for work in _PANELS if any(record["work"] == work for record in drawn)]
    if not panels:
        raise ValueError(f"result: expected records of one of {', '.join(_PANELS)}, got none")
    threads = sorted({record["threads"] for record in drawn})
    highest = max([1.25, *(record["ratio"] for record in drawn)]) * 1.08
    with matplotlib.rc_context(_style.SETTINGS):
        # A figure of its own, without pyplot: no window system is asked for, no state is left.
        figure = figure_module.Figure(figsize=(1.6 + 3.1 * len(panels), 1.5 + 2.6 * len(threads)))
        grid = figure.subplots(len(threads), len(panels), sharex="col", sharey=True, squeeze=False)
        for row, count in enumerate(threads):
            for column, work in enumerate(panels):
                axes = grid[row][column]
                records = [r for r in drawn if r["work"] == work and r["threads"] == count]
                if records:
                    _draw_panel(axes, records)
                axes.set_ylim(0.0, highest)
                if row == 0:
                    axes.set_title(_PANELS[work], fontsize=11)
                if row == len(threads) - 1:
                    axes.set_xlabel("number of keys")
                if column == 0:
                    axes.set_ylabel("1 thread" if count == 1 else f"{count} threads")
        figure.suptitle(
            "Time of sharpmax.attention over that of PyTorch's own",
            x=0.01,
            ha="left",
            fontweight="bold",
            fontsize=13,
        )
        handles = _legend(drawn)
        figure.legend(
            handles=handles, loc="lower left", ncols=4, frameon=False, fontsize=8.6, borderpad=0.2
        )
        figure.text(
            0.01,
            1.0 - 0.44 / figure.get_size_inches()[1],
            _machine(result),
            va="center",
            fontsize=8.4,
            color="#404040",
        )
        height = figure.get_size_inches()[1]
        figure.tight_layout(rect=(0.0, 0.62 / height, 1.0, 1.0 - 0.2 / height), w_pad=1.2)
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        # No date and no version in the file, so that the same result gives the same file.
        figure.savefig(path, metadata={"Software": None} if path.suffix == ".png" else None)
    return path


def _draw_panel(axes: Any, records: Sequence[dict[str, Any]]) -> None:
    lines: dict[tuple[str, int, bool], list[dict[str, Any]]] = {}
    for record in records:
        lines.setdefault((record["policy"], record["width"], record["causal"]), []).append(record)
    axes.axhline(1.0, color=_style.BLACK, linewidth=1.4, zorder=1)
    if records[0]["target"] is not None:
        axes.axhline(
            records[0]["target"], color=_style.GREY, linewidth=1.0, linestyle=(0, (4, 3)), zorder=1
        )
    for (policy, width, causal), points in lines.items():
        points = sorted(points, key=lambda record: record["length"])
        axes.plot(
            [point["length"] for point in points],
            [point["ratio"] for point in points],
            color=_COLORS.get(policy, _style.GREEN),
            # Policies cost much the same: the one below is wider, so that it is seen.
            linewidth=3.4 if policy == "Paper" else 1.2,
            markersize=7.5 if policy == "Paper" else 4.2,
            zorder=2 if policy == "Paper" else 3,
            **_STYLES.get((width, causal), {"marker": "^"}),
        )
    lengths = sorted({record["length"] for record in records})
    axes.set_xscale("log", base=2)
    # Eight labels of a curve would run into each other.
    ticks = lengths if len(lengths) <= 5 else lengths[::-2][::-1]
    axes.set_xticks(ticks, [_length(length) for length in ticks], fontsize=9)
    axes.minorticks_off()
    axes.grid(visible=True)
    axes.set_axisbelow(True)


def _legend(records: Sequence[dict[str, Any]]) -> list[Any]:
    """Only what occurs: colours are policies, marks are masks and widths."""
    lines = require("matplotlib.lines", extra="experiments", what="drawing a figure")
    handles = [
        lines.Line2D([], [], color=color, linewidth=2.4, label=policy)
        for policy, color in _COLORS.items()
        if any(record["policy"] == policy for record in records)
    ]
    for (width, causal), style in _STYLES.items():
        if any(record["width"] == width and record["causal"] == causal for record in records):
            label = f"{'causal' if causal else 'full'}, width {width}"
            handles.append(
                lines.Line2D([], [], color="#404040", markersize=4.6, label=label, **style)
            )
    handles.append(lines.Line2D([], [], color=_style.BLACK, linewidth=1.4, label="PyTorch's own"))
    if any(record["target"] is not None for record in records):
        dashes = {"color": _style.GREY, "linewidth": 1.0, "linestyle": (0, (4, 3))}
        handles.append(lines.Line2D([], [], label="to reach", **dashes))
    return handles


def _machine(result: dict[str, Any]) -> str:
    machine = result["machine"]
    return (
        f"float32, {machine['processor']}, {machine['vector_extension']},"
        f" PyTorch {result['versions']['torch']}"
    )


def _length(length: int) -> str:
    return f"{length // 1024}k" if length % 1024 == 0 else f"{length:,}"
