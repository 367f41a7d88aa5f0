"""How figures of max retrieval are written: percent, deviations, p-values, rows and captions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from experiments.max_retrieval.records import Record, Table, WeightsKind
    from experiments.max_retrieval.selection import Line

MANY: Final = 6
"""With more columns than these, deviations no longer fit."""

WEIGHTS: Final = {"averaged": "averaged weights", "last": "last iterate"}


def percent(share: float) -> str:
    """A share as percent: one decimal, and two above 99, where one would hide differences."""
    return f"{100 * share:.2f}" if share > 0.99 else f"{100 * share:.1f}"


def with_deviation(record: Record) -> str:
    """Mean and deviation over seeds, in percent; the mean alone for a single seed."""
    if len(record.accuracy) == 1:
        return percent(record.mean)
    decimals = 2 if record.mean > 0.99 else 1
    return f"{percent(record.mean)} ± {100 * record.deviation:.{decimals}f}"


def p_value(value: float | None) -> str:
    """A p-value with as many digits as mean something; nothing for None."""
    if value is None:
        return ""
    if value >= 0.001:
        return f"{value:.2g}"
    if value < 1e-16:
        return "< 1e-16"
    mantissa, exponent = f"{value:.0e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def recipe_text(recipe: Mapping[str, Any] | None) -> str:
    """The choices of a training that matter here, in a few words."""
    if not recipe:
        return ""
    parts = []
    # Weights may come from the midst of a longer training.
    steps = recipe.get("tested_after", recipe.get("steps"))
    if steps is not None:
        parts.append(f"{steps:,} steps")
    if "learning_rate" in recipe:
        rate = f"{recipe['learning_rate']:g}"
        parts.append(f"rate {rate}, {recipe.get('schedule', 'constant')}")
    if "weight_decay" in recipe:
        decay = recipe["weight_decay"]
        kind = "decoupled" if recipe.get("decoupled", True) else "coupled"
        parts.append(f"decay {decay:g}, {kind}" if decay else "no decay")
    if recipe.get("ties"):
        parts.append("near ties")
    return "; ".join(parts)


def sets_and_seeds(records: Sequence[Record]) -> str:
    """How much was tested, for a caption."""
    sets = sorted({record.sets for record in records})
    seeds = sorted({len(record.accuracy) for record in records})
    return (
        f"{_span(seeds)} seed{'s' if seeds[-1] > 1 else ''}, {_span(sets)} sets a size, the same"
        " sets for every method"
    )


def heads(sizes: Sequence[int]) -> list[str]:
    """Sizes as heads of columns."""
    return [f"{n:,}" for n in sizes]


def records_of(several: Iterable[Line]) -> list[Record]:
    """The records of several lines, one after another."""
    return [record for line in several for record in line.values()]


def cell_of(line: Line, n: int, sizes: Sequence[int] = ()) -> str:
    """The accuracy at a size; without deviation where many sizes stand side by side."""
    if n not in line:
        return ""
    return percent(line[n].mean) if len(sizes) > MANY else with_deviation(line[n])


def rows_of(names: Sequence[str], several: Iterable[Line], sizes: Sequence[int]) -> list[list[str]]:
    """Rows of cells, with the best mean of each size in bold, and what reads the same as it."""
    several = list(several)
    rows = [[name] for name in names]
    for n in sizes:
        means = [percent(line[n].mean) for line in several if n in line]
        best = max(means, key=float, default="")
        for row, line in zip(rows, several, strict=True):
            cell = cell_of(line, n, sizes)
            row.append(f"**{cell}**" if cell and percent(line[n].mean) == best else cell)
    return rows


def caption_of(
    table: Table, several: Iterable[Line], sizes: Sequence[int], weights: WeightsKind | None = None
) -> str:
    """What the figures are, how much was tested, and the command that wrote them."""
    records = [record for record in records_of(several) if record.n in sizes]
    deviation = max(record.deviation for record in records)
    spread = f"; deviations over seeds up to {100 * deviation:.1f} points"
    if len(sizes) <= MANY:
        spread = " ± standard deviation over seeds"
    if max(len(record.accuracy) for record in records) == 1:
        spread = ""
    kind = f"{WEIGHTS[weights]}; " if weights else ""
    return f"Percent right, mean{spread}; {kind}{sets_and_seeds(records)}. {source(table)}"


def source(table: Table) -> str:
    """The command behind the figures."""
    return f"Written by `{table.command}`."


def _span(values: Sequence[int]) -> str:
    return " to ".join(f"{value:,}" for value in dict.fromkeys((values[0], values[-1])))
