"""Draw the entropy, the largest logit and the loss of two trainings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from experiments.monitor.tables import KIND
from sharpmax._files import read_sealed
from sharpmax.report._page import style

__all__ = ["figures"]

_COLORS = {"stable": style.BLUE, "collapsing": style.VERMILION}


def figures(results: Path) -> list[Path]:
    """Draw the figure from `monitor.json` into the same folder."""
    data = read_sealed(results / "monitor.json", KIND)
    with style.new_figure(4.6) as figure:
        panels: Any = figure.subplots(1, 3)
        for name, training in data["trainings"].items():
            _draw(panels, name, training)
        titles = ("Entropy per head, nats", "Largest logit per head", "Loss, nats per character")
        for axes, title in zip(panels, titles, strict=True):
            axes.set_title(title, fontsize=10.5)
            axes.set_xlabel("step")
            axes.grid(True, axis="y")
        panels[1].set_yscale("symlog", linthresh=10)
        panels[1].axhline(100, color=style.GREY, linestyle=(0, (1, 1.5)))
        panels[2].legend(frameon=False, fontsize=9)
        figure.suptitle("A learning rate that is too high collapses every head", x=0.02, ha="left")
        figure.subplots_adjust(left=0.06, right=0.985, top=0.84, bottom=0.21, wspace=0.22)
        text = (
            "One thin line per head, marks where an alarm begins (x: explosion, o: collapse, ^:"
            " dispersion). Dotted: the bound of the alarm about explosions."
        )
        figure.text(0.02, 0.03, text, fontsize=8.4, color=style.SOFT)
        return [style.save(figure, results / "monitor.png")]


def _draw(panels: Any, name: str, training: dict[str, Any]) -> None:
    readings, color = training["readings"], _COLORS[name]
    steps = [each["step"] for each in readings]
    for place in range(len(readings[0]["heads"])):
        for axes, figure in ((panels[0], "entropy"), (panels[1], "largest_logit")):
            values = [each["heads"][place][figure] for each in readings]
            axes.plot(steps, values, color=color, linewidth=1.0, alpha=0.7)
    for alarm in training["alarms"]:
        marker = {"collapse": "o", "explosion": "x", "dispersion": "^"}[alarm["kind"]]
        there = next(each for each in readings if each["step"] == alarm["step"])
        head = next(
            each
            for each in there["heads"]
            if (each["layer"], each["head"]) == (alarm["layer"], alarm["head"])
        )
        exploded = alarm["kind"] == "explosion"
        value = head["largest_logit" if exploded else "entropy"]
        panels[1 if exploded else 0].plot([alarm["step"]], [value], marker, color=color, ms=5)
    label = f"{name}: learning rate {training['learning_rate']:g}"
    panels[2].plot(steps, [each["loss"] for each in readings], color=color, label=label)
