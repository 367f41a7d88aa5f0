from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
import pytest

from experiments.attention_speed.figures import HEADLINES, draw_comparison, draw_ratios
from experiments.attention_speed.tables import (
    comparison_table,
    details_tables,
    few_table,
    headline_table,
    precision_table,
    targets_table,
)


def _record(workload: str, ratio: float, **fields: Any) -> dict[str, Any]:
    return {
        "workload": workload,
        "implementation": "sharpmax cpu",
        "length": 4096,
        "width": 64,
        "heads": 2,
        "causal": False,
        "policy": "Paper",
        "threads": 1,
        "seconds": 0.002,
        "ratio": ratio,
        "target": 1.25,
        "stretch_target": 1.0,
        **fields,
    }


@pytest.fixture
def result() -> dict[str, Any]:
    other = {"target": None, "stretch_target": None}
    textbook = {"implementation": "textbook", **other}
    return {
        "command": "python -m experiments.attention_speed run",
        "versions": {"torch": "2.0"},
        "machine": {"processor": "Abacus", "processors": 2, "vector_extension": "AVX2"},
        "settings": {"threads": [1, 2]},
        "records": [
            _record("curve", 0.9, length=131072, threads=2, **other),
            _record("curve", 0.75, length=8192, threads=2, **other),
            _record("prefill", 0.5),
            _record("prefill", 1.5, length=16384),
            _record("prefill", 0.8, threads=2),
            _record("prefill", 0.9, policy="Exponential", causal=True, width=128),
            _record("sharp", 1.1, policy="Exponential", length=1000),
            _record("comparison", 0.9, **other),
            _record("comparison", 0.9, threads=2, **other),
            _record("comparison", 9.0, seconds=0.02, **textbook),
            _record("comparison", 9.0, seconds=0.0144, threads=2, **textbook),
        ],
        "memory": [
            {"length": 16384, "threads": 1, "mebibytes_per_thread": 2.0, "target": 8.0},
            {"length": 16384, "threads": 1, "mebibytes_per_thread": 1.0, "target": None},
        ],
    }


def test_targets_and_verdicts(result: dict[str, Any]) -> None:
    rows = {row[0]: list(row[1:]) for row in targets_table(result).rows}
    assert rows == {
        "prefill, Paper": ["0.50 to 1.50", "0.80", "≤ 1.25", "≤ 1", "missed by 20.0%"],
        "prefill, Exponential": ["0.90", "", "≤ 1.25", "≤ 1", "stretch target met"],
        "prefill, sharp rows, Exponential": ["1.10", "", "≤ 1", "≤ 0.7", "missed by 10.0%"],
        "textbook relative to sharpmax, 4k, full": ["10.0", "7.20", "≥ 8", "", "missed by 10.0%"],
        "ratio at 128k keys relative to 8k": ["", "1.20", "≤ 1.3", "", "met"],
        "extra MiB per thread, 16k keys": ["2.00", "", "≤ 8", "", "met"],
    }


def test_details_have_one_table_per_workload_and_one_column_per_length(
    result: dict[str, Any],
) -> None:
    prefill, sharp, curve = details_tables(result)
    assert list(prefill.header)[-2:] == ["4k", "16k"]
    assert list(prefill.rows[0]) == ["Paper", "full", "64", "1", "0.50", "1.50"]
    assert list(prefill.rows[1]) == ["Paper", "full", "64", "2", "0.80", ""]
    assert list(sharp.header)[-1] == "1,000"
    assert curve.title.startswith("256 queries"), "in the order of the table, not of the run"


def test_comparison_and_headlines(result: dict[str, Any]) -> None:
    implementations = [row[0] for row in comparison_table(result).rows]
    assert implementations == ["sharpmax cpu", "textbook"]
    first, *_, last = headline_table(result).rows
    assert list(first) == ["sharpmax: prefill", "4k to 16k", "0.50 to 1.50", "0.80"]
    assert list(last) == ["textbook, full", "4k", "9.00", "9.00"]
    assert "Abacus" in headline_table(result).caption


def test_dtypes_are_compared_with_pytorch_and_with_single_precision(
    result: dict[str, Any],
) -> None:
    shape = {"queries": 1, "heads": 32}
    result["records"] += [
        _record("precision", 0.5, dtype="float32", seconds=0.004, **shape),
        _record("precision", 0.8, dtype="bfloat16", seconds=0.001, **shape),
        _record("precision", 0.5, dtype="float32", seconds=0.002, threads=2, **shape),
        _record("precision", 0.7, dtype="bfloat16", seconds=0.001, threads=2, **shape),
    ]
    single, half = map(list, precision_table(result).rows)
    assert single == ["decode, one query", "4k", "64", "float32", "0.50", "0.50", "1.00", "1.00"]
    assert half == ["decode, one query", "4k", "64", "bfloat16", "0.80", "0.70", "0.25", "0.50"]
    assert not any("float32, bfloat16" in row[0] for row in headline_table(result).rows)


def test_few_rows_are_judged_by_what_a_second_thread_gains(result: dict[str, Any]) -> None:
    result["records"] += [
        _record("few", 0.5, queries=9, seconds=0.002),
        _record("few", 0.4, queries=9, seconds=0.0011, threads=2),
        _record("few", 0.5, queries=24, seconds=0.002),
        _record("few", 0.9, queries=24, seconds=0.0018, threads=2),
    ]
    good, bad = map(list, few_table(result).rows)
    assert good == ["9", "4k", "0.50", "0.40", "0.55", "≤ 0.67", "met"]
    assert bad == ["24", "4k", "0.50", "0.90", "0.90", "≤ 0.67", "missed by 34.3%"]


def test_every_row_has_all_columns(result: dict[str, Any]) -> None:
    tables = [table(result) for table in (targets_table, comparison_table, headline_table)]
    for table in [*tables, *details_tables(result)]:
        assert {len(row) for row in table.rows} == {len(table.header)}


def test_figures_are_reproducible(result: dict[str, Any], tmp_path: Path) -> None:
    for draw in (draw_ratios, draw_comparison):
        png = draw(result, tmp_path / "deep" / "one.png")
        again = draw(result, tmp_path / "again.png")
        assert png is not None
        assert again is not None
        assert png.read_bytes().startswith(b"\x89PNG")
        assert again.read_bytes() == png.read_bytes()


def test_figures_name_what_they_show(
    result: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Text as text, so that it can be read in the file.
    monkeypatch.setitem(mpl.rcParams, "svg.fonttype", "none")
    drawn = draw_ratios(result, tmp_path / "ratio.svg")
    assert drawn is not None
    svg = drawn.read_text(encoding="utf-8")
    for said in ("Paper", "Exponential", "1 thread", "2 threads", "128k", "Abacus", "target"):
        assert said in svg
    drawn = draw_comparison(result, tmp_path / "comparison.svg")
    assert drawn is not None
    assert "textbook, full, 1 thread" in drawn.read_text(encoding="utf-8")


def test_only_the_asked_workloads_are_drawn(
    result: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(mpl.rcParams, "svg.fonttype", "none")
    decode = _record("decode", 0.3)
    result = result | {"records": [*result["records"], decode]}
    for workloads, shown in ((HEADLINES, False), ((*HEADLINES, "decode"), True)):
        drawn = draw_ratios(result, tmp_path / "ratio.svg", workloads)
        assert drawn is not None
        assert ("decode, one query" in drawn.read_text(encoding="utf-8")) == shown


def test_nothing_to_draw(result: dict[str, Any], tmp_path: Path) -> None:
    assert draw_ratios(result | {"records": []}, tmp_path / "ratio.png") is None
    assert draw_comparison(result | {"records": []}, tmp_path / "comparison.png") is None
    assert not list(tmp_path.iterdir())
