"""Where sharper attention helps and where it hurts: groups of tables, and tables left out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import numpy as np
from scipy import stats

from experiments.tabular.comparisons import contrast_cell, design_of
from experiments.tabular.data import TableInfo
from experiments.tabular.design import Contrast, chosen_arm, contrast
from experiments.tabular.records import Cell, Results
from sharpmax.report._page.tables import Table, signed

__all__ = ["EXPLORED", "left_out_table", "where_table"]

EXPLORED: Final = ("ggplot2/diamonds", "stevedata/gss_wages")
"""Held-back tables of sources that the earlier exploration had looked at."""

Groups = dict[str, Callable[[TableInfo], bool]]


def left_out_table(results: Results) -> Table:
    """Repeat the primary comparison without the tables that an exploration had looked at."""
    design = design_of(results)
    size, arm = design.report_size, chosen_arm(design, results) or ""
    rows = []
    for name, kept in (("all", None), ("without " + " and ".join(EXPLORED), _others(results))):
        found = [
            contrast(results, "report", size, arm, (size, "plain"), m, only=kept)
            for m in ("auc", "calibrated", "accuracy")
        ]
        if found[0] is not None:
            p = found[0].p_value
            rows.append(
                [name, *(contrast_cell(each, 4) for each in found), f"{p:.2f}" if p else ""]
            )
    return Table(
        ["tables", "AUC", "log-loss, calibrated", "accuracy", "p (AUC)"],
        rows,
        caption=f"{arm} minus plain, tables held back, contexts of {size:,} rows. p: paired t-test "
        "over tables, not adjusted.",
    )


def where_table(results: Results) -> Table:
    """Compare the chosen arm with plain softmax in groups of tables."""
    design = design_of(results)
    size, arm = design.report_size, chosen_arm(design, results) or ""
    every = {
        m: contrast(results, "report", size, arm, (size, "plain"), m) for m in ("auc", "calibrated")
    }
    whole = every["auc"]
    if whole is None:
        return Table([], [])
    boosting = contrast(results, "report", size, "boosting", (size, "plain"), "auc")
    behind = {} if boosting is None else boosting.differences
    rows = []
    for name, inside in _groups(behind).items():
        kept = {info.name for info in results.tables if inside(info)}
        found = [
            contrast(results, "report", size, arm, (size, "plain"), m, only=kept) for m in every
        ]
        if found[0] is not None:
            both = _consistent(results, found[0], size, arm)
            cells = [contrast_cell(each, 4) for each in found]
            rows.append([name, str(found[0].tables), *cells, *map(str, both)])
    return Table(
        ["tables held back", "number", "AUC", "log-loss, calibrated", "AUC better on all splits",
         "worse on all splits"],
        rows,
        caption=f"{arm} minus plain, contexts of {size:,} rows. {_correlations(whole, behind)} "
        "The groups were made after the results were known.",
    )  # fmt: skip


def _others(results: Results) -> set[str]:
    return {info.name for info in results.tables} - set(EXPLORED)


def _groups(behind: dict[str, float]) -> Groups:
    """Return groups of tables by classes, features and the lead of gradient boosting."""
    groups: Groups = {
        "all": lambda _: True,
        "2 classes": lambda info: info.classes == 2,
        "3 to 10 classes": lambda info: info.classes > 2,
        "up to 10 features": lambda info: info.features <= 10,
        "more than 10 features": lambda info: info.features > 10,
    }
    if behind:
        middle = float(np.median(list(behind.values())))
        groups |= {
            f"boosting leads plain by more than {middle:.3f} AUC": lambda info: (
                behind.get(info.name, -1.0) > middle
            ),
            "boosting leads by less, or trails": lambda info: behind.get(info.name, 1.0) <= middle,
        }
    return groups


def _consistent(results: Results, found: Contrast, size: int, arm: str) -> tuple[int, int]:
    """Count the tables on which the arm has a higher AUC on all splits, and a lower on all."""
    signs = []
    for name in found.differences:
        own = [
            np.sign(record.auc - results.records[Cell(name, cell.split, size, "plain")].auc)
            for cell, record in results.records.items()
            if (cell.table, cell.size, cell.arm) == (name, size, arm)
        ]
        signs.append(own)
    return tuple(sum(all(each == sign for each in own) for own in signs) for sign in (1, -1))  # type: ignore[return-value]


def _correlations(found: Contrast, behind: dict[str, float]) -> str:
    names: Iterable[str] = [name for name in found.differences if name in behind]
    pairs = [(found.differences[name], behind[name]) for name in names]
    if len(pairs) < 5:
        return ""
    rank = stats.spearmanr(*zip(*pairs, strict=True))
    return (
        "Rank correlation of the gain in AUC with the lead of gradient boosting over plain: "
        f"{signed(float(rank.statistic), 2)} (p = {rank.pvalue:.2f})."
    )
