"""The figure of how the largest coefficient falls with the length, and of what each policy does."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from sharpmax import policies
from sharpmax._extras import require
from sharpmax.report._page import style as _style

if TYPE_CHECKING:
    from experiments.dispersion.measure import Curve, Dispersion

__all__ = ["draw_dispersion"]

_LINES: Final[dict[str, dict[str, Any]]] = {
    "plain softmax": {"color": _style.BLACK, "linewidth": 2.6},
    "Constant": {"color": _style.SKY_BLUE, "linestyle": (0, (5, 1.5))},
    # Drawn over plain softmax, with gaps, because for long rows the two are the same.
    "Paper": {"color": _style.VERMILION, "linestyle": (0, (2, 2)), "zorder": 3},
    "LogLength": {"color": _style.ORANGE},
    "Monotone": {"color": _style.PURPLE},
    "Exponential": {"color": _style.BLUE},
    "EntropyTarget": {"color": _style.GREEN, "linestyle": (0, (5, 1.5))},
    "Hard": {"color": _style.GREY, "linestyle": (0, (1, 1.5))},
}


def draw_dispersion(measured: Dispersion, path: str | Path) -> Path:
    """Draw the largest coefficient against the length, between the bounds of the lemma.

    Args:
        measured: What `experiments.dispersion.measure.measure_dispersion` gave.
        path: Where to write; the suffix decides the format (.png, .svg, .pdf).

    Returns:
        The path that was written; folders on the way to it are made.

    Raises:
        MissingExtraError: matplotlib is not installed.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from experiments.dispersion.measure import measure_dispersion
        >>> measured = measure_dispersion(sizes=(16, 64, 256), rows=1)
        >>> with TemporaryDirectory() as folder:
        ...     draw_dispersion(measured, folder + "/dispersion.png").stat().st_size > 10_000
        True
    """
    matplotlib = require("matplotlib", extra="experiments", what="drawing a figure")
    figure_module = require("matplotlib.figure", extra="experiments", what="drawing a figure")
    with matplotlib.rc_context(_style.SETTINGS):
        # A figure of its own, without pyplot: no window system is asked for, no state is left.
        figure = figure_module.Figure(figsize=(9.6, 6.0))
        axes = figure.add_axes((0.07, 0.195, 0.715, 0.68))
        _draw_bounds(axes, measured)
        _draw_curves(axes, measured)
        _label_axes(axes, measured)
        figure.text(
            0.012,
            0.022,
            "\n".join(textwrap.wrap(_caption(measured), width=150)),
            fontsize=8.4,
            color="#404040",
            linespacing=1.4,
        )
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        # No date and no version in the file, so that the same measurement gives the same file.
        figure.savefig(path, metadata={"Software": None} if path.suffix == ".png" else None)
    return path


def _draw_bounds(axes: Any, measured: Dispersion) -> None:
    # No coefficient exceeds one: the upper edge is level up to the length where the bound is one.
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
        style = {"linewidth": 2.0, "zorder": 2, **_LINES.get(curve.name, {})}
        axes.plot(measured.sizes, curve.largest, solid_capstyle="round", **style)

    # A label may stand at another height than the end of its line; a thin line leads to it.
    ends = [float(np.log10(curve.largest[-1])) for curve in measured.curves]
    for curve, end, height in zip(
        measured.curves, ends, _style.spread_apart(ends, distance=0.33), strict=True
    ):
        color = _LINES.get(curve.name, {}).get("color", _style.BLACK)
        axes.annotate(
            _label(measured, curve),
            (measured.sizes[-1], 10.0**end),
            xytext=(1.032, 10.0**height),
            textcoords=axes.get_yaxis_transform(),
            va="center",
            color=_style.darkened(color),
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
    """Name of a line, with what sets it apart."""
    policy: Any = curve.policy
    match policy:
        case policies.Constant():
            return f"{curve.name} (β = {policy.beta:g})"
        case policies.Paper():
            return f"{curve.name} (its Figure 4)"
        case policies.LogLength():
            return f"{curve.name} (log n / log {policy.train_length:g})"
        case policies.Monotone():
            return f"{curve.name} (to n ≤ {measured.fitted_length:,})"
    return curve.name


def _label_axes(axes: Any, measured: Dispersion) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlim(measured.sizes[0], measured.sizes[-1])
    axes.set_ylim(float(np.min(measured.bounds.lower)) * 0.5, 1.6)
    ticks = measured.sizes[::2]
    axes.set_xticks(ticks, [f"{size:,}" for size in ticks], fontsize=9)
    axes.minorticks_off()
    decades = range(int(np.floor(np.log10(axes.get_ylim()[0]))) + 1, 1)
    axes.set_yticks(
        [10.0**decade for decade in decades],
        [f"{10.0**decade:g}" if decade >= -3 else f"$10^{{{decade}}}$" for decade in decades],
    )
    axes.grid(visible=True)
    axes.set_axisbelow(True)
    axes.set_xlabel("number of items n")
    axes.set_title(
        "Attention over a bounded row must disperse, unless its temperature follows", pad=26
    )
    axes.text(0.0, 1.025, "largest softmax coefficient", transform=axes.transAxes, color="#404040")


def _caption(measured: Dispersion) -> str:
    return (
        f"{measured.description} Grey: where the lemma keeps every coefficient of plain softmax"
        f" over logits no further apart than δ = {measured.spread:g}."
    )
