"""The sealed file of the experiment: one record per table, split, size and arm."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from experiments.tabular.data import TableInfo
from sharpmax._files import check_settings, machine, read_sealed, versions, write_sealed

__all__ = ["Cell", "Record", "Results"]

KIND = "tabular, format 1"
Array = np.ndarray[Any, Any]


@dataclass(frozen=True, order=True)
class Cell:
    """One prediction: an arm with a context of `size` rows on one split of a table."""

    table: str
    split: int
    size: int
    arm: str


@dataclass(frozen=True)
class Record:
    """What one cell gave.

    Attributes:
        cell: The cell.
        accuracy: Share of right classes.
        auc: Mean area under the ROC curve, one class against the rest.
        loss: Log-loss in nats.
        calibrated: Log-loss after a fitted output temperature.
        seconds: Processor time.
        beta: Mean inverse temperature of the attention, or None.
    """

    cell: Cell
    accuracy: float
    auc: float
    loss: float
    calibrated: float
    seconds: float
    beta: float | None = None


@dataclass
class Results:
    """All records, with the tables, the settings and the command behind them.

    Attributes:
        path: The sealed file.
        command: The command that made it.
        tables: The tables, with their halves.
        settings: What all cells have in common.
        records: By cell.
        heads: Entropies or inverse temperatures per layer and head, by table, split, size and
            what they are.
    """

    path: Path
    command: str
    tables: list[TableInfo]
    settings: dict[str, Any]
    records: dict[Cell, Record] = field(default_factory=dict)
    heads: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path) -> Results:
        """Read a file.

        Raises:
            DamagedFileError: The file is truncated, was edited, or is another kind of file.
        """
        data = read_sealed(path, KIND)
        found = [Record(Cell(*row[:4]), *row[4:]) for row in data["records"]]
        return cls(
            path,
            data["command"],
            [TableInfo(**each) for each in data["tables"]],
            data["settings"],
            {record.cell: record for record in found},
            data["heads"],
        )

    def check(self, tables: Iterable[TableInfo], settings: dict[str, Any]) -> None:
        """Check that a run is resumed with the same tables and settings."""
        check_settings(self.settings, settings, self.path)
        check_settings(
            {"tables": [asdict(each) for each in self.tables]},
            {"tables": [asdict(each) for each in tables]},
            self.path,
        )

    def save(self) -> None:
        """Write the file, whole or not at all; a record is one row of the list."""
        write_sealed(
            self.path,
            KIND,
            {
                "command": self.command,
                "settings": self.settings,
                "versions": versions(("numpy", "torch", "scikit-learn", "scipy")),
                "machine": machine(),
                "tables": [asdict(each) for each in self.tables],
                "columns": [*Cell.__annotations__, *list(Record.__annotations__)[1:]],
                "records": [
                    [*asdict(cell).values(), *list(asdict(record).values())[1:]]
                    for cell, record in sorted(self.records.items())
                ],
                "heads": self.heads,
            },
        )

    def keep_heads(self, kind: str, cell: Cell, values: Array) -> None:
        """Keep one number per layer and head."""
        self.heads[f"{kind} {cell.table} {cell.split} {cell.size}"] = values.round(4).tolist()

    def find_heads(self, kind: str, table: str, split: int, size: int) -> Array | None:
        """Return what `keep_heads` kept, or None."""
        found = self.heads.get(f"{kind} {table} {split} {size}")
        return None if found is None else np.array(found)
