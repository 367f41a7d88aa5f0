"""Draw Figures 5 and 6 of the paper: entropy over the temperature, and the temperature of rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
from matplotlib.colors import LogNorm

from experiments.common.methods import look
from sharpmax import policies, theory
from sharpmax.report._page import style

__all__ = ["draw_entropy_plane", "draw_fit"]

_POWERS: Final = 10

_LEVELS: Final = (0.01, 0.5, 1.0, 1.5, 2.0, 2.25)
"""Entropies with a line of their own, in nats."""


def draw_entropy_plane(path: str | Path) -> Path:
    """Draw Figure 5: the entropy of softmax of lambda^1 … lambda^10 over lambda and theta.

    Args:
        path: The file; its suffix sets the format.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     draw_entropy_plane(folder + "/plane.png").stat().st_size > 10_000
        True
    """
    bases = np.linspace(0.0, 2.0, 161)
    temperatures = np.geomspace(0.01, 100.0, 161)
    entropies = theory.entropy_grid(bases, temperatures, _POWERS)
    with style.new_figure(5.4, 8.0) as figure:
        axes = figure.add_axes((0.095, 0.115, 0.76, 0.735))
        image = axes.pcolormesh(
            bases, temperatures, entropies.T, cmap="cividis", shading="gouraud", rasterized=True
        )
        axes.set_yscale("log")
        lines = axes.contour(
            bases,
            temperatures,
            entropies.T,
            levels=_LEVELS,
            colors=["white" if level <= 1.0 else "black" for level in _LEVELS],
            linewidths=0.9,
        )
        places = _label_places(bases, temperatures, entropies)
        axes.clabel(lines, fmt="%g", fontsize=9, inline_spacing=4, manual=places)
        axes.axhline(1.0, color=style.GREY, linewidth=1.1, linestyle=(0, (4, 3)))
        axes.annotate(
            "plain softmax, θ = 1",
            (0.02, 1.0),
            xytext=(3, 3),
            textcoords="offset points",
            color="black",
            fontsize=9,
        )
        axes.set_yticks([0.01, 0.1, 1, 10, 100], ["0.01", "0.1", "1", "10", "100"])
        axes.minorticks_off()
        axes.set_xlabel("base λ")
        axes.set_ylabel("temperature θ")
        axes.set_title("Lower temperatures and larger bases make softmax sharp", pad=24)
        below = f"Entropy in nats of softmax(λ¹/θ, …, λ¹⁰/θ); at most log {_POWERS} = 2.303."
        axes.text(0, 1.02, below, transform=axes.transAxes, color=style.SOFT, va="bottom")
        bar = figure.add_axes((0.88, 0.115, 0.02, 0.735))
        figure.colorbar(image, cax=bar)
        bar.set_title("nats", fontsize=9, fontweight="normal", loc="left", pad=6)
        return style.save(figure, path)


def _label_places(
    bases: np.ndarray[Any, Any],
    temperatures: np.ndarray[Any, Any],
    entropies: np.ndarray[Any, Any],
) -> list[tuple[float, float]]:
    """Where lines are labelled: apart from each other, and away from the crowd at lambda = 1."""
    right = bases > 1.0
    places = []
    for level, theta in zip(_LEVELS, (3.0, 8.0, 25.0, 6.0, 22.0, 10.0), strict=True):
        row = int(np.searchsorted(temperatures, theta))
        falling = entropies[right, row][::-1]
        base = float(np.interp(level, falling, bases[right][::-1]))
        places.append((base, float(temperatures[row])))
    for place, level in enumerate(_LEVELS):
        column = int(np.searchsorted(bases, 0.3 + 0.09 * place))
        theta = float(np.interp(level, entropies[column], temperatures))
        places.append((float(bases[column]), theta))
    return places


def draw_fit(figures: dict[str, Any], path: str | Path) -> Path:
    """Draw Figure 6: the best inverse temperature of rows against their entropy, and the rules.

    Args:
        figures: Data of the figures; `figures["fit"]` has the points (entropy, inverse_temperature,
            n), the coefficients of the published polynomial and of one fitted here in the same
            way, the entropies it was fitted on, and the reference of the exponential law.
        path: The file; its suffix sets the format.
    """
    fit = figures["fit"]
    entropy = np.asarray(fit["entropy"], dtype=float)
    best = np.asarray(fit["inverse_temperature"], dtype=float)
    sizes = np.asarray(fit["n"], dtype=float)
    grid = np.linspace(0.0, max(float(entropy.max()) * 1.04, 7.4), 600)
    with style.new_figure(5.6) as figure:
        axes = figure.add_axes((0.075, 0.175, 0.76, 0.685))
        points = axes.scatter(
            entropy,
            best,
            c=sizes,
            s=14,
            cmap="viridis",
            norm=LogNorm(sizes.min(), max(sizes.max(), sizes.min() + 1)),
            linewidth=0.3,
            edgecolor="white",
            zorder=2,
        )
        axes.set_yscale("log", base=2)
        lowest = min(1.0, float(best.min()))
        axes.set_ylim(lowest / 1.35, max(float(best.max()) * 1.6, 8.0))
        axes.set_xlim(grid[0], grid[-1])
        _draw_rules(axes, fit, grid)
        axes.axhline(1.0, color="#9A9A9A", linewidth=0.9, zorder=1)
        ticks = 2 ** np.arange(
            np.ceil(np.log2(axes.get_ylim()[0])), np.floor(np.log2(axes.get_ylim()[1])) + 1
        )
        ticks = ticks if len(ticks) <= 9 else ticks[::2]
        axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
        style.add_grid(axes)
        axes.set_xlabel("entropy of the row under plain softmax, nats")
        axes.set_title(
            "The inverse temperature that a row needs, and the one that each rule gives", pad=24
        )
        axes.text(
            0,
            1.02,
            "inverse temperature β; one point per row, at the β that is best for its largest item",
            transform=axes.transAxes,
            color=style.SOFT,
            va="bottom",
        )
        figure.legend(
            loc="lower left", ncols=3, frameon=False, fontsize=9.2, bbox_to_anchor=(0.06, 0.0)
        )
        bar = figure.add_axes((0.86, 0.175, 0.017, 0.685))
        figure.colorbar(points, cax=bar)
        shown = np.unique(sizes)
        shown = shown if len(shown) <= 6 else shown[::-2][::-1]
        bar.set_yticks(shown, [f"{n:,.0f}" for n in shown])
        bar.minorticks_off()
        bar.tick_params(labelsize=9)
        bar.set_title("items n", fontsize=9, fontweight="normal", loc="left", pad=6)
        return style.save(figure, path)


def _draw_rules(axes: Any, fit: dict[str, Any], grid: np.ndarray[Any, Any]) -> None:
    """The published polynomial, one fitted here in the same way, and the exponential law."""
    published = _clamped(fit["published"], grid)
    paper = look("paper")
    axes.plot(grid, published, color=paper.color, linewidth=2.4, label="published polynomial")
    end = _last_crossing(fit["published"])
    if end is not None and end < grid[-1]:
        axes.plot([end], [1.0], "o", color=paper.color, markersize=6)
        axes.annotate(
            f"switches itself off\nabove {end:.3f} nats",
            (end, 1.0),
            xytext=(8, 16),
            textcoords="offset points",
            color=paper.text_color,
            fontsize=9,
            bbox={
                "boxstyle": "square,pad=0.15",
                "facecolor": "white",
                "edgecolor": "none",
                "alpha": 0.85,
            },
            zorder=5,
        )
    refit = _clamped(fit["refit"], grid)
    low, high = fit["fitted_range"]
    inside = (grid >= low) & (grid <= high)
    line: Any = {"color": style.ORANGE, "linewidth": 1.8, "zorder": 3}
    axes.plot(grid[inside], refit[inside], label="polynomial fitted here, same recipe", **line)
    for outside in (grid < low, grid > high):
        axes.plot(grid[outside], refit[outside], linestyle=(0, (2, 2)), **line)
    law = look("exponential")
    reference = float(fit["reference"])
    axes.plot(
        grid,
        np.exp(np.clip(grid - reference, 0.0, None)),
        color=law.color,
        linewidth=2.4,
        zorder=4,
        label=f"exponential law, exp(H - {reference:.2f})",
    )


def _clamped(coefficients: Any, entropy: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A polynomial as the paper uses it: 1 up to its threshold, and never below 1."""
    values = np.maximum(np.polyval(np.asarray(coefficients, dtype=float), entropy), 1.0)
    return np.where(entropy <= policies.Paper.THRESHOLD, 1.0, values)


def _last_crossing(coefficients: Any) -> float | None:
    """The entropy above which a polynomial stays below 1; None if it does not."""
    coefficients = np.asarray(coefficients, dtype=float)
    if coefficients[0] > 0:
        return None
    roots = np.roots(np.polysub(coefficients, [1.0]))
    crossings = roots[np.abs(roots.imag) < 1e-9].real
    return float(crossings.max()) if len(crossings) else None
