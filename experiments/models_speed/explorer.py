"""Make the table of how fast the explorer reacts, from what `scripts/time_explorer.py` wrote."""

from __future__ import annotations

import statistics
from pathlib import Path

from sharpmax._files import read_sealed
from sharpmax.report._page.tables import Table

__all__ = ["TARGETS", "explorer_table"]

TARGETS = {16_384: 1000 / 60, 1_048_576: 100.0}
"""Milliseconds in which the page is to react, by number of items."""


def explorer_table(path: Path) -> Table:
    """Return one row per device and kind of change: median and largest time, by number of items."""
    result = read_sealed(path, "times of the explorer")
    columns = [f"{n:,} items, ms (aim {aim:.3g})" for n, aim in TARGETS.items()]
    rows = []
    for device, times in result["times"].items():
        for kind in dict.fromkeys(name.split()[0] for name in times):
            found = [times[f"{kind} {n}"] for n in TARGETS]
            cells = [f"{statistics.median(each):.1f}, at most {max(each):.1f}" for each in found]
            rows.append([device, kind, *cells])
    changes = len(next(iter(next(iter(result["times"].values())).values())))
    return Table(
        ["device", "change", *columns],
        rows,
        title="Reactions of the explorer",
        caption=f"Median and largest time of {changes} changes. length: n alone; shape: the spread "
        "too; settled: the same for the parts of the page that are not on the screen. The phone "
        f"has a processor four times slower. {result['versions']['browser']}, "
        f"{result['machine']['processor']}. Written by `{result['command']}`.",
        words=2,
    )
