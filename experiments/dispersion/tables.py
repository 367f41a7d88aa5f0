"""Tables of dispersion: the largest coefficient per policy, and the entropy of trained heads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from experiments.dispersion.heads import HeadCurve, Heads, load_heads
from experiments.dispersion.measure import Dispersion
from sharpmax.report._page.tables import Table
from sharpmax.report.diagnosis.verdicts import VERDICTS

__all__ = ["dispersion_table", "heads_table", "tables"]

_COLUMNS = 6


def tables(results: Path) -> dict[str, str]:
    """Make the tables of the document from `dispersion.json` and `heads/*.json`."""
    found = {"dispersion": dispersion_table(Dispersion.load(results / "dispersion.json"))}
    if models := load_heads(results):
        found["dispersion-heads"] = heads_table(models)
    return {name: table.to_markdown(100) for name, table in found.items()}


def dispersion_table(measured: Dispersion) -> Table:
    """Show the largest coefficient at up to six lengths, evenly apart."""
    last = len(measured.sizes) - 1
    steps = min(_COLUMNS - 1, last) or 1
    places = list(dict.fromkeys(round(last * step / steps) for step in range(steps + 1)))
    return Table(
        ["largest coefficient at n =", *(f"{measured.sizes[place]:,}" for place in places)],
        [
            [curve.name, *(f"{curve.largest[place]:.3g}" for place in places)]
            for curve in measured.curves
        ],
        caption=measured.description,
    )


def heads_table(models: Sequence[Heads]) -> Table:
    """Show the entropy of the heads of each model: the first layer of each kind, and all of it."""
    items = models[0].items
    places = sorted({0, len(items) // 2, len(items) - 1})
    rows = []
    for heads in models:
        firsts = heads.first_layers()
        for kind, first in firsts.items():
            every = [curve for curve in heads.curves if curve.kind == kind]
            layers = len({curve.layer for curve in every})
            named = {f"layer {first[0].layer}, {kind}": first}
            named |= {f"all {layers} {kind}": every} if layers > 1 else {}
            rows += [
                [heads.title, name, f"{len(curves):,}", *_figures(curves, places)]
                for name, curves in named.items()
            ]
    header = ["model", "layers", "heads", *(f"entropy at {items[place]:,}" for place in places)]
    header += [f"tokens visible at {items[-1]:,}", "slope", "verdicts"]
    caption = (
        "Entropy in nats in the row that answers the prompt: mean over heads and"
        f" {models[0].prompts} prompts per number of items, seed {models[0].seed}. Slope of the"
        " entropy against the logarithm of the number of visible tokens: median, minimum and"
        " maximum over heads."
    )
    return Table(header, rows, caption=caption)


def _figures(curves: Sequence[HeadCurve], places: Sequence[int]) -> list[str]:
    means = np.mean([curve.entropy for curve in curves], axis=0)
    slopes = [curve.slope for curve in curves if curve.slope is not None]
    verdicts = [curve.verdict for curve in curves]
    counted = {each: verdicts.count(each) for each in VERDICTS if each in verdicts}
    return [
        *(f"{means[place]:.2f}" for place in places),
        f"{np.mean([curve.visible[-1] for curve in curves]):,.0f}",
        f"{np.median(slopes):.2f} [{min(slopes):.2f}, {max(slopes):.2f}]",
        ", ".join(f"{number} {VERDICTS[each].label}" for each, number in counted.items()),
    ]
