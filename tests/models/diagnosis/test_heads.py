"""The verdict rule, and what rows are summed up to."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from model_families import shared
from sharpmax.models import Distribution
from sharpmax.models._diagnosis.heads import judge, summarise
from sharpmax.models._diagnosis.meter import Slot
from sharpmax.models._inspect import attention_layers


@pytest.mark.parametrize(
    ("slope", "facts", "verdict"),
    [
        (1.0, {}, "dispersing"),
        (0.5, {}, "dispersing"),
        (0.499, {}, "growing"),
        (0.1, {}, "growing"),
        (0.099, {}, "flat"),
        (-1.0, {}, "flat"),
        (None, {}, None),
        (1.0, {"sink_mass": 0.5}, "sink"),
        (None, {"sink_mass": 0.9}, "sink"),
        (1.0, {"sink_mass": 0.49}, "dispersing"),
        (1.0, {"local": True, "sink_mass": 0.9}, "local"),
        (None, {"local": True}, "local"),
    ],
)
def test_the_rule(slope: float | None, facts: dict[str, Any], verdict: str | None) -> None:
    assert judge(slope, **facts) == verdict


def slot(entropy: float, count: float, rows: int = 3) -> Slot:
    """Rows of one head that are all alike."""
    figures = [entropy, count, 0.5, 2.0, 0.1, 0.0, 0.2]
    return Slot([np.repeat(np.array(figures)[:, None, None], rows, axis=2)])


def test_the_slope_is_by_least_squares_in_log_n() -> None:
    layer = attention_layers(shared("llama"))[0]
    counts, entropies = [10.0, 100.0, 1000.0], [1.0, 2.0, 2.5]
    slots = {int(n): slot(h, n) for n, h in zip(counts, entropies, strict=True)}
    _, (head,) = summarise(layer, slots, sink=False)
    expected = np.polyfit(np.log(counts), entropies, 1)[0]
    assert head.slope == pytest.approx(expected)
    assert head.verdict == "growing"


def test_a_single_key_and_rows_without_one() -> None:
    layer = attention_layers(shared("llama"))[0]
    rows = Slot([np.concatenate([slot(0.0, n, 1).blocks[0] for n in (1, 1, 0)], axis=2)])
    rows.blocks.append(slot(math.nan, 5.0, 2).blocks[0])
    (record, _), (head,) = summarise(layer, {4: rows, 8: rows}, sink=False)
    assert (record.measured, record.skipped, record.non_finite) == (2, 1, 2)
    assert record.normalised_entropy == Distribution(0.0, 0.0, 0.0, 0.0, 0.0)
    assert (head.slope, head.verdict) == (None, None)


def test_a_critical_length_beyond_all_inputs_is_left_out() -> None:
    layer = attention_layers(shared("llama"))[0]
    far = slot(1.0, 10.0)
    far.blocks[0][3] = 1e5
    (record,), _ = summarise(layer, {10: far}, sink=False)
    assert record.critical_length is None
    assert record.spread == Distribution(1e5, 0.0, 1e5, 1e5, 1e5)
