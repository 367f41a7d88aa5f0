"""Summarise the measured rows of each head, and judge it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple

import numpy as np

from sharpmax.models._diagnosis.meter import RowFigures, Slot
from sharpmax.models._model_families import Kind
from sharpmax.models._way import Layer
from sharpmax.theory import critical_length

Verdict = Literal["dispersing", "growing", "flat", "sink", "local"]
VERDICTS: tuple[Verdict, ...] = ("dispersing", "growing", "flat", "sink", "local")
"""From the most to the least serious."""

QUANTILES = (0.1, 0.5, 0.9)
DISPERSING_SLOPE = 0.5  # above it, exp(H) grows at least like the square root of n
GROWING_SLOPE = 0.1  # below it, a thousand times as many keys add less than 0.7 nats of entropy
SINK_MASS = 0.5  # mean weight on sinks, at the longest length, from which on a head is a sink head
CRITICAL_WEIGHT = 0.01  # no weight can reach this at the critical length and beyond
LARGEST_CRITICAL_LENGTH = 10**15  # longer critical lengths are not reported
_SAME_LENGTH = 1e-3  # no slope if the mean of log n varies by less than this over the lengths


class Distribution(NamedTuple):
    """The mean, standard deviation and quantiles of a figure over rows."""

    mean: float
    deviation: float
    q10: float
    q50: float
    q90: float


@dataclass(frozen=True)
class HeadRecord:
    """The measurements of one head at one length.

    Distributions are over the measured rows, and None if there are none.

    Attributes:
        layer, name, kind, head: which head, as in `Head`.
        length: number of tokens, or the size of the inputs.
        measured: number of measured rows.
        skipped: number of rows without visible keys, which are left out.
        non_finite: number of rows with a NaN or infinite figure, which are left out.
        visible: mean number n of keys that a row sees.
        log_visible: mean of log n.
        entropy: H, in nats.
        normalised_entropy: H / log n; 0 where n is 1.
        effective_support: exp(H).
        largest_weight: largest weight of a key.
        spread: delta, the largest visible logit minus the smallest.
        first_mass: weight of the first token.
        sink_mass: weight of a learned sink; 0 if there is none.
        tail_mass: weight of the last tokens that a row sees.
        critical_length: the first n at which no weight can reach 0.01, by Lemma 2.1 with the median
            of the spread; None beyond 10^15.
    """

    layer: int
    name: str
    kind: Kind
    head: int
    length: int
    measured: int
    skipped: int
    non_finite: int
    visible: float | None
    log_visible: float | None
    entropy: Distribution | None
    normalised_entropy: Distribution | None
    effective_support: Distribution | None
    largest_weight: Distribution | None
    spread: Distribution | None
    first_mass: Distribution | None
    sink_mass: Distribution | None
    tail_mass: Distribution | None
    critical_length: int | None

    def flat(self) -> dict[str, Any]:
        """Return the record as one row of a table: `entropy_mean`, `entropy_q10` and so on."""
        row: dict[str, Any] = {}
        for name, value in vars(self).items():
            if name in FIGURES:
                for number, field in enumerate(Distribution._fields):
                    row[f"{name}_{field}"] = None if value is None else value[number]
            else:
                row[name] = value
        return row


FIGURES = tuple(entry.name for entry in fields(HeadRecord) if "Distribution" in str(entry.type))
"""The distributions of a record, in order."""


@dataclass(frozen=True)
class Head:
    """The trend of one head over all lengths, and the verdict.

    Attributes:
        layer: index of the layer, as in `Sharpened.status()`.
        name: name of its module.
        kind: kind of the layer: "global", "sliding", "chunked" or "encoder".
        head: index of the query head.
        slope: least-squares slope of the mean entropy against the mean of log n: 1 for a head that
            attends to all keys equally. None if n does not change.
        verdict: see `Diagnosis`; None if nothing could be measured at two lengths.
    """

    layer: int
    name: str
    kind: Kind
    head: int
    slope: float | None
    verdict: Verdict | None


def judge(
    slope: float | None, *, local: bool = False, sink_mass: float | None = None
) -> Verdict | None:
    """Return the verdict on a head, as `Diagnosis` defines it; no `sink_mass` if excluded."""
    if local:
        return "local"
    if sink_mass is not None and sink_mass >= SINK_MASS:
        return "sink"
    if slope is None:
        return None
    if slope >= DISPERSING_SLOPE:
        return "dispersing"
    return "growing" if slope >= GROWING_SLOPE else "flat"


def summarise(
    layer: Layer, slots: Mapping[int, Slot], sink: bool
) -> tuple[list[HeadRecord], list[Head]]:
    """Return the records and verdicts of a layer, from its rows by length."""
    longest = max(slots)
    figures = {length: slot.figures() for length, slot in sorted(slots.items())}
    records, heads = [], []
    for index in range(len(figures[longest].entropy)):
        mine = [
            _record(layer, index, length, RowFigures(*(each[index] for each in rows)))
            for length, rows in figures.items()
        ]
        last, slope, verdict = mine[-1], _slope(mine), None
        if last.first_mass is not None and last.sink_mass is not None:
            rests = None if sink else last.first_mass.mean + last.sink_mass.mean
            verdict = judge(slope, local=slots[longest].windowed, sink_mass=rests)
        records += mine
        heads.append(Head(layer.index, layer.name, layer.kind, index, slope, verdict))
    return records, heads


def _record(layer: Layer, head: int, length: int, rows: RowFigures) -> HeadRecord:
    table = np.stack(rows).astype(np.float64)
    seeing = table[1] > 0
    finite = np.isfinite(table).all(axis=0)
    entropy, count, largest, spread, first, sink, tail = table[:, seeing & finite]
    logarithm = np.log(count)
    normalised = np.divide(entropy, logarithm, out=np.zeros_like(entropy), where=count > 1)
    distributions = (entropy, normalised, np.exp(entropy), largest, spread, first, sink, tail)
    some, critical = len(entropy) > 0, None
    if some and np.median(spread) <= math.log(LARGEST_CRITICAL_LENGTH * CRITICAL_WEIGHT):
        critical = int(critical_length(max(float(np.median(spread)), 0.0), CRITICAL_WEIGHT))
    return HeadRecord(
        layer.index, layer.name, layer.kind, head, length,
        measured=len(entropy),
        skipped=int((~seeing).sum()),
        non_finite=int((seeing & ~finite).sum()),
        visible=float(count.mean()) if some else None,
        log_visible=float(logarithm.mean()) if some else None,
        **dict(zip(FIGURES, map(_distribution, distributions), strict=True)),
        critical_length=critical,
    )  # fmt: skip


def _distribution(values: np.ndarray[Any, Any]) -> Distribution | None:
    if not len(values):
        return None
    quantiles = np.quantile(values, QUANTILES).tolist()
    return Distribution(float(values.mean()), float(values.std()), *quantiles)


def _slope(records: Sequence[HeadRecord]) -> float | None:
    points = [
        (record.log_visible, record.entropy.mean)
        for record in records
        if record.log_visible is not None and record.entropy is not None
    ]
    logarithms, entropies = np.array(points).reshape(-1, 2).T
    if not points or np.ptp(logarithms) < _SAME_LENGTH:
        return None
    away = logarithms - logarithms.mean()
    return float(away @ entropies / (away @ away))
