"""Figure of the critical length of every head."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from sharpmax.report._page import style
from sharpmax.report.diagnosis.verdicts import VERDICTS, legend_handles

if TYPE_CHECKING:
    from sharpmax.models import Diagnosis

__all__ = ["draw_critical_lengths"]

_HIGHEST: Final = 1e15
"""Where heads without a finite critical length are drawn."""


def draw_critical_lengths(diagnosis: Diagnosis) -> Any:
    """Draw, with one point per head, the length beyond which no weight can reach 0.01.

    The length follows from Lemma 2.1 and the median logit spread at the longest length measured,
    which a line marks. Heads with a sliding window are left out: their n does not grow.

    Args:
        diagnosis: The diagnosis.

    Returns:
        A figure of matplotlib.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    layers = list(dict.fromkeys(head.layer for head in diagnosis.heads))
    longest = diagnosis.tokens[-1]
    heads = [
        head
        for head in diagnosis.heads
        if head.verdict != "local" and diagnosis.record(head).measured
    ]
    lengths = [diagnosis.record(head).critical_length or _HIGHEST for head in heads]
    lowest, highest = min([longest, *lengths]), max([longest, *lengths])
    with style.new_figure(4.6) as figure:
        axes = figure.add_axes((0.085, 0.115, 0.9, 0.66))
        most = 1 + max(head.head for head in diagnosis.heads)
        for head, length in zip(heads, lengths, strict=True):
            series = VERDICTS[head.verdict]
            # Side by side within a layer, so that points do not hide each other.
            across = layers.index(head.layer) + 0.7 * ((head.head + 0.5) / most - 0.5)
            axes.plot(
                across, length, series.marker, color=series.color, markersize=4.2,
                markeredgecolor="white", markeredgewidth=0.3, clip_on=False, zorder=3,
            )  # fmt: skip
        axes.set_yscale("log")
        axes.set_ylim(10 ** np.floor(np.log10(lowest / 2)), 10 ** np.ceil(np.log10(highest)))
        axes.axhline(longest, color=style.BLACK, linewidth=1.2, zorder=2)
        axes.annotate(
            f"longest input measured: {longest:,.0f} tokens", (len(layers) - 0.5, longest),
            xytext=(0, 3), textcoords="offset points", ha="right", fontsize=8.6,
        )  # fmt: skip
        _label_axes(axes, layers)
        style.write_title(
            figure,
            "Critical length: beyond it, no attention weight can reach 0.01",
            "exp(δ) / 0.01 by Lemma 2.1, where δ is the median logit spread; one point per head",
        )
        style.write_legend(figure, legend_handles(heads, points=True), top=0.82)
    return figure


def _label_axes(axes: Any, layers: list[int]) -> None:
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
    style.add_grid(axes, "y")
    axes.set_xlabel("layer")
