"""Make the tables of the document and the pages beside it from the files of a run."""

from __future__ import annotations

from pathlib import Path

from experiments.tabular.comparisons import (
    best_table,
    choice_table,
    fit_table,
    list_table,
    remedy_table,
    report_table,
    times_table,
)
from experiments.tabular.records import Results
from experiments.tabular.sizes import every_size, fitted_table, size_table
from experiments.tabular.where import left_out_table, where_table

__all__ = ["pages", "tables"]


def tables(results: Path) -> dict[str, str]:
    """Make the tables of the document, as far as they are measured."""
    measured = Results.load(results / "tabular.json")
    made = {
        "tabular-choice": choice_table(measured),
        "tabular-report": report_table(measured),
        "tabular-left-out": left_out_table(measured),
        "tabular-sizes": size_table(measured),
        "tabular-fitted": fitted_table(measured),
        "tabular-where": where_table(measured),
        "tabular-remedies": remedy_table(measured),
        "tabular-best": best_table(measured),
        "tabular-times": times_table(measured),
    }
    if (strengths := results / "strengths.json").exists():
        made["tabular-fit"] = fit_table(strengths)
    return {
        name: table.to_markdown(100) if table.rows else "Not measured yet."
        for name, table in made.items()
    }


def pages(results: Path) -> dict[str, str]:
    """Make the page with the list of all tables, and the page with all arms at all sizes."""
    measured = Results.load(results / "tabular.json")
    return {
        "tables.md": list_table(measured).to_markdown(),
        "sizes.md": every_size(measured).to_markdown(),
    }
