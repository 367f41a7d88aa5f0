"""What was measured: one record for each method, kind of weights and size."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from experiments.common.records import OverSeeds, Records
from experiments.common.significance import paired_p_value
from sharpmax._files import machine, read_sealed, versions, write_sealed

__all__ = ["Group", "Record", "Table", "WeightsKind"]

WeightsKind = Literal["last", "averaged"]
Group = Literal["inference", "trained", "training", "beyond"]

_KIND = "max-retrieval table, format 1"


@dataclass(frozen=True)
class Record(OverSeeds):
    """The accuracy of a method at a size.

    Attributes:
        method: What makes weights of logits in the test, by name.
        weights: The last iterate, or the moving average.
        trained_with: What made weights of logits in training, by name.
        recipe: Name of the recipe of the training; the table has the recipe.
        group: Part of the table: methods at inference on the same weights, methods that were
            trained in, details of the training of plain softmax, or recipes that go beyond.
        n: Items in a set.
        sets: Number of sets that were tested; the same sets for every method and seed.
        accuracy: Share of the sets that were answered right, a number a seed.
    """

    method: str
    weights: WeightsKind
    trained_with: str
    recipe: str
    group: Group
    n: int
    sets: int
    accuracy: tuple[float, ...]


@dataclass(frozen=True)
class Table(Records[Record]):
    """All records of an experiment, and what they come from.

    Attributes:
        command: The command that makes this table.
        seeds: The seeds of the heads.
        recipes: How heads were trained: plain data, by name.
        records: What was measured.
        versions: Versions of the software.
        machine: The kind of machine.
        settings: What all trainings and tests have in common.
    """

    command: str
    seeds: tuple[int, ...]
    recipes: dict[str, dict[str, Any]]
    records: tuple[Record, ...]
    versions: dict[str, str] = field(
        default_factory=lambda: versions(("numpy", "torch", "entmax", "scipy"))
    )
    machine: dict[str, Any] = field(default_factory=machine)
    settings: dict[str, Any] = field(default_factory=dict)

    def p_value(self, record: Record, method: str) -> float | None:
        """Paired p-value of a record against another method: same weights, same sets, same seeds.

        Returns:
            The p-value; None without the other method in the table, or where there is none.
        """
        same = {name: getattr(record, name) for name in ("weights", "recipe", "group", "n")}
        others = list(self.select(method=method, **same))
        return paired_p_value(record.accuracy, others[0].accuracy) if len(others) == 1 else None

    def sizes(self) -> list[int]:
        """The sizes, from small to large."""
        return sorted({record.n for record in self.records})

    def save(self, path: str | Path) -> Path:
        """Write the table, with means, deviations, intervals and tests beside the accuracies."""
        records = []
        for record in self.records:
            data = record.to_dict()
            if record.method != "softmax":
                data["p_value_against_softmax"] = self.p_value(record, "softmax")
            if record.method not in ("softmax", "paper"):
                data["p_value_against_paper"] = self.p_value(record, "paper")
            records.append(data)
        return write_sealed(
            path,
            _KIND,
            {
                "command": self.command,
                "seeds": self.seeds,
                "versions": self.versions,
                "machine": self.machine,
                "settings": self.settings,
                "recipes": self.recipes,
                "records": records,
            },
        )

    @classmethod
    def load(cls, path: str | Path) -> Table:
        """Read a table.

        Raises:
            DamagedFileError: The file is cut off, was edited, or is no such table.
        """
        data = read_sealed(path, _KIND)
        return cls(
            command=data["command"],
            seeds=tuple(data["seeds"]),
            recipes=data["recipes"],
            records=tuple(map(Record.from_dict, data["records"])),
            versions=data["versions"],
            machine=data["machine"],
            settings=data["settings"],
        )
