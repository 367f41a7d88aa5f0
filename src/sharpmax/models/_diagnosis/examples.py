"""Record the keys with the largest weights in a few rows of each head."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from sharpmax._attention import Problem, logits_and_visibility

KEYS = 8  # recorded per row
BETAS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
"""Inverse temperatures at which the mass of a row is recorded."""
SINK = -1  # the position of a learned sink


@dataclass(frozen=True)
class ExampleKey:
    """One key of a recorded row.

    Attributes:
        position: index of the key; -1 for a learned sink.
        text: the token; may be empty.
        gap: its logit minus the largest logit of the row.
    """

    position: int
    text: str
    gap: float


@dataclass(frozen=True)
class ExampleRow:
    """The keys with the largest weights in one row of a head.

    The weight of a key at an inverse temperature beta is exp(beta gap) / mass(beta). The logarithm
    of the mass and its derivative are recorded at beta = 0.5, 1, 2, …, 64, so that the weights
    under any policy follow without the logits of all other keys.

    Attributes:
        layer, head: which head.
        position: index of the query.
        text: the token of the query; may be empty.
        visible: number of keys that the row sees, a learned sink included.
        entropy: in nats.
        keys: the largest first.
        log_mass: log sum exp(beta (e - max e)) at each of the betas.
        mean_gap: mean of e - max e under softmax(beta e), the derivative of `log_mass`.
    """

    layer: int
    head: int
    position: int
    text: str
    visible: int
    entropy: float
    keys: tuple[ExampleKey, ...]
    log_mass: tuple[float, ...]
    mean_gap: tuple[float, ...]


Found = list[dict[str, Any]]
"""The rows of all heads of a layer, without texts."""


def chosen_rows(start: int, stop: int, count: int) -> list[int]:
    """Return `count` rows of a range, evenly spaced up to the last, or all if there are fewer.

    Example:
        >>> chosen_rows(10, 21, 3)
        [13, 17, 20]
    """
    count = min(count, stop - start)
    return [start + math.ceil((k + 1) * (stop - start) / count) - 1 for k in range(count)]


def pick(row: Problem, position: int) -> Found:
    """Record one row of every head; `row` holds this row alone. Memory is linear in its keys."""
    logits, _, visible = logits_and_visibility(row)
    logits, visible = logits[0, :, 0].double(), visible[0, :, 0]
    keys = row.key.shape[2]
    found: Found = []
    for head in range(len(logits)):
        seen = visible[min(head, len(visible) - 1)].nonzero()[:, 0]
        values = logits[head, seen]
        if not len(seen) or not bool(values.isfinite().all()):
            continue
        gaps = values - values.max()
        best = torch.topk(gaps, min(KEYS, len(gaps)))
        beta = torch.tensor(BETAS, dtype=gaps.dtype, device=gaps.device)
        weights = torch.exp(beta[:, None] * gaps)
        mass = weights.sum(-1)
        mean = (weights @ gaps) / mass
        entropy = mass[1].log() - mean[1]
        places = [k if k < keys else SINK for k in seen[best.indices].tolist()]
        found.append(
            {
                "head": head,
                "position": position,
                "visible": len(seen),
                "entropy": _short(float(entropy)),
                "keys": list(zip(places, map(_short, best.values.tolist()), strict=True)),
                "log_mass": tuple(map(_short, mass.log().tolist())),
                "mean_gap": tuple(map(_short, mean.tolist())),
            }
        )
    return found


def with_texts(
    found: Mapping[int, Found], tokens: Sequence[int] | None, tokenizer: Any
) -> tuple[ExampleRow, ...]:
    """Return the recorded rows of all layers, with the tokens as text if there is a tokenizer."""
    known: dict[int, str] = {}

    def text(place: int) -> str:
        if place == SINK:
            return "(sink)"
        if tokens is None or tokenizer is None:
            return ""
        token = int(tokens[place])
        if token not in known:
            known[token] = str(tokenizer.decode([token]))
        return known[token]

    return tuple(
        ExampleRow(
            layer,
            **{
                **row,
                "text": text(row["position"]),
                "keys": tuple(ExampleKey(place, text(place), gap) for place, gap in row["keys"]),
            },
        )
        for layer, rows in sorted(found.items())
        for row in sorted(rows, key=lambda row: (row["head"], row["position"]))
    )


def _short(value: float) -> float:
    """Round a number to what its use needs, so that files stay small."""
    return float(f"{value:.6g}")
