"""Figures of the experiment: accuracy and entropy against size."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure

from experiments.clrs_text.measurements import LOSS
from experiments.clrs_text.records import Table, load_entropy
from experiments.clrs_text.tables import slopes
from experiments.clrs_text.view import View, label_of, views
from experiments.common.methods import look
from sharpmax._files import read_sealed
from sharpmax.report._page import style as _style

__all__ = ["draw_accuracy", "draw_entropy", "draw_losses", "figures"]

_SETTINGS: Final[Any] = _style.SETTINGS  # matplotlib's type names every setting.
_COLUMNS: Final = 4
_SHADE: Final = "#F2F2F2"  # Marks training sizes.
_INFERENCE_ONLY: Final = (0, (3.0, 1.6))


def figures(folder: Path) -> list[Path]:
    """Draw every figure that a folder of results allows, into that folder.

    `accuracy-TOKENIZER.svg` corresponds to Figure 8 of the paper, `entropy-ARM.svg` to Figure 3.
    `loss.svg` has the loss of all trainings.

    Args:
        folder: A folder with `table.json` and, if there are any, `entropy.json` and `loss.json`.

    Returns:
        The paths of the figures.
    """
    drawn = [
        draw_accuracy(view, folder / f"accuracy-{view.tokenizer.replace(' ', '-')}.svg")
        for view in views(Table.load(folder / "table.json"))
    ]
    if (measured := folder / "entropy.json").exists():
        for name, entry in load_entropy(measured)["arms"].items():
            drawn.append(draw_entropy(entry, folder / f"entropy-{name}.svg", name))
    if (kept := folder / "loss.json").exists():
        drawn.append(draw_losses(read_sealed(kept, LOSS)["arms"], folder / "loss.svg"))
    return drawn


def draw_losses(arms: Mapping[str, Any], path: str | Path) -> Path:
    """Draw the loss during training, one line per arm: the mean over seeds.

    Args:
        arms: The arms, as `Study.collect_losses` wrote them.
        path: File to write; the suffix sets the format (.png, .svg, .pdf). Missing folders are
            created.

    Returns:
        The path.
    """
    with rc_context(_SETTINGS):
        figure = Figure(figsize=(6.2, 3.6))
        panel = figure.subplots()
        for name, entry in arms.items():
            panel.plot(entry["steps"], np.mean(entry["loss"], axis=0), linewidth=1.2, label=name)
        panel.set_yscale("log")
        panel.set_xlabel("batches", fontsize=8.5)
        panel.set_ylabel("weighted mean loss, nats per token", fontsize=8.5)
        panel.grid(visible=True)
        panel.tick_params(labelsize=8)
        panel.legend(fontsize=8.4, frameon=False)
        figure.tight_layout()
        return _style.save(figure, path)


def draw_accuracy(view: View, path: str | Path) -> Path:
    """Draw accuracy against size, one panel per algorithm.

    Args:
        view: The results of one tokenizer.
        path: File to write; the suffix sets the format (.png, .svg, .pdf). Missing folders are
            created.

    Returns:
        The path.
    """
    names = view.algorithms
    columns = min(_COLUMNS, len(names))
    count = math.ceil(len(names) / columns)
    in_legend = max(1, columns - 1)
    legend = 0.2 + 0.18 * math.ceil(len(view.ways) / in_legend)  # Its height in inches.
    with rc_context(_SETTINGS):
        # Without pyplot: needs no display and leaves no global state.
        figure = Figure(figsize=(2.7 * columns + 0.4, 2.3 * count + legend))
        panels = figure.subplots(count, columns, squeeze=False, sharey=True).flatten()
        for panel, name in zip(panels, names, strict=False):
            _draw_algorithm(panel, view, name)
        for panel in panels[len(names) :]:
            panel.set_visible(False)
        for panel in panels[::columns]:
            panel.set_ylabel("accuracy, percent", fontsize=8.5)
        handles, labels = panels[0].get_legend_handles_labels()
        figure.tight_layout(rect=(0, legend / figure.get_size_inches()[1], 1, 1))
        figure.legend(
            handles, labels, loc="lower center", ncols=in_legend, fontsize=8.4, frameon=False
        )
        return _style.save(figure, path)


def _draw_algorithm(panel: Any, view: View, name: str) -> None:
    panel.axvspan(0, view.results.lengths[name][1], color=_SHADE, linewidth=0)
    for way in view.ways:
        records = sorted(
            view.results.select(tokenizer=view.tokenizer, algorithm=name, **way._asdict()),
            key=lambda record: record.n,
        )
        sizes = [record.n for record in records]
        means = np.array([100 * record.mean for record in records])
        spread = np.array([100 * record.deviation for record in records])
        shape = look(way.method)
        inference_only = way.trained_with == "softmax" and way.method != "softmax"
        panel.plot(
            sizes,
            means,
            color=shape.color,
            linestyle=_INFERENCE_ONLY if inference_only else "solid",
            linewidth=1.5,
            marker=shape.marker,
            markersize=3,
            label=label_of(way),
        )
        _fill(panel, sizes, means, spread, shape.color, 0.12)
    panel.set_title(name.replace("_", " "), fontsize=9.5)
    panel.set_xlabel("input size", fontsize=8.5)
    panel.set_xlim(0, None)
    panel.set_ylim(-3, 103)
    panel.grid(visible=True)
    panel.set_axisbelow(True)
    panel.tick_params(labelsize=8)


def draw_entropy(entry: Mapping[str, Any], path: str | Path, name: str) -> Path:
    """Draw the entropy of every head against the number of tokens, one panel per layer.

    Args:
        entry: The entry of one arm, as `Study.measure_entropy` wrote it.
        path: File to write; the suffix sets the format (.png, .svg, .pdf). Missing folders are
            created.
        name: Name of the arm.

    Returns:
        The path.
    """
    means, spread = np.asarray(entry["mean"]), np.asarray(entry["deviation"])
    visible = np.asarray(entry["visible"])
    seen = visible[entry["multiples"].index(1.0)]
    with rc_context(_SETTINGS):
        figure = Figure(figsize=(2.9 * means.shape[1] + 0.4, 3.3))
        panels = figure.subplots(1, means.shape[1], squeeze=False, sharey=True)[0]
        for layer, (panel, slope) in enumerate(zip(panels, slopes(entry), strict=True)):
            panel.axvspan(visible[0], seen, color=_SHADE, linewidth=0)
            panel.plot(visible, np.log(visible), color="#9A9A9A", linestyle="dotted", linewidth=1)
            for mean, deviation in zip(means[:, layer].T, spread[:, layer].T, strict=True):
                line = panel.plot(visible, mean, linewidth=1.4)[0]
                _fill(panel, visible, mean, deviation, line.get_color(), 0.1)
            panel.set_title(f"layer {layer}: slope {slope.mean():.2f}", fontsize=9.5)
            panel.set_xscale("log")
            panel.set_xticks(visible, [f"{tokens:.0f}" for tokens in visible])
            panel.minorticks_off()
            panel.set_ylim(0, None)
            panel.set_xlabel("visible tokens", fontsize=8.5)
            panel.grid(visible=True)
            panel.tick_params(labelsize=8)
        panels[0].set_ylabel("entropy, nats", fontsize=8.5)
        figure.suptitle(
            f"Entropy per head in the rows that predict answers: {name}",
            x=0.01,
            ha="left",
            fontsize=10.5,
        )
        figure.tight_layout()
        return _style.save(figure, path)


def _fill(panel: Any, x: Any, mean: Any, spread: Any, color: Any, alpha: float) -> None:
    """Shade one standard deviation around a line."""
    panel.fill_between(x, mean - spread, mean + spread, color=color, alpha=alpha, linewidth=0)
