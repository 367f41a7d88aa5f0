"""What tables of accuracies have in common: figures over seeds, and finding records."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

from sharpmax.lab.significance import bootstrap_interval

__all__ = ["OverSeeds", "Records"]

Record = TypeVar("Record")


class OverSeeds:
    """A record that has an accuracy for each seed.

    Attributes:
        accuracy: Share of what was answered right, a number a seed.
    """

    accuracy: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean accuracy over seeds."""
        return sum(self.accuracy) / len(self.accuracy)

    @property
    def deviation(self) -> float:
        """Standard deviation over seeds (n - 1); 0 for a single seed."""
        if len(self.accuracy) == 1:
            return 0.0
        squares = sum((value - self.mean) ** 2 for value in self.accuracy)
        return float((squares / (len(self.accuracy) - 1)) ** 0.5)

    @property
    def interval(self) -> tuple[float, float]:
        """Bootstrap interval of the mean over seeds, 95%."""
        return bootstrap_interval(self.accuracy)


class Records(Generic[Record]):
    """A table of records.

    Attributes:
        records: What was measured.
    """

    records: tuple[Record, ...]

    def select(self, **values: object) -> Iterator[Record]:
        """Records whose fields have these values.

        Args:
            **values: Names of fields of a record, and what they are to be.
        """
        for record in self.records:
            if all(getattr(record, name) == value for name, value in values.items()):
                yield record

    def find(self, **values: object) -> Record:
        """The one record whose fields have these values.

        Raises:
            LookupError: There is no such record, or more than one.
        """
        found = list(self.select(**values))
        if len(found) != 1:
            raise LookupError(f"expected one record with {values}, found {len(found)}")
        return found[0]
