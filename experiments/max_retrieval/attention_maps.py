"""Draw Figures 2 and 7 of the paper: how the attention of a head spreads as sets grow."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from experiments.common.methods import look
from sharpmax.report._page import style

__all__ = ["draw_attention"]

_ACROSS: Final = 6
"""Heat maps side by side."""


def draw_attention(
    figures: dict[str, Any],
    path: str | Path,
    methods: Sequence[str] | None = None,
    sizes: Sequence[int] | None = None,
) -> Path:
    """Draw the weights of the largest items of some sets as heat maps on one colour scale.

    With one method, the sizes run across, as in Figure 2 of the paper. With several, each has a
    column and the sizes run down, as in Figure 7.

    Args:
        figures: Data of the figures; `figures["attention"]` has sizes, methods and weights
            [method][size][set][item], items by descending priority.
        path: The file; its suffix sets the format.
        methods: Methods; None is all that the data have.
        sizes: Sizes; None is all for one method, and at most six for several.

    Raises:
        LookupError: The data lack a method or a size.
    """
    data = figures["attention"]
    methods = list(data["methods"] if methods is None else methods)
    if sizes is None:
        sizes = data["sizes"] if len(methods) == 1 else _thinned(data["sizes"])
    maps = {
        (method, n): np.asarray(data["weights"][row][column], dtype=float)
        for method in methods
        for n in sizes
        for row, column in [(_index(data["methods"], method), _index(data["sizes"], n))]
    }
    single = len(methods) == 1
    columns = min(_ACROSS, len(sizes)) if single else len(methods)
    rows = -(-len(sizes) // columns) if single else len(sizes)
    height = 1.62 + (2.15 if single else 1.42) * rows
    with style.new_figure(height) as figure:
        grid = figure.subplots(rows, columns, squeeze=False)
        figure.subplots_adjust(
            left=0.045 if single else 0.125,
            right=0.9,
            top=1 - 1.02 / height,
            bottom=0.62 / height,
            hspace=0.34 if single else 0.16,
            wspace=0.14 if single else 0.08,
        )
        highest = max(float(each.max()) for each in maps.values())
        image = None
        for place, (method, n) in enumerate(maps):
            row, column = divmod(place, columns) if single else divmod(place, rows)[::-1]
            axes = grid[row][column]
            image = _draw_map(axes, maps[method, n], highest)
            if single:
                axes.set_title(f"n = {n:,}", fontsize=10, fontweight="normal", loc="center", pad=5)
            elif row == 0:
                axes.set_title(
                    look(method).label, fontsize=11, loc="center", color=look(method).text_color
                )
            if column == 0:
                axes.set_ylabel(f"{len(maps[method, n])} sets", fontsize=8.4, labelpad=3)
                if not single:
                    _label_size(axes, n)
            if place >= len(maps) - columns if single else row == rows - 1:
                _label_items(axes, maps[method, n].shape[1])
        for axes in grid.flat[len(maps) :] if single else ():
            axes.axis("off")
        bar = figure.add_axes((0.917, 0.62 / height, 0.014, 1 - 1.64 / height))
        figure.colorbar(image, cax=bar)
        bar.tick_params(labelsize=9)
        bar.set_title("weight", fontsize=9, fontweight="normal", loc="left", pad=6)
        title = (
            f"Attention of a head under {look(methods[0]).label} as sets grow"
            if single
            else "Attention of the same head with different methods at inference"
        )
        style.write_title(
            figure,
            title,
            "Columns: the largest items of a set by priority, the right answer first. In each map:"
            " mean weight of the first item.",
        )
        return style.save(figure, path)


def _draw_map(axes: Any, weights: np.ndarray[Any, Any], highest: float) -> Any:
    image = axes.imshow(
        weights, cmap="cividis", vmin=0.0, vmax=highest, aspect="auto", interpolation="nearest"
    )
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.text(
        0.97,
        0.05,
        f"first item {weights[:, 0].mean():.3f}",
        transform=axes.transAxes,
        ha="right",
        fontsize=8.4,
        color="white",
        bbox={"boxstyle": "square,pad=0.2", "facecolor": "#00224E", "edgecolor": "none"},
    )
    return image


def _label_items(axes: Any, items: int) -> None:
    axes.set_xticks([-0.5, items - 0.5], ["1st", f"{items}th"], fontsize=8.4)
    axes.tick_params(length=0)
    for label, side in zip(axes.get_xticklabels(), ("left", "right"), strict=True):
        label.set_horizontalalignment(side)


def _label_size(axes: Any, n: int) -> None:
    axes.annotate(
        f"n = {n:,}",
        (0.0, 0.5),
        xycoords="axes fraction",
        xytext=(-20, 0),
        textcoords="offset points",
        ha="right",
        va="center",
        fontsize=9.6,
    )


def _thinned(sizes: Sequence[int]) -> list[int]:
    """At most six sizes, evenly apart, with the first and the last."""
    places = np.linspace(0, len(sizes) - 1, min(6, len(sizes))).round().astype(int)
    return [sizes[place] for place in dict.fromkeys(places.tolist())]


def _index(values: Sequence[Any], value: Any) -> int:
    if value not in values:
        raise LookupError(f"attention: expected one of {', '.join(map(str, values))}, got {value}")
    return list(values).index(value)
