"""Draw the modelled time of communication against the number of ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from experiments.distributed_cost.model import METHODS, NETWORKS, seconds
from experiments.distributed_cost.tables import DECODING, PREFILL
from sharpmax.report._page import style

__all__ = ["figures"]

_COLORS = {
    "tree": style.BLUE, "ring": style.VERMILION, "all_gather": style.GREY, "ulysses": style.GREEN,
}  # fmt: skip


def figures(results: Path) -> list[Path]:
    """Draw one panel per network into the folder of the results."""
    ranks = [2**n for n in range(1, 11)]
    with style.new_figure(4.2) as figure:
        panels: Any = figure.subplots(1, len(NETWORKS), sharey=True)
        for axes, (name, network) in zip(panels, NETWORKS.items(), strict=True):
            for method in METHODS:
                shape = DECODING if method == "tree" else PREFILL
                served = [n for n in ranks if method != "ulysses" or shape.heads % n == 0]
                times = [1e3 * seconds(method, shape, n, network, logarithmic=True) for n in served]
                axes.plot(served, times, color=_COLORS[method], marker="o", ms=3, label=method)
            axes.set_title(name, fontsize=10.5)
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            axes.set_xlabel("ranks")
            axes.grid(True, axis="y")
        panels[0].set_ylabel("ms of communication")
        panels[-1].legend(frameon=False, fontsize=9)
        figure.suptitle("Communication of one attention, by the model", x=0.02, ha="left")
        figure.subplots_adjust(left=0.08, right=0.985, top=0.84, bottom=0.21, wspace=0.1)
        text = "tree: one query against 1,048,576 keys. The others: as many queries as keys."
        figure.text(0.02, 0.03, text, fontsize=8.4, color=style.SOFT)
        return [style.save(figure, results / "model.png")]
