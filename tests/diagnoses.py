"""Made-up diagnoses: heads with the slopes and verdicts that a test needs."""

from __future__ import annotations

import math
from typing import Any

from sharpmax.models import Diagnosis, Distribution, Head, HeadRecord
from sharpmax.models._diagnosis.heads import Verdict

LENGTHS = (64, 256, 1024)

SLOPES: dict[Verdict | None, float | None] = {
    "dispersing": 0.9,
    "growing": 0.3,
    "flat": 0.02,
    "sink": 0.2,
    "local": 0.0,
    None: None,
}


def all_alike(value: float) -> Distribution:
    return Distribution(value, value / 10, value, value, value)


def record(layer: int, head: int, length: int, verdict: Verdict | None, kind: Any) -> HeadRecord:
    place = (layer, f"layers.{layer}.attention", kind, head, length)
    if verdict is None:
        return HeadRecord(*place, 0, 0, 20, None, None, *(None,) * 9)
    slope = SLOPES[verdict] or 0.0
    visible = min(length, 128) if verdict == "local" else length
    entropy = 1.0 + slope * math.log(visible / 64) + 0.01 * head
    return HeadRecord(
        *place,
        measured=20,
        skipped=1,
        non_finite=0,
        visible=visible,
        log_visible=math.log(visible),
        entropy=all_alike(entropy),
        normalised_entropy=all_alike(entropy / math.log(visible)),
        effective_support=all_alike(math.exp(entropy)),
        largest_weight=all_alike(math.exp(-entropy)),
        spread=all_alike(2.0 + 8.0 * layer),
        first_mass=all_alike(0.7 if verdict == "sink" else 0.01),
        sink_mass=all_alike(0.0),
        tail_mass=all_alike(0.1),
        critical_length=None if layer > 3 else math.ceil(100 * math.exp(2.0 + 8.0 * layer)),
    )


def make_diagnosis(layers: list[list[Verdict | None]], **facts: Any) -> Diagnosis:
    """Make a diagnosis with a verdict for each head of each layer."""
    records, heads = [], []
    for layer, verdicts in enumerate(layers):
        kind: Any = "sliding" if "local" in verdicts else "global"
        for head, verdict in enumerate(verdicts):
            records += [record(layer, head, length, verdict, kind) for length in LENGTHS]
            name = f"layers.{layer}.attention"
            heads.append(Head(layer, name, kind, head, SLOPES[verdict], verdict))
    return Diagnosis(
        **{
            "model_name": "somewhere/Abacus <small>",
            "model_type": "llama",
            "dtype": "bfloat16",
            "implementation": "sdpa",
            "lengths": LENGTHS,
            "unit": "tokens",
            "tokens": tuple(map(float, LENGTHS)),
            "rows": 64,
            "tail": 16,
            "sink": False,
            "inputs": 2,
            "interrupted": False,
            "records": tuple(records),
            "heads": tuple(heads),
            "versions": {"sharpmax": "0.1", "torch": "2.0"},
            "source": "text of a book",
            **facts,
        }
    )


MIXED = make_diagnosis(
    [
        ["dispersing", "dispersing", "growing", None],
        ["local", "local", "local", "local"],
        ["flat", "sink", "sink", "growing"],
    ]
)
