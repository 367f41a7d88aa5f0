from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from experiments.common.records import OverSeeds, RecordTable


@dataclass(frozen=True)
class _Record(OverSeeds):
    method: str
    n: int
    accuracy: tuple[float, ...]


@dataclass(frozen=True)
class _Table(RecordTable[_Record]):
    KIND = "a table"
    RECORD = _Record


SOME = _Record("softmax", 16, (0.5, 0.7, 0.9))


def test_figures_over_seeds() -> None:
    assert SOME.mean == pytest.approx(0.7)
    assert SOME.deviation == pytest.approx(np.std(SOME.accuracy, ddof=1))
    low, high = SOME.interval
    assert 0.5 <= low < 0.7 < high <= 0.9
    assert _Record("softmax", 16, (0.5,)).deviation == 0.0


def test_plain_data_and_back() -> None:
    data = SOME.to_dict()
    assert data["mean"] == SOME.mean
    assert data["interval"] == SOME.interval
    # As it comes back from JSON: a list, and figures beside the fields.
    assert _Record.from_dict({**data, "accuracy": list(SOME.accuracy)}) == SOME


def test_records_by_their_fields() -> None:
    other = _Record("paper", 16, (0.8, 0.8, 0.8))
    table = _Table("a command", (0, 1, 2), {}, (SOME, other))
    assert list(table.select(n=16)) == [SOME, other]
    assert table.find(method="paper") == other
    with pytest.raises(LookupError, match="found 2"):
        table.find(n=16)
    with pytest.raises(LookupError, match="found 0"):
        table.find(n=32)
