"""Figures of a diagnosis: slopes, entropies and critical lengths of all heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from sharpmax.report._page import style
from sharpmax.report.diagnosis.verdicts import VERDICTS, counts, legend_handles

if TYPE_CHECKING:
    from sharpmax.models import Diagnosis, Head

__all__ = ["draw_critical_lengths", "draw_entropy", "draw_slopes"]

_MOST: Final = 48
"""Layers in a figure; of more layers, an evenly spaced selection is drawn."""

_ACROSS: Final = 6

_HIGHEST: Final = 1e15
"""Where heads without a finite critical length are drawn."""

_UNIFORM: Final = style.Series("log n: uniform attention", "#8A8A8A", line_style=(0, (4, 2)))

_Places = list[tuple[int, int]]


def draw_slopes(diagnosis: Diagnosis) -> Any:
    """Draw the slope of the entropy against log n, with one cell per layer and head.

    Dark is flat, bright disperses. A dot marks a sink. Heads with a sliding window and heads that
    could not be measured are grey.
    """
    layers = _layers(diagnosis)
    most = 1 + max(head.head for head in diagnosis.heads)
    slopes = np.full((most, len(layers)), np.nan)
    grey = slopes.copy()
    sinks: _Places = []
    dispersing: _Places = []
    for head in diagnosis.heads:
        column = layers.index(head.layer)
        grey[head.head, column] = 0.15
        if head.slope is not None and head.verdict not in ("local", None):
            slopes[head.head, column] = head.slope
        if head.verdict in ("sink", "dispersing"):
            (sinks if head.verdict == "sink" else dispersing).append((column, head.head))
    # Cells are as square as the room allows, and no larger than needed.
    wide, tall = min(0.4, 7.5 / len(layers)), min(0.31, 9.0 / most)
    height = 1.54 + max(tall * most, 0.95)
    with style.new_figure(height) as figure:
        bottom, share = 0.56 / height, 1 - 1.54 / height
        across = wide * len(layers) / style.WIDTH
        axes = figure.add_axes((0.075, bottom, across, share))
        cells: dict[str, Any] = {"vmin": 0, "vmax": 1, "aspect": "auto", "interpolation": "nearest"}
        axes.imshow(grey, cmap="Greys", **cells)
        image = axes.imshow(slopes, cmap="cividis", **cells)
        _draw_marks(axes, sinks, dispersing, min(wide, tall))
        _label_layers(axes, layers, labelpad=3)
        shown = range(0, most, max(1, -(-most // 16)))
        axes.set_yticks(shown, [str(head) for head in shown], fontsize=8.6)
        axes.set_ylabel("head", labelpad=3)
        # Lines between the cells.
        axes.set_xticks(np.arange(len(layers) + 1) - 0.5, minor=True)
        axes.set_yticks(np.arange(most + 1) - 0.5, minor=True)
        axes.grid(visible=True, which="minor", color="white", linewidth=1.0)
        axes.tick_params(which="both", length=0)
        axes.spines[:].set_visible(False)
        bar = figure.add_axes((0.1 + across, bottom, 0.016, share))
        figure.colorbar(image, cax=bar, extend="neither")
        bar.set_yticks([0.0, 0.1, 0.5, 1.0], ["0  flat", "0.1", "0.5", "1  uniform"])
        bar.tick_params(labelsize=8.6, length=2)
        bar.set_title("slope", fontsize=9, fontweight="normal", loc="left", pad=6)
        some_grey = {"local", None} & counts(diagnosis.heads).keys()
        parts = {
            "slope of the entropy against log n": True,
            "frame: 0.5 or more": dispersing,
            "dot: weight mostly on the first token or a sink": sinks,
            "grey: sliding window, or not measured": some_grey,
        }
        title = f"{len(dispersing)} of {len(diagnosis.heads)} heads disperse"
        style.write_title(figure, title, "; ".join(part for part, told in parts.items() if told))
    return figure


def _draw_marks(axes: Any, sinks: _Places, dispersing: _Places, cell: float) -> None:
    from matplotlib.patches import Rectangle

    for place in sinks:
        axes.plot(
            *place, "o", markersize=13 * cell, color="white", markeredgecolor="black",
            markeredgewidth=0.5,
        )  # fmt: skip
    look: dict[str, Any] = {"fill": False, "edgecolor": style.VERMILION, "linewidth": 4.4 * cell}
    for column, row in dispersing:
        axes.add_patch(Rectangle((column - 0.44, row - 0.44), 0.88, 0.88, **look))


def draw_entropy(diagnosis: Diagnosis, layers: Sequence[int] | None = None) -> Any:
    """Draw the mean entropy against the length, with one panel per layer and one curve per head.

    Colours show verdicts. The band is one standard deviation over rows. The dashed line is log n,
    the entropy of uniform attention.
    """
    known = _layers(diagnosis)
    shown = _spaced(known, _MOST) if layers is None else list(layers)
    if wrong := [layer for layer in shown if layer not in known]:
        measured = ", ".join(map(str, known))
        raise ValueError(
            f"layers: expected some of {measured}, which were measured, got {wrong[0]}"
        )
    if not shown:
        raise ValueError("layers: expected at least one, got none")
    curves = {h: _curve(diagnosis, h) for h in diagnosis.heads if h.layer in shown}
    columns = len(shown) if len(shown) <= 4 else min(_ACROSS, -(-len(shown) // 2))
    rows = -(-len(shown) // columns)
    height = 1.5 + (3.3 if rows == 1 else 1.5) * rows
    with style.new_figure(height) as figure:
        grid = style.panels(figure, len(shown), columns, sharex=True, sharey=True)
        figure.subplots_adjust(
            left=0.075, right=0.985, top=1 - 0.98 / height, bottom=0.52 / height, hspace=0.1,
            wspace=0.06,
        )  # fmt: skip
        for axes, layer in zip(grid.flat, shown, strict=False):
            _draw_layer(
                axes, diagnosis, {h: each for h, each in curves.items() if h.layer == layer}
            )
        for column in range(columns):
            # The last panel of a column may be above the last row.
            last = max(place // columns for place in range(column, len(shown), columns))
            _label_lengths(grid[last][column], diagnosis.lengths, columns)
        tops: list[Any] = [np.log(diagnosis.tokens), *map(sum, curves.values())]
        grid[0][0].set_ylim(0.0, float(np.nanmax(tops)) * 1.06)
        grid[0][0].set_xlim(diagnosis.lengths[0], diagnosis.lengths[-1])
        unit = diagnosis.unit
        if unit != "tokens":
            unit += f" ({diagnosis.tokens[0]:,.0f} to {diagnosis.tokens[-1]:,.0f} tokens)"
        figure.supxlabel(unit, fontsize=10, y=0.1 / height)
        figure.supylabel("entropy, nats", fontsize=10, x=0.012)
        some = f", {len(shown)} of {len(known)} layers"
        some = some if layers is None and len(known) > len(shown) else ""
        style.write_title(figure, f"Attention entropy in {diagnosis.name}{some}")
        handles = [*legend_handles(curves, points=False), _UNIFORM.handle(linewidth=0.9)]
        style.write_legend(figure, handles, top=0.64)
    return figure


def _draw_layer(axes: Any, diagnosis: Diagnosis, curves: Mapping[Head, Any]) -> None:
    lengths = np.array(diagnosis.lengths)
    look = {"color": _UNIFORM.color, "linestyle": _UNIFORM.line_style}
    axes.plot(lengths, np.log(diagnosis.tokens), linewidth=0.9, zorder=1, **look)
    # The most serious verdicts last, so that nothing covers them.
    order = list(VERDICTS)
    for head in sorted(curves, key=lambda head: -order.index(head.verdict)):
        mean, deviation = curves[head]
        low, color = np.maximum(mean - deviation, 0.0), VERDICTS[head.verdict].color
        band = {"color": color, "alpha": 0.16, "linewidth": 0}
        axes.fill_between(lengths, low, mean + deviation, zorder=2, **band)
        axes.plot(lengths, mean, color=color, linewidth=1.2, zorder=3, solid_capstyle="round")
    kinds = sorted({head.kind for head in curves} - {"global"})
    axes.annotate(
        ", ".join([f"layer {next(iter(curves)).layer}", *kinds]), (0.0, 1.0),
        xycoords="axes fraction", xytext=(4, -3), textcoords="offset points", va="top",
        fontsize=8.6, fontweight="bold", color="#303030", zorder=4,
        bbox={"boxstyle": "square,pad=0.15", "facecolor": "white", "edgecolor": "none"},
    )  # fmt: skip
    axes.grid(visible=True)
    axes.set_axisbelow(True)
    axes.tick_params(length=2, labelsize=8.4)


def _curve(diagnosis: Diagnosis, head: Head) -> Any:
    """Return means and deviations by length; NaN, which is not drawn, if nothing was measured."""
    found = [diagnosis.record(head, length).entropy for length in diagnosis.lengths]
    return np.array([(each.mean, each.deviation) if each else (np.nan, np.nan) for each in found]).T


def _label_lengths(axes: Any, lengths: Sequence[int], columns: int) -> None:
    axes.set_xscale("log", base=2)
    ticks = _spaced(lengths, max(3, round(9 / columns)))
    thousands = [n // 1024 if n % 1024 == 0 else 0 for n in ticks]
    named = [f"{k}k" if k else f"{n:,}" for k, n in zip(thousands, ticks, strict=True)]
    axes.set_xticks(ticks, named)
    axes.minorticks_off()
    axes.tick_params(labelbottom=True)
    if columns > 1:
        # Centred labels at the ends would touch those of the next panel.
        labels = axes.get_xticklabels()
        labels[0].set_horizontalalignment("left")
        labels[-1].set_horizontalalignment("right")


def draw_critical_lengths(diagnosis: Diagnosis) -> Any:
    """Draw, with one point per head, the length beyond which no weight can reach 0.01.

    The length follows from Lemma 2.1 and the median logit spread at the longest length measured,
    which a line marks. Heads with a sliding window are left out: their n does not grow.
    """
    layers, longest = _layers(diagnosis), diagnosis.tokens[-1]
    most = 1 + max(head.head for head in diagnosis.heads)
    full = [head for head in diagnosis.heads if head.verdict != "local"]
    heads = [head for head in full if diagnosis.record(head).measured]
    lengths = [diagnosis.record(head).critical_length or _HIGHEST for head in heads]
    with style.new_figure(4.6) as figure:
        axes = figure.add_axes((0.085, 0.115, 0.9, 0.66))
        for head, length in zip(heads, lengths, strict=True):
            series = VERDICTS[head.verdict]
            # Side by side within a layer, so that points do not hide each other.
            across = layers.index(head.layer) + 0.7 * ((head.head + 0.5) / most - 0.5)
            axes.plot(
                across, length, series.marker, color=series.color, markersize=4.2,
                markeredgecolor="white", markeredgewidth=0.3, clip_on=False, zorder=3,
            )  # fmt: skip
        first = int(np.floor(np.log10(min([longest, *lengths]) / 2)))
        last = int(np.ceil(np.log10(max([longest, *lengths]))))
        axes.set_yscale("log")
        axes.set_ylim(10.0**first, 10.0**last)
        axes.axhline(longest, color=style.BLACK, linewidth=1.2, zorder=2)
        axes.annotate(
            f"longest input measured: {longest:,.0f} tokens", (len(layers) - 0.5, longest),
            xytext=(0, 3), textcoords="offset points", ha="right", fontsize=8.6,
        )  # fmt: skip
        named = {decade: f"{10**decade:,}" for decade in range(6)} | {6: "1 million", 15: "beyond"}
        decades = range(last, first - 1, -1 if last - first < 8 else -2)[::-1]
        labels = [named.get(decade, f"$10^{{{decade}}}$") for decade in decades]
        axes.set_yticks([10.0**decade for decade in decades], labels, fontsize=8.6)
        axes.set_xlim(-0.5, len(layers) - 0.5)
        axes.tick_params(length=2)
        style.add_grid(axes, "y")
        _label_layers(axes, layers, labelpad=4)
        style.write_title(
            figure,
            "Critical length: beyond it, no attention weight can reach 0.01",
            "exp(δ) / 0.01 by Lemma 2.1, where δ is the median logit spread; one point per head",
        )
        style.write_legend(figure, legend_handles(heads, points=True), top=0.82)
    return figure


def _layers(diagnosis: Diagnosis) -> list[int]:
    return list(dict.fromkeys(head.layer for head in diagnosis.heads))


def _label_layers(axes: Any, layers: Sequence[int], labelpad: int) -> None:
    shown = range(0, len(layers), max(1, -(-len(layers) // 32)))
    axes.set_xticks(shown, [str(layers[place]) for place in shown], fontsize=8.6)
    axes.set_xlabel("layer", labelpad=labelpad)


def _spaced(items: Sequence[int], most: int) -> list[int]:
    """Return at most so many of the items, evenly spaced."""
    places = np.linspace(0, len(items) - 1, min(most, len(items))).round().astype(int)
    return [items[place] for place in dict.fromkeys(places.tolist())]
