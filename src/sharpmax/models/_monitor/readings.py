"""What is measured of each head in one step of training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sharpmax import _attention
from sharpmax._attention import Problem
from sharpmax.models._monitor.alarms import Alarm
from sharpmax.models._way import Layer

FIGURES = ("entropy", "normalised_entropy", "largest_logit", "sink_mass")
"""What is measured of each head, in order."""


@dataclass(frozen=True)
class HeadReading:
    """What was measured of one head in one step.

    Rows that see no key are left out. NaN if there are no other rows.

    Attributes:
        layer: index of the layer, as in `Sharpened.status()`.
        name: name of its module.
        head: index of the query head.
        entropy: mean entropy of the rows, in nats.
        normalised_entropy: the mean entropy over the mean of log n, where n is the number of keys
            that a row sees: 1 if the head attends to all keys equally.
        largest_logit: largest logit of all rows, after scale, soft cap and bias.
        sink_mass: mean weight of the first key and of a learned sink.
    """

    layer: int
    name: str
    head: int
    entropy: float
    normalised_entropy: float
    largest_logit: float
    sink_mass: float


@dataclass(frozen=True)
class Reading:
    """What was measured in one step of training.

    Attributes:
        step: number of the step.
        loss: mean of the losses since the previous reading; None if none was passed.
        heads: one entry per head.
        alarms: the alarms that begin with this reading.
    """

    step: int
    loss: float | None
    heads: tuple[HeadReading, ...]
    alarms: tuple[Alarm, ...] = ()

    def to_scalars(self) -> dict[str, float]:
        """Return the figures by name, for a logger: `attention/entropy/model.layers.0.self_attn/3`.

        The lowest entropy, the largest logit and the number of new alarms come first.
        """
        found = {
            "attention/lowest_entropy": min(each.entropy for each in self.heads),
            "attention/largest_logit": max(each.largest_logit for each in self.heads),
            "attention/alarms": float(len(self.alarms)),
        }
        for each in self.heads:
            for figure in FIGURES:
                name = f"attention/{figure}/{each.name}/{each.head}"
                found[name] = getattr(each, figure)
        return found


class Sums:
    """Sums over the rows of each head, on the device of the model, for one step."""

    def __init__(self) -> None:
        self._sums: dict[int, Tensor] = {}  # by layer: [rows, H, log n, sink mass; heads]
        self._largest: dict[int, Tensor] = {}

    def clear(self) -> None:
        """Forget all rows."""
        self._sums.clear()
        self._largest.clear()

    def observe(self, layer: int, problem: Problem) -> None:
        """Add the rows of one call of attention."""
        statistics = _attention.measure(problem)
        seen = statistics.count > 0
        rows = (
            seen.to(statistics.mass.dtype),
            statistics.entropy(),
            torch.where(seen, statistics.count, 1).log(),
            torch.where(seen, _sink_mass(problem, statistics.logsumexp()), 0.0),
        )
        sums = torch.stack([each.sum((0, 2), dtype=torch.float64) for each in rows])
        largest = statistics.maximum.amax((0, 2))
        if layer in self._sums:
            # A gradient accumulation, or the second pass of a checkpoint.
            sums = sums + self._sums[layer]
            largest = torch.maximum(largest, self._largest[layer])
        self._sums[layer], self._largest[layer] = sums, largest

    def heads(self, layers: Sequence[Layer]) -> tuple[HeadReading, ...]:
        """Return the figures of every head that was observed."""
        found: list[HeadReading] = []
        for index in sorted(self._sums):
            rows, entropy, logarithm, sink = self._sums[index].cpu()
            table = (entropy / rows, entropy / logarithm, self._largest[index].cpu(), sink / rows)
            for head, figures in enumerate(zip(*(each.tolist() for each in table), strict=True)):
                found.append(HeadReading(index, layers[index].name, head, *figures))
        return tuple(found)


def _sink_mass(problem: Problem, logsumexp: Tensor) -> Tensor:
    """Return the weight of the first key, and of a learned sink, in each row."""
    mask = None if problem.attn_mask is None else problem.attn_mask[..., :1]
    first = replace(problem, key=problem.key[:, :, :1], attn_mask=mask)
    logits, _, visible = _attention.logits_and_visibility(first)
    return torch.where(visible, torch.exp(logits - logsumexp[..., None]), 0.0).sum(-1)
