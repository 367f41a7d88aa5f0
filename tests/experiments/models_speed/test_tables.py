from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pytest

from experiments.models_speed.figures import draw_cost, figures
from experiments.models_speed.tables import memory_table, tables, times_table


def _record(workload: str, ratio: float, **fields: Any) -> dict[str, Any]:
    return {
        "workload": workload,
        "length": 2048,
        "threads": 2,
        "ratio": ratio,
        "tokens_per_second": 1000.0 / ratio,
        "baseline_tokens_per_second": 1000.0,
        "bound": None,
        "target": None,
        **fields,
    }


@pytest.fixture
def result() -> dict[str, Any]:
    return {
        "command": "python -m experiments.models_speed run",
        "versions": {"torch": "2.0", "transformers": "5.0"},
        "machine": {"processor": "Abacus", "processors": 2, "vector_extension": "AVX2"},
        "model": {"name": "Small", "dtype": "float32", "attention": "sdpa"},
        "records": [
            _record("decode", 1.25, bound="at least", target=0.95, tokens_per_second=12.34),
            _record("diagnose", 1.56, bound="at most", target=1.3, length=4096),
            _record("weights", 0.5),
            _record("prefill", 1.0, bound="at least", target=0.9),
        ],
        "memory": [
            {"model": "model", "method": "diagnose", "length": 2048, "mebibytes": 100.0},
            {"model": "small model", "method": "diagnose", "length": 8192, "mebibytes": 80.0},
            {"model": "small model", "method": "diagnose", "length": 16384, "mebibytes": 168.0},
        ],
    }


def test_times(result: dict[str, Any]) -> None:
    rows = [list(row) for row in times_table(result).rows]
    assert rows == [
        ["diagnose: time relative to a plain pass", "4,096", "2", "1.56", "≤ 1.3", "641", "1,000",
         "missed by 20.0%"],
        ["diagnose: time relative to output_attentions", "2,048", "2", "0.50", "", "2,000",
         "1,000", ""],
        ["sharpened prefill: speed relative to stock", "2,048", "2", "1.00", "≥ 0.9", "1,000",
         "1,000", "met"],
        ["sharpened decoding: speed relative to stock", "2,048", "2", "0.80", "≥ 0.95", "12.3",
         "1,000", "missed by 15.8%"],
    ]  # fmt: skip
    assert "Small, float32, sdpa; Abacus" in times_table(result).caption


def test_memory(result: dict[str, Any]) -> None:
    table = memory_table(result)
    assert list(table.rows[1]) == ["diagnose", "small model", "8,192", "80", "10.0"]
    assert "at 16,384 tokens, relative to 8,192: 1.05 (target: at most 1.1, met)" in table.caption
    superlinear = [*result["memory"][:2], {**result["memory"][2], "mebibytes": 320.0}]
    assert (
        "2.00 (target: at most 1.1, missed by 81.8%)"
        in memory_table(result | {"memory": superlinear}).caption
    )
    assert memory_table(result | {"memory": result["memory"][:2]}).caption == ""


def test_documents_get_both_tables(result: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "benchmark.json").write_text(json.dumps(result), encoding="utf-8")
    assert list(tables(tmp_path)) == ["models-times", "models-memory"]
    (drawn,) = figures(tmp_path)
    assert drawn.read_bytes().startswith(b"\x89PNG")


def test_the_figure_shows_ratios_with_their_targets(
    result: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Text as text, so that it can be read in the file.
    monkeypatch.setitem(mpl.rcParams, "svg.fonttype", "none")
    svg = draw_cost(result, tmp_path / "cost.svg").read_text(encoding="utf-8")
    for said in ("plain pass", "1.56", "(target ≤ 1.3)", "(target ≥ 0.95)", "100 MiB", "Abacus"):
        assert said in svg
    without = draw_cost(result | {"memory": []}, tmp_path / "times.svg")
    assert "MiB" not in without.read_text(encoding="utf-8")
