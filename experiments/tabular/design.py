"""The design, fixed before the model saw any table: arms, sizes, order, choice and test."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from scipy import stats

from experiments.common.significance import adjusted, bootstrap_interval
from experiments.tabular.arms import REMEDIES, TRAINED
from experiments.tabular.data import TableInfo
from experiments.tabular.measures import MEASURES
from experiments.tabular.records import Cell, Results

__all__ = [
    "FULL", "QUICK", "Contrast", "Design", "added_cells", "adjusted", "cells", "chosen_arm",
    "contrast",
]  # fmt: skip

OTHER_ROWS: Final = ("ensemble-512", "ensemble-2048", "ensemble-4096", "neighbours-512",
                     "neighbours-2048")  # fmt: skip
"""Remedies with other numbers of rows per pass; added after the primary result was known."""


@dataclass(frozen=True)
class Design:
    """Hold the sizes and arms of a run.

    Attributes:
        splits: Seeds of the splits, in the order in which they are run.
        test_rows: Test rows per split.
        choose_size: Rows of the context on which the arm is chosen.
        candidates: Arms to choose from, on the tables for choosing.
        also_chosen: Arms that are measured on the tables for choosing and cannot be chosen.
        report_size: Rows of the context of the primary comparison.
        other_sizes: Further sizes of the context on the tables for reporting.
    """

    splits: tuple[int, ...] = (1, 2, 3)
    test_rows: int = 1_000
    choose_size: int = 4_096
    candidates: tuple[str, ...] = (
        "log-length", "exponential-0.125", "exponential-0.0625", "exponential-0.25",
    )  # fmt: skip
    also_chosen: tuple[str, ...] = ("entropy-target", "paper")
    report_size: int = 10_000
    other_sizes: tuple[int, ...] = (4_096, 512, 20_000, 50_000)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, as it comes back from JSON."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in vars(self).items()
        }


FULL: Final = Design()
QUICK: Final = Design(
    splits=(1,),
    test_rows=200,
    choose_size=1_200,
    candidates=("log-length", "exponential-0.125"),
    also_chosen=("paper",),
    report_size=1_400,
    other_sizes=(1_500,),
)


def cells(design: Design, tables: Sequence[TableInfo], results: Results) -> Iterator[Cell]:
    """Yield all cells, the most informative first; the tables for reporting wait for the choice.

    Every table begins with a context of the trained size, which gives the reference entropies.
    """
    choose = [info for info in tables if info.half == "choose"]
    report = [info for info in tables if info.half == "report"]
    adaptive: str | None = None
    for split in design.splits:
        for group in (("plain", *design.candidates[:2]), design.candidates[2:]):
            for info in choose:
                yield Cell(info.name, split, TRAINED, "plain")
                for arm in group:
                    yield Cell(info.name, split, design.choose_size, arm)
        adaptive = chosen_arm(design, results, adaptive=True)
        if adaptive is None:
            return
        for group in (("plain", "log-length", adaptive), ("matched", "matched-heads")):
            for info in report:
                yield Cell(info.name, split, TRAINED, "plain")
                for arm in group:
                    yield Cell(info.name, split, design.report_size, arm)
        for info in report:
            for arm in REMEDIES:
                yield Cell(info.name, split, design.report_size, arm)
    for split in design.splits:
        for info in choose:
            for arm in design.also_chosen:
                yield Cell(info.name, split, design.choose_size, arm)
        # Is the gain only there beyond the trained size?
        for info in choose:
            yield Cell(info.name, split, TRAINED, "exponential-0.125")
        for size in design.other_sizes:
            for info in report:
                if adaptive and info.rows >= size + design.test_rows:
                    for arm in ("plain", "log-length", adaptive):
                        yield Cell(info.name, split, size, arm)


def added_cells(
    design: Design, tables: Sequence[TableInfo], results: Results, fitted: bool
) -> Iterator[Cell]:
    """Yield cells that were added after the primary result was known: they are exploratory.

    Gradient boosting is there at every size, to show what more rows could give.

    Args:
        design: The design.
        tables: The tables.
        results: What was measured so far.
        fitted: Whether there are fitted strengths.
    """
    choose = [info for info in tables if info.half == "choose"]
    report = [info for info in tables if info.half == "report"]
    adaptive = chosen_arm(design, results, adaptive=True)
    if adaptive is None:
        return
    for split in design.splits:
        if fitted:
            for group, size in ((choose, design.choose_size), (report, design.report_size)):
                for info in group:
                    yield Cell(info.name, split, size, "fitted")
        for info in report:
            yield Cell(info.name, split, TRAINED, adaptive)
            yield Cell(info.name, split, TRAINED, "boosting")
        for size in design.other_sizes:
            for info in report:
                if results.find_heads("beta", info.name, split, size) is not None:
                    yield Cell(info.name, split, size, "matched")
                    if fitted:
                        yield Cell(info.name, split, size, "fitted")
                if info.rows >= size + design.test_rows:
                    yield Cell(info.name, split, size, "boosting")
    for info in report:
        for arm in OTHER_ROWS:
            yield Cell(info.name, design.splits[0], design.report_size, arm)


def chosen_arm(design: Design, results: Results, adaptive: bool = False) -> str | None:
    """Return the candidate with the lowest mean calibrated loss on the tables for choosing.

    It looks at the first split only, once all its cells are there.

    Args:
        design: The design.
        results: What was measured so far.
        adaptive: Choose among the strengths of `Exponential` only.

    Returns:
        The name of the arm, or None while cells are missing.
    """
    names = [arm for arm in design.candidates if arm != "log-length" or not adaptive]
    tables = [info.name for info in results.tables if info.half == "choose"]
    split, size = design.splits[0], design.choose_size
    wanted = [Cell(name, split, size, arm) for name in tables for arm in design.candidates]
    if not tables or any(cell not in results.records for cell in wanted):
        return None

    def loss(arm: str) -> float:
        found = [results.records[Cell(name, split, size, arm)].calibrated for name in tables]
        return float(np.mean(found))

    return min(names, key=loss)


@dataclass(frozen=True)
class Contrast:
    """A comparison of two arms on the same tables: the first minus the second.

    Attributes:
        mean: Mean difference over tables.
        low: Lower end of its 95% interval, by resampling tables.
        high: Upper end.
        better: Tables on which the first arm is better.
        tables: Number of tables.
        p_value: Two-sided p-value of the paired t-test over tables; None for fewer than two.
        differences: By table, the mean over splits.
    """

    mean: float
    low: float
    high: float
    better: int
    tables: int
    p_value: float | None
    differences: dict[str, float]


def contrast(
    results: Results,
    half: str,
    size: int,
    arm: str,
    other: tuple[int, str],
    measure: str,
    only: Collection[str] | None = None,
) -> Contrast | None:
    """Compare an arm at a size with another arm at its own size, over the tables of a half.

    Splits that both arms have are averaged per table; tables are the unit of the interval and test.

    Args:
        results: What was measured.
        half: "choose" or "report".
        size: Rows of the context of the arm.
        arm: The arm.
        other: Size and name of the arm to compare with.
        measure: One of `MEASURES`.
        only: Names of the tables to compare on; None for all.

    Returns:
        The comparison, or None if no table has both arms.
    """
    found: dict[str, list[float]] = {}
    for cell, record in results.records.items():
        theirs = results.records.get(Cell(cell.table, cell.split, *other))
        if (cell.size, cell.arm) == (size, arm) and theirs is not None:
            difference = getattr(record, measure) - getattr(theirs, measure)
            found.setdefault(cell.table, []).append(difference)
    kept = found.keys() if only is None else found.keys() & only
    names = [info.name for info in results.tables if info.half == half and info.name in kept]
    if not names:
        return None
    means = {name: float(np.mean(found[name])) for name in names}
    values = list(means.values())
    low, high = bootstrap_interval(values)
    test = stats.ttest_1samp(values, 0.0).pvalue if len(values) > 1 and np.ptp(values) > 0 else None
    return Contrast(
        float(np.mean(values)), low, high, sum(MEASURES[measure] * v > 0 for v in values),
        len(values), None if test is None else float(test), means,
    )  # fmt: skip
