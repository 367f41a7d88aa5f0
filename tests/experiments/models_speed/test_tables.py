from __future__ import annotations

from typing import Any

import pytest

from experiments.models_speed.tables import memory_table, models_tables, times_table


def _record(work: str, ratio: float, **fields: Any) -> dict[str, Any]:
    return {
        "work": work,
        "length": 2048,
        "threads": 2,
        "ratio": ratio,
        "speed": 1 / ratio,
        "tokens_a_second": 1000.0 / ratio,
        "peer_tokens_a_second": 1000.0,
        "bound": None,
        "target": None,
        **fields,
    }


@pytest.fixture
def result() -> dict[str, Any]:
    return {
        "command": "sharpmax bench models",
        "versions": {"torch": "2.0", "transformers": "5.0"},
        "machine": {"processor": "Abacus", "processors": 2, "vector_extension": "AVX2"},
        "model": {"name": "Small", "dtype": "float32", "attention": "sdpa"},
        "records": [
            _record("decode", 1.25, bound="at least", target=0.95, tokens_a_second=12.34),
            _record("diagnose", 1.56, bound="at most", target=1.3, length=4096),
            _record("weights", 0.5),
            _record("prefill", 1.0, bound="at least", target=0.9),
        ],
        "memory": [
            {"model": "the model", "way": "diagnose", "length": 2048, "mebibytes": 100.0},
            {"model": "a small model", "way": "diagnose", "length": 8192, "mebibytes": 80.0},
        ],
        "growth": {"from_length": 8192, "to_length": 32768, "growth": 1.05, "target": 1.1},
    }


def test_times(result: dict[str, Any]) -> None:
    rows = [list(row) for row in times_table(result).rows]
    assert rows == [
        ["diagnose: time over a plain pass", "4,096", "2", "1.56", "≤ 1.3", "641", "1,000",
         "missed by 20.0%"],
        ["diagnose: time over output_attentions", "2,048", "2", "0.50", "", "2,000", "1,000", ""],
        ["sharpened prefill: speed over stock", "2,048", "2", "1.00", "≥ 0.9", "1,000", "1,000",
         "reached"],
        ["sharpened decoding: speed over stock", "2,048", "2", "0.80", "≥ 0.95", "12.3", "1,000",
         "missed by 15.8%"],
    ]  # fmt: skip
    assert "Small, float32, sdpa; Abacus" in times_table(result).caption


def test_memory(result: dict[str, Any]) -> None:
    table = memory_table(result)
    assert list(table.rows[1]) == ["diagnose", "a small model", "8,192", "80", "10.0"]
    assert "by a factor of 1.05 (to reach: at most 1.1, reached)" in table.caption
    assert memory_table(result | {"growth": None}).caption == ""


def test_documents_get_both(result: dict[str, Any]) -> None:
    assert list(models_tables(result)) == ["models-times", "models-memory"]
