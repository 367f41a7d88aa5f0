"""What sharper attention changes at each size of the context: a table, a page and a figure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from experiments.tabular.comparisons import FEWEST, contrast_cell, design_of
from experiments.tabular.design import Contrast, chosen_arm, contrast
from experiments.tabular.records import Cell, Results
from sharpmax.report._page import style
from sharpmax.report._page.tables import Table

__all__ = ["draw_sizes", "every_size", "fitted_table", "size_table"]

SHOWN: Final = {
    "accuracy": "accuracy",
    "auc": "AUC",
    "calibrated": "log-loss, calibrated",
}
_STYLES: Final = {"log-length": (style.ORANGE, "o"), "matched": (style.GREEN, "s")}


def size_table(results: Results) -> Table:
    """Return one row per size: plain softmax, and the chosen arm minus it, held-back tables.

    Fewer tables have the largest sizes, so the primary size is there with each of these groups too.
    """
    design = design_of(results)
    arm = chosen_arm(design, results) or ""
    rows, more = [], ""
    for size in _sizes(results):
        auc = contrast(results, "report", size, arm, (size, "plain"), "auc")
        if auc is None:
            continue
        names = list(auc.differences)
        if size > design.report_size:
            label = f"{design.report_size:,}, these {len(names)}"
            rows.append(_size_row(results, design.report_size, arm, names, label))
            more += _directions(results, auc, size, arm)
        rows.append(_size_row(results, size, arm, names, f"{size:,}"))
    header = ["rows", "tables", "splits", *(f"plain: {name}" for name in SHOWN.values())]
    return Table(
        header + [f"{arm} minus plain: {name}" for name in SHOWN.values()],
        rows,
        caption="Tables held back that have the rows. Mean over tables; of differences, the 95% "
        "interval from resampling tables and the number of tables on which the arm is better."
        + more,
    )


def _directions(results: Results, found: Contrast, size: int, arm: str) -> str:
    """Say on how many tables a larger size moves the AUC as the primary size does."""
    primary = design_of(results).report_size
    same = contrast(results, "report", primary, arm, (primary, "plain"), "auc")
    known = {} if same is None else same.differences
    pairs = [(found.differences[name], known[name]) for name in found.differences if name in known]
    alike = [abs(now) > abs(before) for now, before in pairs if now * before > 0]
    return (
        f" At {size:,} rows, the AUC moves in the direction of that at {primary:,} on "
        f"{len(alike)} of {len(pairs)} tables, and further on {sum(alike)} of these."
    )


def _size_row(results: Results, size: int, arm: str, names: list[str], label: str) -> list[str]:
    found = [
        contrast(results, "report", size, arm, (size, "plain"), m, only=set(names)) for m in SHOWN
    ]
    paired = {c for c in results.records if replace(c, arm=arm) in results.records}
    row = [label, str(len(names)), splits_of(results, size, arm, names)]
    row += [f"{_mean(results, size, 'plain', m, names, paired):.4f}" for m in SHOWN]
    return row + [contrast_cell(each, 4) for each in found]


def every_size(results: Results) -> Table:
    """Return one row per size and arm, for the page with all of them."""
    rows = []
    for size in _sizes(results):
        for arm in sorted({cell.arm for cell in results.records if cell.size == size} - {"plain"}):
            found = {m: contrast(results, "report", size, arm, (size, "plain"), m) for m in SHOWN}
            first = found["auc"]
            if first is not None:
                splits = splits_of(results, size, arm, first.differences)
                cells = [contrast_cell(each, 4) for each in found.values()]
                rows.append([f"{size:,}", arm, str(first.tables), splits, *cells])
    header = ["rows", "arm minus plain", "tables", "splits", *SHOWN.values()]
    return Table(header, rows, words=2)


def fitted_table(results: Results) -> Table:
    """Compare the fitted strengths with plain softmax and with the chosen arm, in both halves."""
    design = design_of(results)
    rows = []
    for half, size in (("choose", design.choose_size), ("report", design.report_size)):
        for other in ("plain", chosen_arm(design, results, adaptive=True) or ""):
            found = [contrast(results, half, size, "fitted", (size, other), m) for m in SHOWN]
            if (first := found[0]) is not None:
                where = "for choosing" if half == "choose" else "held back"
                splits = splits_of(results, size, "fitted", first.differences)
                cells = [contrast_cell(each, 4) for each in found]
                rows.append([f"{where}, {size:,} rows", other, splits, *cells])
    return Table(
        ["tables", "fitted minus", "splits", *SHOWN.values()],
        rows,
        caption="Mean difference over tables, its 95% interval from resampling tables, and the "
        "number of tables on which the fitted strengths are better.",
        words=2,
    )


def draw_sizes(results: Results, path: Path) -> Path | None:
    """Draw the measures of plain softmax and the differences of the arms against the size.

    Returns:
        The file, or None if fewer than two sizes have been measured.
    """
    design = design_of(results)
    chosen = chosen_arm(design, results, adaptive=True) or ""
    arms = _STYLES | {chosen: (style.BLUE, "D")}
    found: dict[tuple[str, str], dict[int, Contrast]] = {}
    for arm in arms:
        for measure in SHOWN:
            at = {
                size: each
                for size in _sizes(results)
                if (each := contrast(results, "report", size, arm, (size, "plain"), measure))
                and each.tables >= FEWEST
            }
            found[arm, measure] = at
    sizes = sorted({size for each in found.values() for size in each})
    if len(sizes) < 2:
        return None
    # Means over different tables would not be comparable: the curve has those that have all sizes.
    whole = [size for size in sizes if size <= design.report_size]
    common = set.intersection(*(_tables(results, size, chosen) for size in whole))
    with style.new_figure(5.4) as figure:
        panels = figure.subplots(2, 3, sharex=True)
        for column, (measure, name) in enumerate(SHOWN.items()):
            top, bottom = panels[:, column]
            _draw_levels(top, results, sizes, measure, common, chosen)
            top.set_title(name, fontsize=9.5, loc="left")
            for place, (arm, (color, marker)) in enumerate(arms.items()):
                looks = {"color": color, "marker": marker}
                at = found[arm, measure]
                smaller = {size: each for size, each in at.items() if size in whole}
                _draw_differences(bottom, smaller, place - 1, label=arm, **looks)
                for size in at.keys() - smaller.keys():
                    beside = (design.report_size, "plain")
                    same = contrast(results, "report", beside[0], arm, beside, measure,
                                    only=at[size].differences.keys())  # fmt: skip
                    pair = {beside[0]: same, size: at[size]} if same else {size: at[size]}
                    looks |= {"markerfacecolor": "white", "linestyle": ":"}
                    _draw_differences(bottom, pair, place - 1, **looks)
            bottom.axhline(0.0, color=style.SOFT, linewidth=0.9)
            bottom.set_xlabel("rows of the context, thousands", fontsize=9)
            bottom.set_xscale("log")
            bottom.set_xticks(sizes, [f"{size / 1_000:.2g}" for size in sizes], fontsize=8)
            bottom.minorticks_off()
            for axes in (top, bottom):
                style.add_grid(axes)
        panels[0, 0].set_ylabel("mean over tables", fontsize=9)
        panels[1, 0].set_ylabel("arm minus plain softmax", fontsize=9)
        style.write_title(
            figure, "Tables held back: what sharper attention changes as the context grows",
            f"Above: the {len(common)} tables that have all sizes up to {design.report_size:,}, "
            "first split. Below: mean difference, 95% interval over tables; hollow: tables with "
            "more rows.",
        )  # fmt: skip
        handles = [each.get_legend_handles_labels()[0] for each in panels[:, 0]]
        style.write_legend(figure, [handles[0][0], handles[0][-1], *handles[1]], 0.85)
        figure.subplots_adjust(left=0.09, right=0.98, bottom=0.1, top=0.76, wspace=0.3, hspace=0.16)
        return style.save(figure, path)


def _draw_levels(
    axes: Any, results: Results, sizes: list[int], measure: str, names: set[str], arm: str
) -> None:
    # Sizes differ in their number of splits.
    first = {cell for cell in results.records if cell.split == design_of(results).splits[0]}
    shown = (("plain", style.BLACK), (arm, style.BLUE), ("boosting", style.VERMILION))
    for each, color in shown:
        known = [size for size in sizes if names <= _tables(results, size, each)]
        means = [_mean(results, size, each, measure, names, first) for size in known]
        name = {"plain": "plain softmax", "boosting": "gradient boosting"}.get(each, each)
        axes.plot(known, means, color=color, linewidth=1.3, marker=".", label=name)


def _draw_differences(axes: Any, found: dict[int, Contrast], shift: int, **looks: Any) -> None:
    if not found:
        return
    x = [size * 1.06**shift for size in found]
    means = np.array([each.mean for each in found.values()])
    ends = np.array([[each.low, each.high] for each in found.values()]).T
    axes.errorbar(
        x, means, np.abs(ends - means), markersize=4.5, linewidth=1.2, elinewidth=0.9, **looks
    )


def _sizes(results: Results) -> list[int]:
    return sorted({cell.size for cell in results.records})


def _tables(results: Results, size: int, arm: str) -> set[str]:
    held = {info.name for info in results.tables if info.half == "report"}
    return {c.table for c in results.records if (c.size, c.arm) == (size, arm)} & held


def splits_of(results: Results, size: int, arm: str, names: Iterable[str]) -> str:
    """Return the number of splits per table that plain softmax has too, or its range."""
    cells = [
        cell
        for cell in results.records
        if (cell.size, cell.arm) == (size, arm) and replace(cell, arm="plain") in results.records
    ]
    counts = {sum(cell.table == name for cell in cells) for name in names}
    return " to ".join(str(count) for count in sorted({min(counts), max(counts)}))


def _mean(
    results: Results, size: int, arm: str, measure: str, names: Iterable[str], kept: set[Cell]
) -> float:
    """Return the mean over tables of the mean over splits, of some cells."""
    by_table: dict[str, list[float]] = {name: [] for name in names}
    for cell, record in results.records.items():
        if (cell.size, cell.arm) == (size, arm) and cell.table in by_table and cell in kept:
            by_table[cell.table].append(getattr(record, measure))
    return float(np.mean([np.mean(each) for each in by_table.values()]))
