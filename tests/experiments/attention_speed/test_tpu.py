"""Compilation of the Pallas kernels for TPUs."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from experiments.attention_speed.tpu import (
    FILE,
    TOPOLOGIES,
    Configuration,
    compiled,
    configurations,
    tpu_tables,
)

RESULTS = Path(__file__).parents[3] / "experiments/attention_speed/results"


@pytest.mark.skipif(find_spec("libtpu") is None, reason="libtpu has the compiler of TPUs")
def test_a_kernel_compiles_for_a_tpu() -> None:
    record = compiled(Configuration("v5e", "one pass", "bfloat16", 128))
    assert record["device"] == "TPU v5 lite"
    assert record["kernels"] == 3
    assert record["code"] > 0


def test_every_configuration_was_compiled() -> None:
    records = json.loads((RESULTS / FILE).read_text(encoding="utf-8"))["records"]
    found = {(x["generation"], x["variant"], x["dtype"], x["width"]) for x in records}
    assert found == {(x.generation, x.variant, x.dtype, x.width) for x in configurations()}
    # Measure and attend, two backward kernels behind each; one pass does not measure.
    counts = {record["variant"]: record["kernels"] for record in records}
    assert counts["causal"] == counts["window, soft cap, bias"] == 6
    assert counts["one pass"] == 3
    table = tpu_tables(RESULTS)["attention-tpu"].to_markdown()
    assert table.count(", ".join(TOPOLOGIES)) == 3
