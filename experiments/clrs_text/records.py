"""What was measured: one record for each method, algorithm and size."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from experiments.common.records import OverSeeds, Records
from experiments.common.significance import paired_p_value
from sharpmax._files import machine, read_sealed, versions, write_sealed

__all__ = ["Record", "Table"]

_KIND = "CLRS-Text table, format 1"


@dataclass(frozen=True)
class Record(OverSeeds):
    """The accuracy of a method on an algorithm at a size.

    Attributes:
        method: What makes weights of logits in the test, by name.
        trained_with: What made weights of logits in training, by name; where it is not the method,
            the method is one at inference alone.
        tokenizer: How text became tokens.
        algorithm: What was asked.
        n: Size of the inputs.
        examples: Number of questions; the same for every method and seed.
        accuracy: Share of the questions that were answered right, a number a seed.
        tokens: Share of the tokens of answers that were right, those before them given, a number a
            seed: long answers that are all wrong may be so by a token or by all.
    """

    method: str
    trained_with: str
    tokenizer: str
    algorithm: str
    n: int
    examples: int
    accuracy: tuple[float, ...]
    tokens: tuple[float, ...]


@dataclass(frozen=True)
class Table(Records[Record]):
    """All records of an experiment, and what they come from.

    Attributes:
        command: The command that makes this table.
        seeds: The seeds of the trainings.
        recipes: How models were trained: plain data, by the name of the arm.
        records: What was measured.
        lengths: The smallest and the largest size in training, of each algorithm.
        settings: What all trainings and tests have in common.
        versions: Versions of the software.
        machine: The kind of machine.
    """

    command: str
    seeds: tuple[int, ...]
    recipes: dict[str, dict[str, Any]]
    records: tuple[Record, ...]
    lengths: dict[str, tuple[int, int]] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(
        default_factory=lambda: versions(("numpy", "torch", "transformers", "dm-clrs", "scipy"))
    )
    machine: dict[str, Any] = field(default_factory=machine)

    def is_seen(self, record: Record) -> bool:
        """Whether a size is among those of training."""
        smallest, largest = self.lengths[record.algorithm]
        return smallest <= record.n <= largest

    def accuracy_in_training(
        self, algorithm: str, tokenizer: str, method: str = "softmax", trained_with: str = "softmax"
    ) -> float | None:
        """Mean accuracy over seeds and the sizes of training; None if there is nothing of it."""
        found = [
            record.mean
            for record in self.select(
                algorithm=algorithm, tokenizer=tokenizer, method=method, trained_with=trained_with
            )
            if self.is_seen(record)
        ]
        return sum(found) / len(found) if found else None

    def p_value(self, record: Record) -> float | None:
        """Paired p-value against plain softmax: same seeds, same questions.

        Returns:
            The p-value; None without softmax in the table, or where there is none.
        """
        same = {name: getattr(record, name) for name in ("tokenizer", "algorithm", "n")}
        others = list(self.select(method="softmax", trained_with="softmax", **same))
        return paired_p_value(record.accuracy, others[0].accuracy) if len(others) == 1 else None

    def save(self, path: str | Path) -> Path:
        """Write the table, with means, deviations, intervals and tests beside the accuracies."""
        records = []
        for record in self.records:
            data = {**record.to_dict(), "seen": self.is_seen(record)}
            if (record.method, record.trained_with) != ("softmax", "softmax"):
                data["p_value_against_softmax"] = self.p_value(record)
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
                "lengths": self.lengths,
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
            lengths={name: (low, high) for name, (low, high) in data["lengths"].items()},
            settings=data["settings"],
            versions=data["versions"],
            machine=data["machine"],
        )
