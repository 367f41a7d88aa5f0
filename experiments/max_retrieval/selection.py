"""What tables, figures and pages take from the results of max retrieval."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from experiments.common.significance import paired_p_value

if TYPE_CHECKING:
    from experiments.max_retrieval.records import Group, Record, Table, WeightsKind

Line = dict[int, "Record"]
"""The records of one method with one training, by size."""

LONGEST = 16_384
"""The largest size of the paper; what goes further has a table of its own."""


def main_recipe(table: Table) -> str | None:
    """The recipe whose weights methods are compared on at inference; None without any."""
    return next((record.recipe for record in table.select(group="inference")), None)


def weights_kinds(table: Table, group: Group) -> list[WeightsKind]:
    """The kinds of weights that a group has: averaged first, then the last iterate."""
    kinds = {record.weights for record in table.select(group=group)}
    return [kind for kind in ("averaged", "last") if kind in kinds]


def lines(table: Table, group: Group, weights: WeightsKind) -> dict[tuple[str, str], Line]:
    """Records by recipe and method, then by size, in the order of the table.

    At inference only those of the main recipe, since methods are compared on the same weights.
    """
    recipe = main_recipe(table)
    found: dict[tuple[str, str], Line] = {}
    for record in table.select(group=group, weights=weights):
        if group != "inference" or record.recipe == recipe:
            found.setdefault((record.recipe, record.method), {})[record.n] = record
    return {key: dict(sorted(line.items())) for key, line in found.items()}


def sizes_of(several: Iterable[Line], *, up_to: float = float("inf")) -> list[int]:
    """All sizes of several lines, from small to large."""
    return sorted({n for line in several for n in line if n <= up_to})


def compare(line: Line, other: Line, n: int) -> float | None:
    """Paired p-value of two lines at a size; None where one lacks it or the seeds differ."""
    if n not in line or n not in other:
        return None
    ours, theirs = line[n].accuracy, other[n].accuracy
    if len(ours) != len(theirs):
        return None
    # Shares are no round numbers in binary: without this, differences that are the same on every
    # seed would seem to differ, by rounding alone, and get a p-value next to nothing.
    difference = [round(mine - its, 12) for mine, its in zip(ours, theirs, strict=True)]
    return paired_p_value(difference, [0.0] * len(difference))
