"""Tables of results: the choice, the report, the fit, the remedies, and the list of tables."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.common.cells import p_value
from experiments.tabular.arms import REMEDIES, TRAINED
from experiments.tabular.data import TableInfo
from experiments.tabular.design import Contrast, Design, adjusted, chosen_arm, contrast
from experiments.tabular.records import Cell, Results
from sharpmax._files import read_sealed
from sharpmax.report._page.tables import Table, signed

__all__ = [
    "FEWEST", "best_table", "choice_table", "contrast_cell", "design_of", "fit_table",
    "list_table", "remedy_table", "report_table", "times_table",
]  # fmt: skip

FEWEST = 5
"""Of fewer tables, an interval from resampling says nothing."""

MEASURES = {"auc": "AUC", "calibrated": "log-loss, calibrated", "loss": "log-loss"}


def design_of(results: Results) -> Design:
    """Return the design that a run was made with."""
    settings: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in results.settings.items()
    }
    return Design(**settings)


def choice_table(results: Results) -> Table:
    """Compare each candidate with plain softmax on the tables for choosing."""
    design = design_of(results)
    arms = (*design.candidates, *design.also_chosen)
    rows = _rows(results, "choose", design.choose_size, arms, (design.choose_size, "plain"))
    chosen = chosen_arm(design, results)
    return Table(
        ["arm minus plain", *MEASURES.values(), "accuracy", "mean β"],
        rows,
        caption=f"Tables for choosing, contexts of {design.choose_size:,} rows. "
        + _caption(results, "choose", design.choose_size)
        + _fewer(results, "choose", design.choose_size, arms)
        + (f" Chosen: {chosen}." if chosen else ""),
    )


def report_table(results: Results) -> Table:
    """Compare the chosen arm and its controls with plain softmax on the tables held back."""
    design = design_of(results)
    size = design.report_size
    adaptive = chosen_arm(design, results, adaptive=True)
    arms = tuple(
        dict.fromkeys(a for a in ("log-length", adaptive, "matched", "matched-heads") if a)
    )
    rows = _rows(results, "report", size, arms, (size, "plain"), tested=True)
    return Table(
        ["arm minus plain", *MEASURES.values(), "accuracy", "mean β", "p (AUC)"],
        rows,
        caption=f"Tables held back, contexts of {size:,} rows. "
        + _caption(results, "report", size)
        + " p: paired t-test over tables, adjusted by Holm's method.",
    )


def remedy_table(results: Results) -> Table:
    """Compare the chosen arm with what a user does instead, on the tables held back."""
    design = design_of(results)
    size, arm = design.report_size, chosen_arm(design, results)
    rows = []
    others = {"plain, 1,024 rows": (TRAINED, "plain")} | {each: (size, each) for each in REMEDIES}
    for name, other in others.items():
        found = {m: contrast(results, "report", size, arm or "", other, m) for m in MEASURES}
        if found["auc"] is not None:
            rows.append([name, *(contrast_cell(each, 4) for each in found.values())])
    return Table(
        [f"{arm} minus", *MEASURES.values()],
        rows,
        caption=f"Tables held back, contexts of {size:,} rows. "
        + _caption(results, "report", size),
    )


def best_table(results: Results) -> Table:
    """Compare the chosen arm with the remedies, each with the rows per pass that suit it best."""
    design = design_of(results)
    arm = chosen_arm(design, results) or ""
    ways: dict[str, list[tuple[int, str]]] = {
        "plain": [],
        arm: [],
        "ensemble": [],
        "neighbours": [],
    }
    names = {info.name for info in results.tables if info.half == "report"}
    split = design.splits[0]
    for size, each in sorted({(cell.size, cell.arm) for cell in results.records}):
        way = each if each == arm else each.partition("-")[0]
        known = {
            c.table for c in results.records if (c.split, c.size, c.arm) == (split, size, each)
        }
        if way in ways and names <= known:
            ways[way].append((size, each))

    def loss(way: tuple[int, str]) -> float:
        found = [results.records[Cell(name, split, *way)].calibrated for name in names]
        return sum(found) / len(found)

    best = {way: min(known, key=loss) for way, known in ways.items() if known}
    first = replace(results, records={c: r for c, r in results.records.items() if c.split == split})
    rows = []
    for way, other in best.items():
        if way == arm or arm not in best:
            continue
        found = [
            contrast(first, "report", best[arm][0], arm, other, m)
            for m in ("auc", "calibrated", "accuracy")
        ]
        tried = ", ".join(
            f"{_rows_per_pass(each):,}" for each in sorted(ways[way], key=_rows_per_pass)
        )
        rows.append(
            [way, tried, f"{_rows_per_pass(other):,}", *(contrast_cell(e, 4) for e in found)]
        )
    own = f"{best[arm][0]:,}" if arm in best else ""
    return Table(
        ["remedy", "rows per pass tried", "best", f"{arm} minus it: AUC", "log-loss, calibrated",
         "accuracy"],
        rows,
        caption=f"{arm} with its best size, {own} rows, minus each remedy with its own; first "
        "split. The best has the lowest mean calibrated log-loss on these same tables, which "
        "favours ways with more sizes to choose from.",
    )  # fmt: skip


def times_table(results: Results) -> Table:
    """Show the processor time per prediction of each arm, on the last split."""
    design = design_of(results)
    size, split = design.report_size, design.splits[-1]
    found: dict[str, list[float]] = {}
    for cell, record in results.records.items():
        if (cell.size, cell.split) == (size, split) and not cell.arm.startswith("fitted"):
            found.setdefault(cell.arm, []).append(record.seconds)
    means = {arm: sum(each) / len(each) for arm, each in found.items()}
    rows = [
        [arm, f"{mean:.1f}", f"{mean / means['plain']:.2f}"]
        for arm, mean in sorted(means.items(), key=lambda pair: -pair[1])
        if "plain" in means
    ]
    return Table(
        ["arm", "processor time, s", "ratio to plain"],
        rows,
        caption=f"Contexts of {size:,} rows and {design.test_rows:,} test rows, mean over tables, "
        "one thread, one split. The exponential arm also records its mean beta. Other programs ran "
        "at the same time, so take these times as rough.",
    )


def fit_table(path: Path) -> Table:
    """Show what the fitted strengths change on fresh synthetic tables."""
    data = read_sealed(path, "strengths, format 1")
    settings = data["settings"]
    rows = []
    for name, label in (("one", f"{settings['compared']:g} for all heads"), ("fitted", "fitted")):
        cells = [
            f"{signed(mean, 4)} [{signed(low, 4)}, {signed(high, 4)}]"
            for mean, low, high in data["check"][name].values()
        ]
        rows.append([label, *cells])
    strengths = [each for layer in data["strengths"] for each in layer]
    zero = sum(each == 0 for each in strengths)
    return Table(
        ["strengths, minus plain", "AUC", "log-loss, calibrated", "accuracy"],
        rows,
        caption=f"{settings['checked']} fresh synthetic tables, contexts of "
        f"{max(settings['sizes']):,} rows. Fitted strengths: mean "
        f"{sum(strengths) / len(strengths):.3f}, largest {max(strengths):.3f}, 0 in {zero} of "
        f"{len(strengths)} heads.",
    )


def _rows_per_pass(way: tuple[int, str]) -> int:
    size, arm = way
    kind, _, rows = arm.partition("-")
    return int(rows or TRAINED) if kind in REMEDIES else size


def _rows(
    results: Results,
    half: str,
    size: int,
    arms: tuple[str, ...],
    other: tuple[int, str],
    tested: bool = False,
) -> list[list[str]]:
    rows, p_values = [], []
    for arm in arms:
        found = [contrast(results, half, size, arm, other, m) for m in (*MEASURES, "accuracy")]
        if found[0] is not None:
            cells = [
                arm,
                *(contrast_cell(each, 4) for each in found),
                _beta(results, half, size, arm),
            ]
            rows.append(cells)
            p_values.append(found[0].p_value)
    if tested:
        known = [value for value in p_values if value is not None]
        corrected = iter(adjusted(known))
        for row, value in zip(rows, p_values, strict=True):
            row.append("" if value is None else p_value(next(corrected)))
    return rows


def contrast_cell(found: Contrast | None, digits: int) -> str:
    """Format a comparison: mean, interval, and on how many tables the arm is better."""
    if found is None:
        return ""
    count = f"{found.better} of {found.tables}"
    if found.tables < FEWEST:
        return f"{signed(found.mean, digits)}, {count}"
    interval = f"[{signed(found.low, digits)}, {signed(found.high, digits)}]"
    return f"{signed(found.mean, digits)} {interval}, {count}"


def _beta(results: Results, half: str, size: int, arm: str) -> str:
    if arm == "log-length":
        return f"{math.log(size) / math.log(TRAINED):.3f}"
    names = {info.name for info in results.tables if info.half == half}
    found = [
        record.beta
        for cell, record in results.records.items()
        if (cell.size, cell.arm) == (size, arm) and cell.table in names and record.beta is not None
    ]
    return f"{sum(found) / len(found):.3f}" if found else ""


def _caption(results: Results, half: str, size: int) -> str:
    names = {info.name for info in results.tables if info.half == half}
    splits = {c.split for c in results.records if c.table in names and c.size == size}
    word = "split" if len(splits) == 1 else "splits"
    return (
        f"{len(splits)} {word}. Mean difference over tables, its 95% interval from resampling "
        "tables, and the number of tables on which the arm is better."
    )


def _fewer(results: Results, half: str, size: int, arms: tuple[str, ...]) -> str:
    """Name the arms that have not been run on all splits."""
    names = {info.name for info in results.tables if info.half == half}
    cells = [c for c in results.records if c.table in names and c.size == size]
    counts = {arm: len({c.split for c in cells if c.arm == arm}) for arm in arms}
    most = max(counts.values(), default=0)
    few = [arm for arm, count in counts.items() if 0 < count < most]
    return f" First split only: {', '.join(few)}." if few else ""


def list_table(results: Results) -> Table:
    """List all tables with their targets, and what each gained."""
    arm = chosen_arm(design_of(results), results)
    rows = []
    for info in sorted(results.tables, key=lambda each: (each.half, each.name)):
        row = [info.name, info.target, info.half]
        row += [f"{info.rows:,}", str(info.features), str(info.classes), f"{info.forest:.3f}"]
        rows.append(row + _gains(results, info, arm))
    header = ["table", "target", "half", "rows", "features", "classes", "forest AUC"]
    more = [
        "rows of the context",
        "plain AUC",
        f"{arm or 'arm'} minus plain, AUC",
        "calibrated loss",
    ]
    return Table(header + more, rows, words=3)


def _gains(results: Results, info: TableInfo, arm: str | None) -> list[str]:
    design = design_of(results)
    size = design.choose_size if info.half == "choose" else design.report_size
    plain = [
        record.auc
        for cell, record in results.records.items()
        if (cell.table, cell.size, cell.arm) == (info.name, size, "plain")
    ]
    if not plain or arm is None:
        return [f"{size:,}", "", "", ""]
    cells = [f"{size:,}", f"{sum(plain) / len(plain):.4f}"]
    for name in ("auc", "calibrated"):
        found = contrast(results, info.half, size, arm, (size, "plain"), name)
        difference = None if found is None else found.differences.get(info.name)
        cells.append("" if difference is None else signed(difference, 4))
    return cells
