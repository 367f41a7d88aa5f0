"""Results over seeds: one record per measurement, all of them in one sealed table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

from experiments.common.significance import bootstrap_interval, paired_p_value
from sharpmax._files import (
    DamagedFileError,
    machine,
    read_sealed,
    typed,
    typed_fields,
    versions,
    write_sealed,
)

__all__ = ["OverSeeds", "RecordTable"]

Record = TypeVar("Record", bound="OverSeeds")


class OverSeeds:
    """Base of records, which are dataclasses with one accuracy per seed among other fields.

    Attributes:
        accuracy: Share of right answers, one number per seed.
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
        """95% bootstrap interval of the mean over seeds."""
        return bootstrap_interval(self.accuracy)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data: the fields, with mean, deviation and interval beside them."""
        record: Any = self
        figures = {name: getattr(self, name) for name in ("mean", "deviation", "interval")}
        return asdict(record) | figures

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Make the record that plain data describes; other entries are ignored.

        Raises:
            TypeError: An entry is missing, or is something else than the field.
        """
        kind: Any = cls
        names = {each.name for each in fields(kind)}
        made: Self = typed_fields({k: v for k, v in data.items() if k in names}, cls, "record")
        return made


@dataclass(frozen=True)
class RecordTable(Generic[Record]):
    """All records of an experiment, and what they come from. An experiment derives its own.

    A subclass sets `KIND` and `RECORD`, may add fields with defaults, and may override `extras`.

    Attributes:
        command: The command that makes this table.
        seeds: Seeds of the trainings.
        recipes: How models were trained: plain data by name.
        records: What was measured.
        settings: What all trainings and tests have in common.
        versions: Versions of the software.
        machine: The kind of machine.
    """

    KIND: ClassVar[str]
    RECORD: ClassVar[type[OverSeeds]]

    command: str
    seeds: tuple[int, ...]
    recipes: dict[str, dict[str, Any]]
    records: tuple[Record, ...]
    settings: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(
        default_factory=lambda: versions(("numpy", "torch", "transformers", "entmax", "scipy"))
    )
    machine: dict[str, Any] = field(default_factory=machine)

    def select(self, **values: object) -> Iterator[Record]:
        """Yield the records whose fields have the given values."""
        for record in self.records:
            if all(getattr(record, name) == value for name, value in values.items()):
                yield record

    def find(self, **values: object) -> Record:
        """Return the one record whose fields have the given values.

        Raises:
            LookupError: There is no such record, or more than one.
        """
        found = list(self.select(**values))
        if len(found) != 1:
            raise LookupError(f"expected one record with {values}, found {len(found)}")
        return found[0]

    def p_value_against(self, record: Record, **other: object) -> float | None:
        """Compare a record with another one over the same seeds, by a paired t-test.

        Args:
            record: One of the table.
            **other: Fields of the record to compare with.

        Returns:
            The two-sided p-value; None if the table does not have exactly one such record, or if
            there is nothing to test.
        """
        found = list(self.select(**other))
        return paired_p_value(record.accuracy, found[0].accuracy) if len(found) == 1 else None

    def extras(self, record: Record) -> dict[str, Any]:
        """Return what the file has beside the fields of a record, such as p-values."""
        return {}

    def save(self, path: str | Path) -> Path:
        """Write the table, with means, deviations, intervals and tests beside the accuracies."""
        names = [each.name for each in fields(self) if each.name != "records"]
        records = [{**record.to_dict(), **self.extras(record)} for record in self.records]
        data = {name: getattr(self, name) for name in names} | {"records": records}
        return write_sealed(path, self.KIND, data)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a table.

        Raises:
            DamagedFileError: The file is truncated, was edited, or is another kind of file.
        """
        data = read_sealed(path, cls.KIND)
        names = {each.name for each in fields(cls)}
        plain = {name: value for name, value in data.items() if name in names}
        try:
            if not isinstance(rows := plain.get("records"), list):
                raise TypeError(f"records: expected a list, got {type(rows).__name__}")
            records = tuple(
                typed(row, cls.RECORD, f"records[{number}]") for number, row in enumerate(rows)
            )
            table: Self = typed_fields({**plain, "records": []}, cls, "table")
        except TypeError as error:
            raise DamagedFileError(
                f"{path}: not a table of this experiment ({error}); run the command that made it"
            ) from None
        return replace(table, records=records)
