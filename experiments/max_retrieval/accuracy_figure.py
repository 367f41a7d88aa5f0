"""Draw accuracy against the number of items, for each part of the results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from experiments.common.cells import percent
from experiments.common.labels import spread_between
from experiments.common.methods import ORACLE, Look, look
from experiments.max_retrieval.records import Line, Table, WeightsKind, sizes_of
from experiments.max_retrieval.rows import WEIGHTS, sets_and_seeds
from sharpmax.report._page import style

__all__ = ["draw_accuracy"]

_MAIN: Final = ("softmax", "paper", "exponential", "hard", ORACLE)
"""Methods at inference that stand out; the others are drawn faintly behind them."""

_BOLD: Final = tuple(look(name).label for name in ("softmax", "exponential"))

_CHANCE: Final = 10.0
"""Accuracy of guessing among ten classes, in percent."""

_TITLES: Final[Mapping[str, str]] = {
    "inference": "The same heads, trained with softmax; only the method at inference changes",
    "trained": "Heads trained and tested with the same method",
    "training": "Details of the training of plain softmax",
    "beyond": "Beyond the set-up of the paper: changes of training and method, alone and together",
}

_BEYOND: Final = ("softmax", "exponential", "hard, class-blind")
"""Methods drawn for recipes beyond the paper's."""

_DASHES: Final = (
    "solid",
    (0, (5, 1.8)),
    (0, (1.2, 1.6)),
    (0, (5, 1.6, 1.2, 1.6)),
    (0, (4, 1.2, 1.2, 1.2, 1.2, 1.2)),
)


@dataclass(frozen=True)
class _Drawn:
    """A line of the figure."""

    label: str
    line: Line
    look: Look
    line_style: Any
    faint: bool = False

    @property
    def end(self) -> float:
        """Percent at its last size."""
        return 100 * self.line[max(self.line)].mean


def draw_accuracy(
    table: Table, path: str | Path, group: str = "inference", weights: WeightsKind | None = None
) -> Path:
    """Draw accuracy against the number of items, with bootstrap intervals over seeds.

    Args:
        table: The results.
        path: The file; its suffix sets the format.
        group: The part of the results.
        weights: The kind of weights; None takes the averaged ones if there are any.

    Raises:
        LookupError: There are no such results.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from experiments.max_retrieval.records import Record, Table
        >>> fields = ("softmax", "last", "softmax", "standard", "inference")
        >>> records = (Record(*fields, 16, 50, (0.98,)), Record(*fields, 64, 50, (0.9,)))
        >>> with TemporaryDirectory() as folder:
        ...     path = draw_accuracy(Table("", (0,), {}, records), folder + "/accuracy.svg")
        ...     "<svg" in path.read_text()
        True
    """
    kinds = table.weights_kinds(group)
    weights = weights or next(iter(kinds), None)
    if weights is None or weights not in kinds:
        raise LookupError(f"the results have no group {group!r} with weights {weights!r}")
    drawn = _drawn(table, group, weights)
    height = max(5.2, 1.6 + 0.2 * len(drawn))
    with style.new_figure(height) as figure:
        # As much room at the right as the longest name needs.
        room = (0.95 + 0.072 * max(len(each.label) for each in drawn)) / style.WIDTH
        axes = figure.add_axes((0.068, 0.92 / height, 0.932 - room, 1 - 1.72 / height))
        for each in sorted(drawn, key=lambda each: not each.faint):
            _draw_line(axes, each, few=len(drawn) <= 8)
        _draw_chance(axes)
        _label_axes(axes, drawn)
        _label_ends(axes, drawn, height)
        axes.set_title(_TITLES[group], pad=24, fontsize=12)
        axes.text(0, 1.02, "accuracy, %", transform=axes.transAxes, color=style.SOFT, va="bottom")
        records = [record for each in drawn for record in each.line.values()]
        several = any(len(record.accuracy) > 1 for record in records)
        band = "Shaded: 95% bootstrap interval of the mean over seeds. " if several else ""
        text = f"{band}{WEIGHTS[weights].capitalize()}; {sets_and_seeds(records)}."
        figure.text(0.012, 0.16 / height, text, fontsize=8.4, color=style.SOFT)
        return style.save(figure, path)


def _drawn(table: Table, group: str, weights: WeightsKind) -> list[_Drawn]:
    found = table.lines(group, weights)
    if group in ("inference", "trained"):
        drawn = []
        for (_, method), line in found.items():
            of_method = look(method)
            faint = group == "inference" and method not in _MAIN
            drawn.append(_Drawn(of_method.label, line, of_method, of_method.line_style, faint))
        return drawn
    # The standard training, which the others change, comes first.
    methods = {method for _, method in found}
    base = table.main_recipe
    if group == "beyond":
        at_inference = table.lines("inference", weights)
        found = {key: at_inference[key] for key in at_inference if key[1] in methods} | found
        # The table has all of them; one standard training is enough here.
        found = {
            (recipe, method): line
            for (recipe, method), line in found.items()
            if method in _BEYOND and (recipe == base or not recipe.startswith("standard"))
        }
    recipes = list(dict.fromkeys(recipe for recipe, _ in found))
    drawn = []
    for (recipe, method), line in found.items():
        name = recipe.replace("-", " ").replace("+", " + ")
        label = look(method).label if recipe == base else f"{name}, {look(method).label}"
        dashes = _DASHES[recipes.index(recipe) % len(_DASHES)]
        drawn.append(_Drawn(label, line, look(method), dashes))
    return drawn


def _draw_line(axes: Any, each: _Drawn, *, few: bool) -> None:
    sizes = list(each.line)
    means = [100 * record.mean for record in each.line.values()]
    color = "#B4B4B4" if each.faint else each.look.color
    main = each.look in map(look, _MAIN[:3])
    axes.plot(
        sizes,
        means,
        color=color,
        linestyle=each.line_style,
        linewidth=0.9 if each.faint else 2.4 if main else 1.7,
        marker="o" if len(sizes) == 1 else None,
        zorder=2 if each.faint else 4 if main else 3,
        solid_capstyle="round",
    )
    if each.faint or all(len(record.accuracy) == 1 for record in each.line.values()):
        return
    low, high = zip(*(record.interval for record in each.line.values()), strict=True)
    bounds = [[100 * value for value in values] for values in (low, high)]
    axes.fill_between(
        sizes, *bounds, color=color, alpha=0.16 if few else 0.08, linewidth=0, zorder=1
    )


def _draw_chance(axes: Any) -> None:
    axes.axhline(_CHANCE, color="#9A9A9A", linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
    axes.annotate(
        "chance",
        (0.0, _CHANCE),
        xycoords=axes.get_yaxis_transform(),
        xytext=(4, -3),
        textcoords="offset points",
        va="top",
        fontsize=8.6,
        color="#606060",
    )


def _label_axes(axes: Any, drawn: Sequence[_Drawn]) -> None:
    sizes = sizes_of(each.line for each in drawn)
    axes.set_xscale("log", base=2)
    margin = 2**0.04 if len(sizes) > 1 else 2
    axes.set_xlim(sizes[0] / margin, sizes[-1] * margin)
    axes.set_ylim(0.0, 102.0)
    # From the largest down, so that the largest always has its label.
    ticks = sizes if len(sizes) <= 6 else sizes[::-2][::-1]
    axes.set_xticks(ticks, [f"{size:,}" for size in ticks], fontsize=9)
    style.add_grid(axes)
    axes.set_xlabel("number of items n")


def _label_ends(axes: Any, drawn: Sequence[_Drawn], height: float) -> None:
    """Write the name of each line at its right end; names that would collide are moved."""
    inches = axes.get_position().height * height
    places = spread_between(
        [each.end for each in drawn], distance=102 * 0.185 / inches, low=1.0, high=101.0
    )
    # Lines that end together keep the order of the table, the first on top.
    longest = max(max(each.line) for each in drawn)
    order = sorted(range(len(drawn)), key=lambda index: (-drawn[index].end, index))
    for index, place in zip(order, sorted(places, reverse=True), strict=True):
        each = drawn[index]
        last = max(each.line)
        where = "" if last == longest else f" at {last:,}"
        axes.annotate(
            f"{each.label}  {percent(each.end / 100)}{where}",
            (last, each.end),
            xytext=(1.03, place),
            textcoords=axes.get_yaxis_transform(),
            va="center",
            fontsize=8.4 if each.faint else 9.2,
            color="#6A6A6A" if each.faint else each.look.text_color,
            fontweight="bold" if each.label in _BOLD else "normal",
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                # A leader across the figure must not look like a line of the data.
                "color": "#C8C8C8" if each.faint or where else each.look.color,
                "linestyle": "dotted" if where else "solid",
                "linewidth": 0.6,
                "relpos": (0.0, 0.5),
                "shrinkA": 1,
                "shrinkB": 1,
            },
        )
