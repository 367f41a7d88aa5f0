"""Rows, cells and captions that the tables of max retrieval are made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from experiments.common.cells import percent, source, with_deviation
from experiments.max_retrieval.records import LONGEST, Line, Record, Table, sizes_of

__all__ = [
    "WEIGHTS",
    "best_beyond",
    "caption_of",
    "cell_of",
    "columns_of",
    "common_sizes",
    "recipe_text",
    "records_of",
    "rows_of",
    "sets_and_seeds",
    "words",
]

WEIGHTS: Final = {"averaged": "averaged weights", "last": "last iterate"}

_MANY: Final = 6
"""With more columns than these, deviations no longer fit."""

_MOST: Final = 0.9
"""A size has a column if such a share of the lines has it."""


def recipe_text(recipe: Mapping[str, Any] | None) -> str:
    """Describe the choices of a training that matter here."""
    if not recipe:
        return ""
    parts = []
    # Weights may come from the middle of a longer training.
    steps = recipe.get("tested_after", recipe.get("steps"))
    if steps is not None:
        parts.append(f"{steps:,} steps")
    if "learning_rate" in recipe:
        parts.append(f"rate {recipe['learning_rate']:g}, {recipe.get('schedule', 'constant')}")
    if "weight_decay" in recipe:
        decay = recipe["weight_decay"]
        kind = "decoupled" if recipe.get("decoupled", True) else "coupled"
        parts.append(f"decay {decay:g}, {kind}" if decay else "no decay")
    if recipe.get("ties"):
        parts.append("near ties")
    return "; ".join(parts)


def sets_and_seeds(records: Sequence[Record]) -> str:
    """Describe how much was tested, for a caption."""
    sets = sorted({record.sets for record in records})
    seeds = sorted({len(record.accuracy) for record in records})
    return (
        f"{_span(seeds)} seed{'s' if seeds[-1] > 1 else ''}, {_span(sets)} sets per size, the same"
        " sets for every method"
    )


def words(recipe: str) -> str:
    """Write the name of a recipe in words."""
    return recipe.replace("-", " ").replace("+", " + ")


def records_of(several: Iterable[Line]) -> list[Record]:
    """Return all records of some lines."""
    return [record for line in several for record in line.values()]


def columns_of(sizes: Sequence[int]) -> list[str]:
    """Return the headers of columns of sizes."""
    return [f"{n:,}" for n in sizes]


def common_sizes(found: Mapping[Any, Line], what: str) -> list[int]:
    """Return the sizes that nearly all lines have; some arms are tested at fewer."""
    sizes = sizes_of(found.values(), up_to=LONGEST)
    if not sizes:
        raise LookupError(f"the results have no {what}")
    have = {n: sum(n in line for line in found.values()) for n in sizes}
    return [n for n in sizes if have[n] >= _MOST * len(found)] or sizes


def cell_of(line: Line, n: int, sizes: Sequence[int] = ()) -> str:
    """Return the accuracy at a size; without deviation if there are many sizes."""
    if n not in line:
        return ""
    return percent(line[n].mean) if len(sizes) > _MANY else with_deviation(line[n].accuracy)


def rows_of(lines: Mapping[str, Line], sizes: Sequence[int]) -> list[list[str]]:
    """Return rows of cells; the best mean of each size, and what reads the same, is bold."""
    rows = [[name] for name in lines]
    for n in sizes:
        means = [percent(line[n].mean) for line in lines.values() if n in line]
        best = max(means, key=float, default="")
        for row, line in zip(rows, lines.values(), strict=True):
            cell = cell_of(line, n, sizes)
            row.append(f"**{cell}**" if cell and percent(line[n].mean) == best else cell)
    return rows


def caption_of(
    table: Table, several: Iterable[Line], sizes: Sequence[int], weights: str | None = None
) -> str:
    """Say what the figures are, how much was tested, and the command."""
    records = [record for record in records_of(several) if record.n in sizes]
    spread = " ± standard deviation over seeds"
    if len(sizes) > _MANY:
        deviation = max(record.deviation for record in records)
        spread = f"; standard deviations over seeds up to {100 * deviation:.1f} points"
    if max(len(record.accuracy) for record in records) == 1:
        spread = ""
    kind = f"{WEIGHTS[weights]}; " if weights else ""
    return (
        f"Accuracy in percent, mean{spread}; {kind}{sets_and_seeds(records)}."
        f" {source(table.command)}"
    )


def _span(values: Sequence[int]) -> str:
    return " to ".join(f"{value:,}" for value in dict.fromkeys((values[0], values[-1])))


def best_beyond(table: Table, n: int) -> tuple[str, Line] | None:
    """Return the recipe beyond the paper's that is most accurate with the exponential law."""
    found = {
        recipe: line
        for (recipe, method), line in table.lines("beyond", "averaged").items()
        if method == "exponential" and recipe != table.main_recipe and n in line
    }
    best = max(found, key=lambda recipe: found[recipe][n].mean, default=None)
    return None if best is None else (best, found[best])
