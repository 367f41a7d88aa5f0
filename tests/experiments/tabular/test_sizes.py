"""Curves against the size of the context, groups of tables, and remedies at their best size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from experiments.tabular.comparisons import best_table
from experiments.tabular.data import TableInfo
from experiments.tabular.design import FULL, contrast
from experiments.tabular.records import Cell, Record, Results
from experiments.tabular.sizes import draw_sizes, every_size, fitted_table, size_table
from experiments.tabular.where import EXPLORED, left_out_table, where_table

ARM = "exponential-0.125"
NAMES = [*EXPLORED, *(f"t/{i}" for i in range(6))]


@pytest.fixture
def results() -> Results:
    """Eight held-back tables on which the arm gains 0.01 per 4,096 rows; two gain nothing."""
    held = [TableInfo(n, "y", 60_000, 5 * i, 2 + i, 0.8, "report") for i, n in enumerate(NAMES)]
    own = TableInfo("choose/me", "y", 12_000, 5, 2, 0.8, "choose")
    made = Results(Path("none.json"), "", [own, *held], FULL.to_dict())

    def put(name: str, split: int, size: int, arm: str, auc: float) -> None:
        cell = Cell(name, split, size, arm)
        made.records[cell] = Record(cell, auc, auc, 1 - auc, 1 - auc, 1.0)

    for arm in FULL.candidates:
        put("choose/me", 1, FULL.choose_size, arm, 0.9 if arm == ARM else 0.8)
    for place, name in enumerate(NAMES):
        for split in (1, 2):
            for size in (1_024, 4_096, 10_000):
                level = 0.7 + 0.001 * place + size / 1e6
                gain = 0.0 if name in EXPLORED else 0.01 * size / 4_096
                put(name, split, size, "plain", level)
                put(name, split, size, ARM, level + gain)
        for rows, auc in (("", 0.72), ("-512", 0.60), ("-2048", 0.75)):
            put(name, 1, 10_000, f"ensemble{rows}", auc)
        put(name, 1, 10_000, "boosting", 0.7 + 0.01 * place)
    return made


def test_differences_grow_with_the_size(results: Results, tmp_path: Path) -> None:
    table = size_table(results)
    assert [row[0] for row in table.rows] == ["1,024", "4,096", "10,000"]
    assert [row[1:3] for row in table.rows] == [["8", "2"]] * 3
    expected = 0.75 * 0.01 * 10_000 / 4_096
    assert table.rows[-1][7].startswith(f"+{expected:.4f} ")
    assert table.rows[-1][7].endswith("6 of 8")
    assert ["10,000", "boosting"] in [list(row[:2]) for row in every_size(results).rows]
    path = draw_sizes(results, tmp_path / "sizes.png")
    assert path is not None
    assert path.stat().st_size > 10_000


def test_splits_count_where_plain_has_them_too(results: Results) -> None:
    for name in NAMES:
        del results.records[Cell(name, 2, 1_024, "plain")]
        cell = Cell(name, 1, 10_000, "fitted")
        results.records[cell] = Record(cell, 0.9, 0.9, 0.1, 0.1, 1.0)
    assert [row[2] for row in size_table(results).rows] == ["1", "2", "2"]
    rows = fitted_table(results).rows
    assert [row[:3] for row in rows] == [
        ["held back, 10,000 rows", other, "1"] for other in ("plain", ARM)
    ]


def test_few_tables_have_the_largest_sizes(results: Results, tmp_path: Path) -> None:
    before = draw_sizes(results, tmp_path / "before.png")
    for name, gain in zip(NAMES[2:], (0.3, -0.1, 0.1, 0.1, 0.1), strict=False):
        for arm, auc in (("plain", 0.5), (ARM, 0.5 + gain)):
            cell = Cell(name, 1, 20_000, arm)
            results.records[cell] = Record(cell, auc, auc, 1 - auc, 1 - auc, 1.0)
    table = size_table(results)
    *_, whole, same, larger = table.rows
    assert whole[:3] == ["10,000", "8", "2"]
    assert same[:3] == ["10,000, these 5", "5", "2"]
    assert larger[:3] == ["20,000", "5", "1"]
    assert same[4] == f"{0.7 + 0.004 + 0.01:.4f}"  # the third to seventh table, at 10,000 rows
    assert larger[7].startswith("+0.1000")
    # All gain 0.01 * 10,000 / 4,096 at 10,000 rows.
    assert "that at 10,000 on 4 of 5 tables, and further on 4 of these." in table.caption
    after = draw_sizes(results, tmp_path / "after.png")
    assert before is not None
    assert after is not None
    assert before.read_bytes() != after.read_bytes()


def test_levels_are_of_the_splits_that_both_arms_have(results: Results) -> None:
    before = [row[:6] for row in size_table(results).rows]
    for name in NAMES:
        cell = Cell(name, 3, 1_024, "plain")
        results.records[cell] = Record(cell, 0.1, 0.1, 9.0, 9.0, 1.0)
    assert [row[:6] for row in size_table(results).rows] == before


def test_tables_that_were_looked_at_before_can_be_left_out(results: Results) -> None:
    every, without = left_out_table(results).rows
    assert every[1].endswith("6 of 8")
    assert without[1].endswith("6 of 6")
    found = contrast(results, "report", 10_000, ARM, (10_000, "plain"), "auc", only=EXPLORED)
    assert found is not None
    assert list(found.differences) == list(EXPLORED)
    assert found.mean == 0.0


def test_groups_hold_every_table_once(results: Results) -> None:
    table = where_table(results)
    number = {row[0]: int(row[1]) for row in table.rows}
    assert number["all"] == 8
    assert number["2 classes"] + number["3 to 10 classes"] == 8
    assert number["up to 10 features"] + number["more than 10 features"] == 8
    assert sum(list(number.values())[-2:]) == 8
    assert table.rows[0][4:] == ["6", "0"]
    assert "Rank correlation" in table.caption


def test_each_remedy_is_compared_at_its_best_size(results: Results) -> None:
    rows = {row[0]: row for row in best_table(results).rows}
    assert rows["ensemble"][1:3] == ["512, 1,024, 2,048", "2,048"]
    assert rows["plain"][1:3] == ["1,024, 4,096, 10,000", "10,000"]
    ours = np.mean([results.records[Cell(n, 1, 10_000, ARM)].auc for n in NAMES])
    assert rows["ensemble"][3].startswith(f"{ours - 0.75:+.4f}".replace("-", "\N{MINUS SIGN}"))
