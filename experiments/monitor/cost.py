"""Time steps of training that are measured and steps that are not, in turn."""

from __future__ import annotations

from typing import Any

import torch

import sharpmax
from experiments.common.timing import interleave
from experiments.monitor.training import small_model, training_step

__all__ = ["SHAPES", "measure_cost"]

SHAPES = {"small": (64, 2, 8, 128), "wide": (256, 6, 2, 512), "long": (128, 2, 1, 2048)}
"""Width, layers, rows per batch and tokens per row."""


def measure_cost(name: str, *, seconds: float) -> dict[str, Any]:
    """Return the seconds of a step without a monitor, and of one that it measures."""
    width, layers, rows, length = SHAPES[name]
    model = small_model(width, layers, length)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens = torch.randint(128, (rows, length), generator=torch.Generator().manual_seed(0))
    watched = sharpmax.monitor(model, every=1)

    def measured() -> None:
        with watched.step():
            watched.loss(training_step(model, optimizer, tokens))

    calls = {"plain": lambda: training_step(model, optimizer, tokens), "measured": measured}
    timing = interleave(calls, baseline="plain", seconds=seconds)
    return {
        "shape": name, "width": width, "layers": layers, "rows": rows, "length": length,
        "seconds": timing.best, "rounds": timing.rounds,
    }  # fmt: skip
