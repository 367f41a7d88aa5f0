"""The table of dispersion: the largest coefficient at a few lengths, one row per policy."""

from __future__ import annotations

from pathlib import Path

from experiments.dispersion.measure import Dispersion
from sharpmax.report._page.tables import Table

__all__ = ["dispersion_table", "tables"]

_COLUMNS = 6


def tables(results: Path) -> dict[str, str]:
    """Make the table of the document from `dispersion.json`."""
    measured = Dispersion.load(results / "dispersion.json")
    return {"dispersion": dispersion_table(measured).to_markdown(100)}


def dispersion_table(measured: Dispersion) -> Table:
    """Show the largest coefficient at up to six lengths, evenly apart."""
    last = len(measured.sizes) - 1
    steps = min(_COLUMNS - 1, last) or 1
    places = list(dict.fromkeys(round(last * step / steps) for step in range(steps + 1)))
    return Table(
        ["largest coefficient at n =", *(f"{measured.sizes[place]:,}" for place in places)],
        [
            [curve.name, *(f"{curve.largest[place]:.3g}" for place in places)]
            for curve in measured.curves
        ],
        caption=measured.description,
    )
