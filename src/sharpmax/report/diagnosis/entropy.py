"""Entropy of every head against the length: Figure 3 of the paper for any model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from sharpmax.report._page import style
from sharpmax.report.diagnosis.verdicts import VERDICTS, legend_handles

if TYPE_CHECKING:
    from sharpmax.models import Diagnosis, Head

__all__ = ["draw_entropy"]

_MOST: Final = 48
"""Layers in a figure; of more layers, an evenly spaced selection is drawn."""

_ACROSS: Final = 6

_UNIFORM: Final = style.Series("log n: uniform attention", "#8A8A8A", line_style=(0, (4, 2)))


def draw_entropy(diagnosis: Diagnosis, layers: Sequence[int] | None = None) -> Any:
    """Draw the mean entropy against the length, with one panel per layer and one curve per head.

    Colours show verdicts. The band is one standard deviation over rows. The dashed line is log n,
    the entropy of uniform attention.

    Args:
        diagnosis: The diagnosis.
        layers: Indices of layers. None draws all, or an evenly spaced selection of very many.

    Returns:
        A figure of matplotlib.

    Raises:
        MissingExtraError: matplotlib is not installed.
        ValueError: A layer was not measured.
    """
    known = list(dict.fromkeys(head.layer for head in diagnosis.heads))
    shown = _thinned(known) if layers is None else list(layers)
    if wrong := [layer for layer in shown if layer not in known]:
        raise ValueError(
            f"layers: expected some of {', '.join(map(str, known))}, which were measured, got "
            f"{wrong[0]}"
        )
    if not shown:
        raise ValueError("layers: expected at least one, got none")
    columns = len(shown) if len(shown) <= 4 else min(_ACROSS, -(-len(shown) // 2))
    rows = -(-len(shown) // columns)
    height = 1.5 + (3.3 if rows == 1 else 1.5) * rows
    with style.new_figure(height) as figure:
        grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
        figure.subplots_adjust(
            left=0.075, right=0.985, top=1 - 0.98 / height, bottom=0.52 / height, hspace=0.1,
            wspace=0.06,
        )  # fmt: skip
        for place, layer in enumerate(shown):
            _draw_layer(grid[place // columns][place % columns], diagnosis, layer)
        for axes in grid.flat[len(shown) :]:
            axes.set_visible(False)
        for column in range(columns):
            # The last panel of a column may be above the last row.
            last = max(place // columns for place in range(column, len(shown), columns))
            _label_lengths(grid[last][column], diagnosis, columns)
        _set_heights(grid[0][0], diagnosis, shown)
        figure.supxlabel(_length_label(diagnosis), fontsize=10, y=0.1 / height)
        figure.supylabel("entropy, nats", fontsize=10, x=0.012)
        title = f"Attention entropy in {diagnosis.name}"
        if layers is None and len(known) > len(shown):
            title += f", {len(shown)} of {len(known)} layers"
        style.write_title(figure, title)
        heads = [head for head in diagnosis.heads if head.layer in shown]
        handles = [*legend_handles(heads, points=False), _UNIFORM.handle(linewidth=0.9)]
        style.write_legend(figure, handles, top=0.64)
    return figure


def _draw_layer(axes: Any, diagnosis: Diagnosis, layer: int) -> None:
    heads = [head for head in diagnosis.heads if head.layer == layer]
    lengths = np.array(diagnosis.lengths)
    axes.plot(
        lengths, np.log(diagnosis.tokens), color=_UNIFORM.color, linewidth=0.9,
        linestyle=_UNIFORM.line_style, zorder=1,
    )  # fmt: skip
    # The most serious verdicts last, so that nothing covers them.
    order = list(VERDICTS)
    for head in sorted(heads, key=lambda head: -order.index(head.verdict)):
        mean, deviation = _curve(diagnosis, head)
        color = VERDICTS[head.verdict].color
        axes.fill_between(
            lengths, np.maximum(mean - deviation, 0.0), mean + deviation, color=color, alpha=0.16,
            linewidth=0, zorder=2,
        )  # fmt: skip
        axes.plot(lengths, mean, color=color, linewidth=1.2, zorder=3, solid_capstyle="round")
    kinds = {head.kind for head in heads} - {"global"}
    axes.annotate(
        f"layer {layer}" + "".join(f", {kind}" for kind in sorted(kinds)), (0.0, 1.0),
        xycoords="axes fraction", xytext=(4, -3), textcoords="offset points", va="top",
        fontsize=8.6, fontweight="bold", color="#303030", zorder=4,
        bbox={"boxstyle": "square,pad=0.15", "facecolor": "white", "edgecolor": "none"},
    )  # fmt: skip
    axes.grid(visible=True)
    axes.set_axisbelow(True)
    axes.tick_params(length=2, labelsize=8.4)


def _curve(diagnosis: Diagnosis, head: Head) -> tuple[Any, Any]:
    """Return mean and deviation per length; NaN, which is not drawn, if nothing was measured."""
    points = []
    for length in diagnosis.lengths:
        entropy = diagnosis.record(head, length).entropy
        points.append((np.nan, np.nan) if entropy is None else (entropy.mean, entropy.deviation))
    mean, deviation = np.array(points).T
    return mean, deviation


def _set_heights(axes: Any, diagnosis: Diagnosis, shown: Sequence[int]) -> None:
    curves = [_curve(diagnosis, head) for head in diagnosis.heads if head.layer in shown]
    tops = [np.nanmax(mean + deviation) for mean, deviation in curves if np.isfinite(mean).any()]
    top = max([float(np.log(diagnosis.tokens[-1])), *map(float, tops)])
    axes.set_ylim(0.0, top * 1.06)
    axes.set_xlim(diagnosis.lengths[0], diagnosis.lengths[-1])


def _label_lengths(axes: Any, diagnosis: Diagnosis, columns: int) -> None:
    axes.set_xscale("log", base=2)
    lengths = diagnosis.lengths
    room = max(3, round(9 / columns))
    places = np.linspace(0, len(lengths) - 1, min(room, len(lengths))).round().astype(int)
    ticks = [lengths[place] for place in dict.fromkeys(places.tolist())]
    axes.set_xticks(ticks, [_short(length) for length in ticks])
    axes.minorticks_off()
    axes.tick_params(labelbottom=True)
    labels = axes.get_xticklabels()
    if columns > 1:
        # Centred labels at the ends would touch those of the next panel.
        labels[0].set_horizontalalignment("left")
        labels[-1].set_horizontalalignment("right")


def _short(length: int) -> str:
    return f"{length // 1024}k" if length >= 1024 and length % 1024 == 0 else f"{length:,}"


def _length_label(diagnosis: Diagnosis) -> str:
    if diagnosis.unit == "tokens":
        return "tokens"
    first, last = diagnosis.tokens[0], diagnosis.tokens[-1]
    return f"{diagnosis.unit} ({first:,.0f} to {last:,.0f} tokens)"


def _thinned(layers: Sequence[int]) -> list[int]:
    places = np.linspace(0, len(layers) - 1, min(_MOST, len(layers))).round().astype(int)
    return [layers[place] for place in dict.fromkeys(places.tolist())]
