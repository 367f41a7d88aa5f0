"""Figures of the CLRS-Text experiment: accuracy and entropy against the size."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from experiments.clrs_text.tables import Way, label_of, slopes, tokenizers, ways
from experiments.common.methods import look
from sharpmax._extras import require
from sharpmax.report._page import style as _style

if TYPE_CHECKING:
    from experiments.clrs_text.records import Table

__all__ = ["draw_accuracy", "draw_all", "draw_entropy"]

_COLUMNS: Final = 4
_TRAINED_IN: Final = "solid"
_AT_INFERENCE: Final = (0, (3.0, 1.6))


def draw_all(table: Table, entropy: Mapping[str, Any] | None, folder: Path) -> list[Path]:
    """Draw every figure that the results have.

    Args:
        table: The results.
        entropy: What `experiments.clrs_text.study.load_entropy` gave, or None.
        folder: Where to write.

    Returns:
        The files.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    drawn = [
        draw_accuracy(table, folder / f"accuracy-{tokenizer.replace(' ', '-')}.svg", tokenizer)
        for tokenizer in tokenizers(table)
    ]
    for name, entry in (entropy or {"arms": {}})["arms"].items():
        drawn.append(draw_entropy(entry, folder / f"entropy-{name}.svg", name))
    return drawn


def draw_accuracy(table: Table, path: str | Path, tokenizer: str) -> Path:
    """Draw accuracy against size, a panel an algorithm, as the paper's Figure 8 does.

    Args:
        table: The results.
        path: Where to write; the suffix decides the format (.png, .svg, .pdf).
        tokenizer: Which of the tokenizers.

    Returns:
        The path that was written; folders on the way to it are made.

    Raises:
        MissingExtraError: matplotlib is not installed.
        LookupError: The results have nothing of this tokenizer.
    """
    matplotlib = require("matplotlib", extra="experiments", what="drawing a figure")
    figure_module = require("matplotlib.figure", extra="experiments", what="drawing a figure")
    found = ways(table, tokenizer)
    if not found:
        raise LookupError(f"the results have no tokenizer {tokenizer!r}")
    names = list(table.lengths)
    columns = min(_COLUMNS, len(names))
    count = math.ceil(len(names) / columns)
    with matplotlib.rc_context(_style.SETTINGS):
        # A figure of its own, without pyplot: no window system is asked for, no state is left.
        figure = figure_module.Figure(figsize=(2.7 * columns + 0.4, 2.1 * count + 1.3))
        panels = figure.subplots(count, columns, squeeze=False, sharey=True).flatten()
        for panel, name in zip(panels, names, strict=False):
            _draw_panel(panel, table, tokenizer, name, found)
        for panel in panels[len(names) :]:
            panel.set_visible(False)
        for panel in panels[::columns]:
            panel.set_ylabel("percent right", fontsize=8.5)
        handles, labels = panels[0].get_legend_handles_labels()
        figure.tight_layout(rect=(0, 0.75 / figure.get_size_inches()[1], 1, 1))
        figure.legend(handles, labels, loc="lower center", ncols=3, fontsize=8.4, frameon=False)
        return _style.save(figure, path)


def _draw_panel(panel: Any, table: Table, tokenizer: str, name: str, found: list[Way]) -> None:
    largest = table.lengths[name][1]
    panel.axvspan(0, largest, color="#F2F2F2", linewidth=0)
    for way in found:
        records = sorted(
            table.select(tokenizer=tokenizer, algorithm=name, **way._asdict()),
            key=lambda record: record.n,
        )
        if not records:
            continue
        sizes = [record.n for record in records]
        means = np.array([100 * record.mean for record in records])
        spread = np.array([100 * record.deviation for record in records])
        alone = way.trained_with == "softmax" and way.method != "softmax"
        color = look(way.method).color
        panel.plot(
            sizes,
            means,
            color=color,
            linestyle=_AT_INFERENCE if alone else _TRAINED_IN,
            linewidth=1.5,
            marker=look(way.method).marker,
            markersize=3,
            label=label_of(way),
        )
        panel.fill_between(
            sizes, means - spread, means + spread, color=color, alpha=0.12, linewidth=0
        )
    panel.set_title(name.replace("_", " "), fontsize=9.5)
    panel.set_xlim(0, None)
    panel.set_ylim(-3, 103)
    panel.grid(visible=True)
    panel.set_axisbelow(True)
    panel.tick_params(labelsize=8)


def draw_entropy(entry: Mapping[str, Any], path: str | Path, name: str) -> Path:
    """Draw the entropy of every head against the number of tokens, a panel a layer.

    Args:
        entry: Of one arm, as `Study.measure_entropy` wrote it.
        path: Where to write; the suffix decides the format (.png, .svg, .pdf).
        name: Of the arm.

    Returns:
        The path that was written; folders on the way to it are made.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    matplotlib = require("matplotlib", extra="experiments", what="drawing a figure")
    figure_module = require("matplotlib.figure", extra="experiments", what="drawing a figure")
    means, spread = np.asarray(entry["mean"]), np.asarray(entry["deviation"])
    visible = np.asarray(entry["visible"])
    seen = visible[entry["multiples"].index(1.0)]
    with matplotlib.rc_context(_style.SETTINGS):
        figure = figure_module.Figure(figsize=(2.9 * means.shape[1] + 0.4, 3.3))
        panels = figure.subplots(1, means.shape[1], squeeze=False, sharey=True)[0]
        for layer, panel in enumerate(panels):
            panel.axvspan(visible[0], seen, color="#F2F2F2", linewidth=0)
            panel.plot(visible, np.log(visible), color="#9A9A9A", linestyle="dotted", linewidth=1)
            for head in range(means.shape[2]):
                line = panel.plot(visible, means[:, layer, head], linewidth=1.4)[0]
                panel.fill_between(
                    visible,
                    means[:, layer, head] - spread[:, layer, head],
                    means[:, layer, head] + spread[:, layer, head],
                    color=line.get_color(),
                    alpha=0.1,
                    linewidth=0,
                )
            slope = slopes(entry)[layer].mean()
            panel.set_title(f"layer {layer}: slope {slope:.2f}", fontsize=9.5)
            panel.set_xscale("log", base=2)
            panel.set_xlabel("tokens that a row sees", fontsize=8.5)
            panel.grid(visible=True)
            panel.tick_params(labelsize=8)
        panels[0].set_ylabel("entropy, nats", fontsize=8.5)
        figure.suptitle(
            f"Entropy of the heads where they answer: {name}", x=0.01, ha="left", fontsize=10.5
        )
        figure.tight_layout()
        return _style.save(figure, path)
