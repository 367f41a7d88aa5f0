"""The critical lengths of a model's heads: from where on no weight can be large."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from sharpmax._extras import require
from sharpmax.report._page import style as _style
from sharpmax.report.diagnosis.verdicts import VERDICTS, handles

if TYPE_CHECKING:
    from sharpmax.models import Diagnosis, Head

__all__ = ["draw_critical_lengths"]

_HIGHEST: Final = 1e15
"""Where heads are drawn whose critical length is not given."""


def draw_critical_lengths(diagnosis: Diagnosis) -> Any:
    """Draw, for every head, the length from which on no weight can reach 0.01: a point a head.

    By Lemma 2.1 and the median of the spreads at the longest length. A line marks that length:
    heads below it have no weight of 0.01 any more in a row of this spread. Heads that see a window
    alone are left out, since n does not grow for them.

    Args:
        diagnosis: What was measured.

    Returns:
        A figure of matplotlib.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    matplotlib = require("matplotlib", extra="report", what="drawing a figure")
    figure_module = require("matplotlib.figure", extra="report", what="drawing a figure")
    layers = list(dict.fromkeys(head.layer for head in diagnosis.heads))
    longest = diagnosis.tokens[-1]
    heads = [
        head
        for head in diagnosis.heads
        if head.verdict != "local" and diagnosis.record(head).measured
    ]
    lengths = [diagnosis.record(head).critical_length or _HIGHEST for head in heads]
    lowest, highest = min([longest, *lengths]), max([longest, *lengths])
    with matplotlib.rc_context(_style.SETTINGS):
        figure = figure_module.Figure(figsize=(9.6, 4.6))
        axes = figure.add_axes((0.085, 0.115, 0.9, 0.66))
        most = 1 + max(head.head for head in diagnosis.heads)
        for head, length in zip(heads, lengths, strict=True):
            look = VERDICTS[head.verdict]
            # Side by side within a layer, so that they do not hide each other.
            across = layers.index(head.layer) + 0.7 * ((head.head + 0.5) / most - 0.5)
            axes.plot(
                across,
                length,
                look.marker,
                color=look.color,
                markersize=4.2,
                markeredgecolor="white",
                markeredgewidth=0.3,
                clip_on=False,
                zorder=3,
            )
        axes.set_yscale("log")
        axes.set_ylim(10 ** np.floor(np.log10(lowest / 2)), 10 ** np.ceil(np.log10(highest)))
        axes.axhline(longest, color=_style.BLACK, linewidth=1.2, zorder=2)
        axes.annotate(
            f"longest input here: {longest:,.0f} tokens",
            (len(layers) - 0.5, longest),
            xytext=(0, 3),
            textcoords="offset points",
            ha="right",
            fontsize=8.6,
        )
        _label(axes, layers)
        _write_titles(figure, heads)
    return figure


def _label(axes: Any, layers: list[int]) -> None:
    first, last = np.log10(axes.get_ylim()).round()
    decades = np.arange(last, first - 1, -1 if last - first < 8 else -2)[::-1]
    named = {decade: f"{10**decade:,}" for decade in range(6)} | {6: "1 million", 15: "beyond"}
    axes.set_yticks(
        [10.0**decade for decade in decades],
        [named.get(int(decade), f"$10^{{{int(decade)}}}$") for decade in decades],
        fontsize=8.6,
    )
    axes.set_xlim(-0.5, len(layers) - 0.5)
    step = max(1, -(-len(layers) // 32))
    shown = range(0, len(layers), step)
    axes.set_xticks(list(shown), [str(layers[place]) for place in shown], fontsize=8.6)
    axes.tick_params(length=2)
    axes.minorticks_off()
    axes.grid(visible=True, axis="y")
    axes.set_axisbelow(True)
    axes.set_xlabel("layer")


def _write_titles(figure: Any, heads: Sequence[Head]) -> None:
    title = "From how many tokens on no weight can reach 0.01"
    figure.text(0.012, 0.955, title, fontsize=13, fontweight="bold", va="center")
    figure.text(
        0.012,
        0.902,
        "exp(δ) / 0.01 by Lemma 2.1, with δ the median spread of a head's logits; a point a head",
        fontsize=9.2,
        color="#404040",
        va="center",
    )
    figure.legend(
        handles=handles(heads, points=True),
        loc="center left",
        bbox_to_anchor=(0.0, 0.842),
        ncols=6,
        frameon=False,
        fontsize=9.2,
        handletextpad=0.2,
        columnspacing=1.4,
    )
