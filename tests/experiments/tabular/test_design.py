"""The order of the cells, the choice and the comparison over tables."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from experiments.tabular.data import TableInfo
from experiments.tabular.design import (
    FULL,
    added_cells,
    adjusted,
    cells,
    chosen_arm,
    contrast,
)
from experiments.tabular.records import Cell, Record, Results

TABLES = [
    TableInfo(f"t/{i}", "y", 12_000, 5, 2 + i, 0.8, "choose" if i % 2 else "report")
    for i in range(8)
]


def made(losses: dict[str, float]) -> Results:
    """Results of the first split of the tables for choosing."""
    results = Results(Path("none.json"), "", TABLES, FULL.to_dict())
    for info in TABLES:
        if info.half == "choose":
            for arm, loss in losses.items():
                cell = Cell(info.name, 1, FULL.choose_size, arm)
                results.records[cell] = Record(cell, 0.8, 0.9 - loss, loss, loss, 1.0)
    return results


LOSSES = {
    "plain": 0.5, "log-length": 0.48, "exponential-0.0625": 0.47, "exponential-0.125": 0.45,
    "exponential-0.25": 0.6,
}  # fmt: skip


def test_the_best_candidate_is_chosen_once_all_cells_are_there() -> None:
    results = made(LOSSES)
    assert chosen_arm(FULL, results) == "exponential-0.125"
    better = made(LOSSES | {"log-length": 0.1})
    assert chosen_arm(FULL, better) == "log-length"
    assert chosen_arm(FULL, better, adaptive=True) == "exponential-0.125"
    results.records.popitem()
    assert chosen_arm(FULL, results) is None


def test_tables_held_back_wait_for_the_choice() -> None:
    held = {info.name for info in TABLES if info.half == "report"}
    results = made(LOSSES)
    results.records.popitem()
    waiting = list(cells(FULL, TABLES, results))
    assert waiting
    assert not any(cell.table in held for cell in waiting)
    every = list(cells(FULL, TABLES, made(LOSSES)))
    first = next(cell for cell in every if cell.table in held)
    assert (first.split, first.size, first.arm) == (1, 1024, "plain")
    arms = {cell.arm for cell in every if cell.table in held and cell.size == 10_000}
    assert {"plain", "log-length", "exponential-0.125", "matched", "boosting"} <= arms
    assert "exponential-0.25" not in arms
    assert not any(cell.size > 11_000 for cell in every)  # the tables have 12,000 rows
    # The reference entropies of a table are there before an arm needs them.
    for place, cell in enumerate(every):
        if cell.arm.startswith("exponential"):
            assert Cell(cell.table, cell.split, 1024, "plain") in every[:place]


def test_added_cells_wait_for_the_choice_and_for_what_they_are_matched_to() -> None:
    results = made(LOSSES)
    every = list(added_cells(FULL, TABLES, results, fitted=True))
    assert {cell.arm for cell in every if cell.size == 4096} == {"fitted", "boosting"}
    held = {info.name for info in TABLES if info.half == "report"}
    boosted = {(cell.table, cell.size) for cell in every if cell.arm == "boosting"}
    assert boosted == {(name, size) for name in held for size in (512, 1024, 4096)}
    assert not any(cell.arm == "matched" for cell in every)
    results.keep_heads("beta", Cell("t/0", 2, 4096, "exponential-0.125"), np.ones((2, 2)))
    later = list(added_cells(FULL, TABLES, results, fitted=False))
    assert [cell for cell in later if cell.arm == "matched"] == [Cell("t/0", 2, 4096, "matched")]
    assert not any(cell.arm == "fitted" for cell in later)
    beside = list(added_cells(FULL, TABLES, results, fitted=True))
    assert Cell("t/0", 2, 4096, "fitted") in beside
    # Nothing that the design has already is yielded again.
    assert not set(every) & set(cells(FULL, TABLES, results))
    results.records.popitem()
    assert not list(added_cells(FULL, TABLES, results, fitted=True))


def test_a_contrast_is_paired_over_tables() -> None:
    results = made(LOSSES)
    for index, (cell, record) in enumerate(list(results.records.items())):
        shifted = record.auc + 0.01 * (index % 3) * (cell.arm == "log-length")
        results.records[cell] = Record(cell, 0.8, shifted, record.loss, record.calibrated, 1.0)
    found = contrast(results, "choose", 4096, "log-length", (4096, "plain"), "auc")
    assert found is not None
    values = list(found.differences.values())
    assert found.mean == pytest.approx(np.mean(values))
    assert found.low <= found.mean <= found.high
    assert (found.better, found.tables) == (4, 4)
    assert found.p_value == pytest.approx(stats.ttest_1samp(values, 0.0).pvalue)
    loss = contrast(results, "choose", 4096, "exponential-0.25", (4096, "plain"), "loss")
    assert loss is not None
    assert loss.better == 0  # a higher loss is worse
    assert contrast(results, "report", 4096, "log-length", (4096, "plain"), "auc") is None


def test_splits_are_averaged_per_table_where_both_arms_have_them() -> None:
    results = made(LOSSES)
    name = next(info.name for info in TABLES if info.half == "choose")
    for split, arm, auc in ((2, "plain", 0.5), (2, "log-length", 0.7), (3, "log-length", 0.0)):
        cell = Cell(name, split, 4096, arm)
        results.records[cell] = Record(cell, 0.8, auc, 0.1, 0.1, 1.0)
    found = contrast(results, "choose", 4096, "log-length", (4096, "plain"), "auc")
    assert found is not None
    assert found.differences[name] == pytest.approx((0.02 + 0.2) / 2)


def test_p_values_are_adjusted_for_their_number() -> None:
    assert adjusted([]) == []
    assert adjusted([0.5, 0.001]) == [0.5, 0.002]
    assert adjusted([0.9, 0.8]) == [1.0, 1.0]
