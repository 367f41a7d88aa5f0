"""Draw how the largest coefficient falls with the length, and what each policy does."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any, Final

import numpy as np

from experiments.common.labels import spread_apart
from experiments.dispersion.measure import Curve, Dispersion
from sharpmax import policies
from sharpmax.report._page import style

__all__ = ["draw_dispersion", "figures"]

_LINES: Final[dict[str, dict[str, Any]]] = {
    "plain softmax": {"color": style.BLACK, "linewidth": 2.6},
    "Constant": {"color": style.SKY_BLUE, "linestyle": (0, (5, 1.5))},
    # Drawn over plain softmax, with gaps, because for long rows the two are the same.
    "Paper": {"color": style.VERMILION, "linestyle": (0, (2, 2)), "zorder": 3},
    "LogLength": {"color": style.ORANGE},
    "Monotone": {"color": style.PURPLE},
    "Exponential": {"color": style.BLUE},
    "EntropyTarget": {"color": style.GREEN, "linestyle": (0, (5, 1.5))},
    "Hard": {"color": style.GREY, "linestyle": (0, (1, 1.5))},
}


def figures(results: Path) -> list[Path]:
    """Draw the figure from `dispersion.json` into the same folder."""
    measured = Dispersion.load(results / "dispersion.json")
    return [draw_dispersion(measured, results / "dispersion.png")]


def draw_dispersion(measured: Dispersion, path: str | Path) -> Path:
    """Draw the largest coefficient against the length, between the bounds of the lemma.

    Args:
        measured: What `measure_dispersion` returned.
        path: The file; its suffix sets the format.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from experiments.dispersion.measure import measure_dispersion
        >>> measured = measure_dispersion(sizes=(16, 64, 256), rows=1)
        >>> with TemporaryDirectory() as folder:
        ...     draw_dispersion(measured, folder + "/dispersion.png").stat().st_size > 10_000
        True
    """
    with style.new_figure(6.0) as figure:
        axes = figure.add_axes((0.07, 0.195, 0.7, 0.68))
        _draw_bounds(axes, measured)
        _draw_curves(axes, measured)
        _label_axes(axes, measured)
        caption = "\n".join(textwrap.wrap(_caption(measured), width=150))
        figure.text(0.012, 0.022, caption, fontsize=8.4, color=style.SOFT, linespacing=1.4)
        return style.save(figure, path)


def _draw_bounds(axes: Any, measured: Dispersion) -> None:
    # No coefficient exceeds one, so the upper edge is level until the bound falls below one.
    turn = float(np.clip(np.exp(measured.spread), measured.sizes[0], measured.sizes[-1]))
    sizes = np.array([measured.sizes[0], turn, measured.sizes[-1]])
    lower, upper = np.exp(-measured.spread) / sizes, np.exp(measured.spread) / sizes
    axes.fill_between(sizes, lower, np.minimum(upper, 1.0), color="#F3F3F3", zorder=0, linewidth=0)
    for bound, sign, first in ((upper, "+", 1), (lower, "-", 0)):
        ends = slice(first, None)
        axes.plot(sizes[ends], bound[ends], color="#9A9A9A", linewidth=1.0, zorder=1)
        middle = float(np.sqrt(sizes[first] * sizes[-1]))
        above = sign == "+"
        axes.annotate(
            f"Lemma 2.1:  $e^{{{sign}\\delta}}\\,/\\,n$",
            (middle, float(np.exp(measured.spread if above else -measured.spread)) / middle),
            xytext=(5, 4) if above else (-5, -4),
            textcoords="offset points",
            ha="left" if above else "right",
            va="bottom" if above else "top",
            color="#606060",
        )


def _draw_curves(axes: Any, measured: Dispersion) -> None:
    for curve in measured.curves:
        line = {"linewidth": 2.0, "zorder": 2, **_LINES.get(curve.name, {})}
        axes.plot(measured.sizes, curve.largest, solid_capstyle="round", **line)

    # A label may be at another height than the end of its line; a thin line connects them.
    ends = [float(np.log10(curve.largest[-1])) for curve in measured.curves]
    for curve, end, height in zip(
        measured.curves, ends, spread_apart(ends, distance=0.33), strict=True
    ):
        color = _LINES.get(curve.name, {}).get("color", style.BLACK)
        axes.annotate(
            _label(measured, curve),
            (measured.sizes[-1], 10.0**end),
            xytext=(1.032, 10.0**height),
            textcoords=axes.get_yaxis_transform(),
            va="center",
            color=style.darkened(color),
            fontsize=9.5,
            fontweight="bold" if curve.name == "plain softmax" else "normal",
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": color,
                "linewidth": 0.7,
                "shrinkA": 1,
                "shrinkB": 1,
            },
        )


def _label(measured: Dispersion, curve: Curve) -> str:
    """Name a line, with its parameter."""
    policy: Any = curve.policy
    match policy:
        case policies.Constant():
            return f"{curve.name} (β = {policy.beta:g})"
        case policies.Paper():
            return f"{curve.name} (its Figure 4)"
        case policies.LogLength():
            return f"{curve.name} (log n / log {policy.train_length:g})"
        case policies.Monotone():
            return f"{curve.name} (fitted to n ≤ {measured.fitted_length:,})"
    return curve.name


def _label_axes(axes: Any, measured: Dispersion) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlim(measured.sizes[0], measured.sizes[-1])
    axes.set_ylim(float(np.min(measured.bounds.lower)) * 0.5, 1.6)
    ticks = measured.sizes[::2]
    axes.set_xticks(ticks, [f"{size:,}" for size in ticks], fontsize=9)
    decades = range(int(np.floor(np.log10(axes.get_ylim()[0]))) + 1, 1)
    axes.set_yticks(
        [10.0**decade for decade in decades],
        [f"{10.0**decade:g}" if decade >= -3 else f"$10^{{{decade}}}$" for decade in decades],
    )
    style.add_grid(axes)
    axes.set_xlabel("number of items n")
    axes.set_title(
        "Attention over a bounded row must disperse, unless its temperature adapts", pad=26
    )
    axes.text(0.0, 1.025, "largest softmax coefficient", transform=axes.transAxes, color=style.SOFT)


def _caption(measured: Dispersion) -> str:
    return (
        f"{measured.description} Grey: bounds of the lemma on plain softmax, δ ="
        f" {measured.spread:g}."
    )
