"""Results: one record per method, algorithm and size."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from experiments.common.records import OverSeeds, RecordTable
from sharpmax._files import read_sealed, versions

__all__ = ["ENTROPY", "Record", "Table", "load_entropy"]

ENTROPY = "CLRS-Text entropy, format 1"
"""The kind of file that `Study.measure_entropy` writes."""


@dataclass(frozen=True)
class Record(OverSeeds):
    """The accuracy of a method on an algorithm at a size.

    Attributes:
        method: Name of the attention in the test.
        trained_with: Name of the attention in training. If it differs from `method`, the method was
            applied at inference only.
        tokenizer: Name of the tokenizer.
        algorithm: Name of the algorithm.
        n: Size of the inputs.
        examples: Number of questions, the same for every method and seed.
        accuracy: Share of correct answers, one number per seed.
        tokens: Share of correct answer tokens given the correct tokens before them, one number per
            seed. It separates answers that are wrong by one token from those that are all wrong.
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
class Table(RecordTable[Record]):
    """All records of an experiment, and what they come from."""

    KIND: ClassVar[str] = "CLRS-Text table, format 1"
    RECORD: ClassVar[type[OverSeeds]] = Record

    versions: dict[str, str] = field(
        default_factory=lambda: versions(("numpy", "torch", "transformers", "dm-clrs", "scipy"))
    )

    @property
    def lengths(self) -> dict[str, tuple[int, int]]:
        """The smallest and the largest training size, by algorithm."""
        return {name: (low, high) for name, (low, high) in self.settings["lengths"].items()}

    def is_seen(self, record: Record) -> bool:
        """Tell whether the size of a record is a training size."""
        smallest, largest = self.settings["lengths"][record.algorithm]
        return bool(smallest <= record.n <= largest)

    def p_value(self, record: Record) -> float | None:
        """Compare a record with plain softmax on the same questions and seeds.

        Returns:
            The p-value of the paired t-test; None if the table lacks softmax, or if there is
            nothing to test.
        """
        same = {name: getattr(record, name) for name in ("tokenizer", "algorithm", "n")}
        return self.p_value_against(record, method="softmax", trained_with="softmax", **same)

    def extras(self, record: Record) -> dict[str, Any]:
        """Return whether the size was seen in training, and the p-value against softmax."""
        found: dict[str, Any] = {"seen": self.is_seen(record)}
        if (record.method, record.trained_with) != ("softmax", "softmax"):
            found["p_value_against_softmax"] = self.p_value(record)
        return found


def load_entropy(path: Path) -> dict[str, Any]:
    """Read what `Study.measure_entropy` wrote.

    Raises:
        DamagedFileError: The file is truncated, was edited, or is another kind of file.
    """
    return read_sealed(path, ENTROPY)
