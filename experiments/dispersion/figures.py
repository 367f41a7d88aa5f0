"""Draw how the largest coefficient falls with the length, and how trained heads disperse."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from experiments.common.labels import spread_apart
from experiments.dispersion.heads import HeadCurve, Heads, load_heads
from experiments.dispersion.measure import Curve, Dispersion
from sharpmax import policies
from sharpmax.report._page import style

__all__ = ["draw_dispersion", "draw_heads", "figures"]

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

_COLORS: Final = [
    style.VERMILION, style.BLUE, style.GREEN, style.ORANGE, style.PURPLE, style.SKY_BLUE,
    style.BLACK,
]  # fmt: skip
"""Colours of heads."""


def figures(results: Path) -> list[Path]:
    """Draw the figures from `dispersion.json` and `heads/*.json` into the same folder."""
    measured = Dispersion.load(results / "dispersion.json")
    drawn = [draw_dispersion(measured, results / "dispersion.png")]
    if models := load_heads(results):
        drawn.append(draw_heads(models, results / "heads.png"))
    return drawn


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


def draw_heads(models: Sequence[Heads], path: str | Path) -> Path:
    """Draw the entropy against the number of items in the first layer of each kind of each model.

    Each curve is a head, with a band of one standard deviation over prompts.

    Args:
        models: What `measure_heads` returned, at least one.
        path: The file; its suffix sets the format.
    """
    layers = [(heads, first) for heads in models for first in heads.first_layers().values()]
    with style.new_figure(4.5) as figure:
        grid = style.panels(figure, len(layers), len(layers), sharex=True, sharey=True)
        figure.subplots_adjust(left=0.06, right=0.985, top=0.71, bottom=0.13, wspace=0.07)
        for axes, (heads, first) in zip(grid.flat, layers, strict=True):
            _draw_layer(axes, heads, first)
        uniform = style.Series("log n: uniform attention", style.GREY, line_style=(0, (4, 2)))
        style.write_legend(figure, [uniform.handle(linewidth=1.1)], top=0.76)
        grid.flat[0].set_ylabel("entropy, nats")
        grid.flat[0].set_ylim(bottom=0.0)
        style.write_title(
            figure,
            "Entropy of the heads of the first layer of each kind, on the prompt of Figure 3",
            f"one curve per head: mean and standard deviation over {models[0].prompts} prompts",
        )
        return style.save(figure, path)


def _draw_layer(axes: Any, heads: Heads, curves: Sequence[HeadCurve]) -> None:
    items, first = np.array(heads.items), curves[0]
    look: dict[str, Any] = {"color": style.GREY, "linestyle": (0, (4, 2)), "zorder": 1}
    axes.plot(items, np.log(first.visible), linewidth=1.1, **look)
    colors = _COLORS * (1 + len(curves) // len(_COLORS))
    for curve, color in zip(curves, colors, strict=False):
        mean, deviation = np.array(curve.entropy), np.array(curve.deviation)
        low = np.maximum(mean - deviation, 0.0)
        axes.fill_between(items, low, mean + deviation, color=color, alpha=0.18, linewidth=0)
        axes.plot(items, mean, color=color, linewidth=1.5, solid_capstyle="round")
    axes.set_xscale("log", base=2)
    axes.set_xlim(items[0], items[-1])
    ticks = items[:: -(-len(items) // 4)]
    axes.set_xticks(ticks, [f"{n:,}" for n in ticks], fontsize=9)
    axes.set_xlabel("number of items")
    style.add_grid(axes)
    sees = "sees all tokens"
    if first.visible[-1] < heads.tokens[-1]:
        sees = f"sees the last {first.visible[-1]:,.0f} tokens"
    axes.set_title(f"{heads.title}, layer {first.layer}\n{first.kind}: {sees}", fontsize=9.5, pad=5)
