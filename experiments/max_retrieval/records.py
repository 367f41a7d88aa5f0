"""What was measured: one record per method, kind of weights and size."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from experiments.common.records import OverSeeds, RecordTable
from experiments.common.significance import paired_p_value

__all__ = [
    "LONGEST",
    "Group",
    "Line",
    "Record",
    "Table",
    "WeightsKind",
    "compare",
    "sizes_of",
]

WeightsKind = Literal["last", "averaged"]
Group = Literal["inference", "trained", "training", "beyond"]

LONGEST = 16_384
"""The largest size of the paper; larger ones have a table of their own."""


@dataclass(frozen=True)
class Record(OverSeeds):
    """The accuracy of a method at a size.

    Attributes:
        method: What turns logits into weights in the test, by name.
        weights: The last iterate, or the moving average.
        trained_with: What turned logits into weights in training, by name.
        recipe: Name of the recipe of the training; the table holds the recipe.
        group: Part of the table: methods at inference on the same weights, methods used in
            training, details of the training of plain softmax, or recipes beyond the paper's.
        n: Items per set.
        sets: Number of test sets; the same sets for every method and seed.
        accuracy: Share of the sets that were answered correctly, one number per seed.
    """

    method: str
    weights: WeightsKind
    trained_with: str
    recipe: str
    group: Group
    n: int
    sets: int
    accuracy: tuple[float, ...]


Line = dict[int, Record]
"""The records of one method and one training, by size."""


@dataclass(frozen=True)
class Table(RecordTable[Record]):
    """All records of max retrieval, and what they come from."""

    KIND: ClassVar[str] = "max-retrieval table, format 1"
    RECORD: ClassVar[type[OverSeeds]] = Record

    def extras(self, record: Record) -> dict[str, Any]:
        """Return paired p-values against softmax and the paper's rule: same weights, same sets."""
        same = {name: getattr(record, name) for name in ("weights", "recipe", "group", "n")}
        order = ("softmax", "paper", record.method)
        return {
            f"p_value_against_{method}": self.p_value_against(record, method=method, **same)
            for method in order[: order.index(record.method)]
        }

    def sizes(self) -> list[int]:
        """Return the sizes, from small to large."""
        return sorted({record.n for record in self.records})

    @property
    def main_recipe(self) -> str | None:
        """The recipe on whose weights methods are compared at inference, if there is any."""
        return next((record.recipe for record in self.select(group="inference")), None)

    def weights_kinds(self, group: str) -> list[WeightsKind]:
        """Return the kinds of weights of a group: averaged first, then the last iterate."""
        kinds = {record.weights for record in self.select(group=group)}
        return [kind for kind in ("averaged", "last") if kind in kinds]

    def lines(self, group: str, weights: WeightsKind) -> dict[tuple[str, str], Line]:
        """Return records by recipe and method, then by size, in the order of the table.

        At inference only those of the main recipe: methods are compared on the same weights.
        """
        recipe = self.main_recipe
        found: dict[tuple[str, str], Line] = {}
        for record in self.select(group=group, weights=weights):
            if group != "inference" or record.recipe == recipe:
                found.setdefault((record.recipe, record.method), {})[record.n] = record
        return {key: dict(sorted(line.items())) for key, line in found.items()}

    def at_inference(self, weights: WeightsKind) -> dict[str, Line]:
        """Return the lines of the methods at inference, by method."""
        return {method: line for (_, method), line in self.lines("inference", weights).items()}


def sizes_of(several: Iterable[Line], *, up_to: float = float("inf")) -> list[int]:
    """Return all sizes of several lines, from small to large."""
    return sorted({n for line in several for n in line if n <= up_to})


def compare(line: Line, other: Line, n: int) -> float | None:
    """Return the paired p-value of two lines at a size; None if it cannot be computed."""
    if n not in line or n not in other:
        return None
    ours, theirs = line[n].accuracy, other[n].accuracy
    return paired_p_value(ours, theirs) if len(ours) == len(theirs) else None
