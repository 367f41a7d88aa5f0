"""Draw how near the errors of the CPU kernels come to their tolerances."""

from __future__ import annotations

from pathlib import Path

from experiments.reliability.campaign import Campaign
from experiments.reliability.tables import DTYPES
from sharpmax.report._page import style

__all__ = ["figures"]

_COLORS = dict(zip(DTYPES, (style.BLUE, style.GREEN, style.ORANGE, style.VERMILION), strict=True))


def figures(results: Path) -> list[Path]:
    """Draw the figure from `campaign.json` into the same folder."""
    campaign = Campaign.load(results / "campaign.json")
    found = {kind: campaign.worst.get(kind, {}).get("cpu", {}) for kind in ("forward", "gradient")}
    with style.new_figure(4.6) as figure:
        for place, (kind, by_policy) in enumerate(found.items()):
            axes = figure.add_axes((0.14 + 0.44 * place, 0.13, 0.36, 0.72))
            names = sorted(found["forward"].keys() | found["gradient"].keys(), reverse=True)
            for row, name in enumerate(names):
                for offset, dtype in enumerate(DTYPES):
                    ratio = by_policy.get(name, {}).get(dtype)
                    if ratio is not None:
                        axes.plot(ratio, row + 0.24 - 0.16 * offset, "o", color=_COLORS[dtype])
            axes.axvline(1.0, color=style.GREY, linewidth=1.2)
            axes.set_xlim(0, 1.08)
            axes.set_ylim(-0.6, len(names) - 0.4)
            axes.set_yticks(range(len(names)), names if place == 0 else [""] * len(names))
            axes.set_xlabel("largest error over its tolerance")
            axes.set_title("Outputs" if kind == "forward" else "Gradients")
            style.add_grid(axes)
        for place, dtype in enumerate(DTYPES):
            figure.text(
                0.14 + 0.12 * place, 0.94, f"● {dtype}", color=style.darkened(_COLORS[dtype])
            )
        return [style.save(figure, results / "campaign.png")]
