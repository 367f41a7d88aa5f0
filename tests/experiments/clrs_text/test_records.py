from __future__ import annotations

from pathlib import Path

import pytest

from experiments.clrs_text.records import Record, Table


def _record(method: str, trained_with: str, n: int, *accuracy: float) -> Record:
    return Record(method, trained_with, "numbers", "minimum", n, 50, accuracy, accuracy)


def _table() -> Table:
    records = (
        _record("softmax", "softmax", 8, 1.0, 0.9, 0.95),
        _record("softmax", "softmax", 16, 0.9, 0.8, 0.85),
        _record("softmax", "softmax", 32, 0.5, 0.7, 0.5),
        _record("paper", "softmax", 32, 0.8, 0.9, 0.7),
        _record("paper", "paper", 32, 0.5, 0.7, 0.5),
    )
    return Table("a command", (0, 1, 2), {}, records, settings={"lengths": {"minimum": [4, 16]}})


def test_figures_of_a_record() -> None:
    table = _table()
    paper = table.find(method="paper", trained_with="softmax")
    assert paper.mean == pytest.approx(0.8)
    assert paper.deviation == pytest.approx(0.1)
    assert paper.interval[0] < 0.8 < paper.interval[1]
    p_value = table.p_value(paper)
    assert p_value is not None
    assert 0 < p_value < 0.05
    assert table.p_value(table.find(trained_with="paper")) == 1.0
    assert _record("softmax", "softmax", 8, 0.5).deviation == 0.0
    with pytest.raises(LookupError, match="found 3"):
        table.find(method="softmax")


def test_tables_round_trip(tmp_path: Path) -> None:
    table = _table()
    assert Table.load(table.save(tmp_path / "table.json")) == table
