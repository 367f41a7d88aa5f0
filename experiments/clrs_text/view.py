"""Views of the results: averages over algorithms and sizes, and comparisons with softmax."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias

import numpy as np

from experiments.clrs_text.records import Table as Results
from experiments.common.methods import look
from experiments.common.significance import paired_p_value

__all__ = ["LEARNED", "PLAIN", "Measure", "View", "Way", "Where", "label_of", "views"]

LEARNED: Final = 0.9
"""An algorithm counts as learned from this accuracy of plain softmax at training sizes."""

Measure = Literal["accuracy", "tokens"]
"""The fields of a record that a table can show."""

Where: TypeAlias = float | Literal["training", "beyond"]
"""Training sizes, sizes beyond training, or one multiple of the largest training size."""


class Way(NamedTuple):
    """How a model was trained and tested.

    Attributes:
        trained_with: The attention in training.
        method: The attention in the test.
    """

    trained_with: str
    method: str


PLAIN: Final = Way("softmax", "softmax")
"""The baseline."""


def label_of(way: Way) -> str:
    """Name a way for readers.

    Example:
        >>> label_of(Way("softmax", "paper")), label_of(Way("paper", "paper"))
        ("paper's rule, inference only", "paper's rule, trained")
        >>> label_of(Way("tuned-paper", "paper"))
        "paper's rule, fine-tuned"
    """
    label = look(way.method).label
    if way == PLAIN:
        return label
    if way.trained_with.startswith("tuned-"):
        return f"{label}, fine-tuned"
    return f"{label}, {'inference only' if way.trained_with == 'softmax' else 'trained'}"


@dataclass(frozen=True)
class View:
    """The results of one tokenizer, by one measure.

    Attributes:
        results: All results.
        tokenizer: Name of the tokenizer.
        measure: The field of a record to show.
    """

    results: Results
    tokenizer: str
    measure: Measure = "accuracy"

    @property
    def algorithms(self) -> list[str]:
        """All algorithms."""
        return list(self.results.lengths)

    @property
    def learned(self) -> list[str]:
        """The algorithms that plain softmax learned; all of them if it learned none."""
        plain = View(self.results, self.tokenizer)
        shares = {name: plain.shares(PLAIN, [name], "training") for name in self.algorithms}
        found = [name for name, each in shares.items() if each and np.mean(each) >= LEARNED]
        return found or [name for name, each in shares.items() if each]

    @property
    def multiples(self) -> list[float]:
        """The sizes of the tables, as multiples of the largest training size."""
        return [1.0, *self.results.settings["times"]]

    @property
    def ways(self) -> list[Way]:
        """How models were trained and tested, in the order of the results."""
        records = self.results.select(tokenizer=self.tokenizer)
        return list(dict.fromkeys(Way(each.trained_with, each.method) for each in records))

    def shares(self, way: Way, names: Sequence[str], where: Where) -> tuple[float, ...]:
        """Average the measure over algorithms and sizes, per seed.

        Args:
            way: How the models were trained and tested.
            names: The algorithms.
            where: All training sizes, all sizes beyond training, or one multiple of the largest
                training size.

        Returns:
            One number per seed; nothing if there are no such records.
        """
        found = []
        for record in self.results.select(tokenizer=self.tokenizer, **way._asdict()):
            largest = self.results.settings["lengths"][record.algorithm][1]
            matches = (
                self.results.is_seen(record) == (where == "training")
                if isinstance(where, str)
                else record.n == int(np.ceil(largest * where))
            )
            if record.algorithm in names and matches:
                found.append(getattr(record, self.measure))
        return tuple(np.mean(found, axis=0).tolist()) if found else ()

    def gain(
        self, way: Way, names: Sequence[str], where: Where
    ) -> tuple[float | None, float | None]:
        """Compare a way with plain softmax; for the arguments see `shares`.

        Returns:
            The points gained and the p-value of the paired t-test over seeds, each None where it
            is undefined.
        """
        ours, plain = (self.shares(each, names, where) for each in (way, PLAIN))
        if not ours or len(ours) != len(plain):
            return None, None
        # Rounding keeps differences that are equal from differing in the last bit.
        difference = [round(mine - its, 12) for mine, its in zip(ours, plain, strict=True)]
        p = paired_p_value(difference, [0.0] * len(difference))
        return float(100 * (np.mean(ours) - np.mean(plain))), p

    @property
    def averaged(self) -> str:
        """Say which algorithms the averages are over."""
        plain = View(self.results, self.tokenizer)
        if any(np.mean(plain.shares(PLAIN, [name], "training")) < LEARNED for name in self.learned):
            return f"all algorithms, because none is learned to {LEARNED:.0%}"
        return f"the learned algorithms ({', '.join(self.learned)})"


def views(results: Results, measure: Measure = "accuracy") -> list[View]:
    """Return one view per tokenizer, in the order of the results."""
    names = dict.fromkeys(record.tokenizer for record in results.records)
    return [View(results, name, measure) for name in names]
