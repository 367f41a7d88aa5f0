"""What tables of accuracies have in common: figures over seeds, and finding records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields
from typing import Any, Generic, Self, TypeVar

from experiments.common.significance import bootstrap_interval

__all__ = ["OverSeeds", "Records"]

Record = TypeVar("Record")


class OverSeeds:
    """What dataclasses that have an accuracy for each seed, among other fields, have in common.

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

    def to_dict(self) -> dict[str, Any]:
        """Plain data: the fields, and figures over seeds beside them."""
        record: Any = self
        figures = {name: getattr(self, name) for name in ("mean", "deviation", "interval")}
        return asdict(record) | figures

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The record that plain data describes; what is no field of it is left out."""
        kind: Any = cls
        found = {field.name: data[field.name] for field in fields(kind)}
        # JSON has no tuples.
        return cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in found.items()})


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
