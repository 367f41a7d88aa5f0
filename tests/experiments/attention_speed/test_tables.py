from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from experiments.attention_speed.figures import draw_ratios
from experiments.attention_speed.tables import (
    comparison_table,
    details_tables,
    headline_table,
    targets_table,
)
from sharpmax import MissingExtraError


def _record(work: str, ratio: float, **fields: Any) -> dict[str, Any]:
    return {
        "work": work,
        "implementation": "sharpmax cpu",
        "length": 4096,
        "width": 64,
        "heads": 2,
        "causal": False,
        "policy": "Paper",
        "threads": 1,
        "seconds": 0.002,
        "ratio": ratio,
        "bound": "at most",
        "target": 1.25,
        "aim": 1.0,
        **fields,
    }


@pytest.fixture
def result() -> dict[str, Any]:
    other = {"target": None, "aim": None}
    textbook = {"implementation": "textbook", **other}
    at_least = {"bound": "at least", "target": 8.0, "aim": None}
    return {
        "command": "sharpmax bench attention",
        "versions": {"torch": "2.0"},
        "machine": {"processor": "Abacus", "processors": 2, "vector_extension": "AVX2"},
        "settings": {"threads": [1, 2]},
        "records": [
            _record("curve", 0.9, length=131072, **other),
            _record("prefill", 0.5),
            _record("prefill", 1.5, length=16384),
            _record("prefill", 0.8, threads=2),
            _record("prefill", 0.9, policy="Exponential", causal=True, width=128),
            _record("sharp", 1.1, policy="Exponential", length=1000),
            _record("comparison", 0.9, **other),
            _record("comparison", 9.0, **textbook),
            _record("comparison", 10.0, **textbook | at_least),
            _record("comparison", 7.2, **textbook | at_least, threads=2),
        ],
        "growth": [
            {
                "threads": 2,
                "from_length": 8192,
                "to_length": 131072,
                "growth": 1.2,
                "target": 1.3,
                "reached": True,
            }
        ],
        "memory": [
            {"length": 16384, "threads": 1, "mebibytes_a_thread": 2.0, "target": 8.0},
            {"length": 16384, "threads": 1, "mebibytes_a_thread": 1.0, "target": None},
        ],
    }


def test_targets_and_verdicts(result: dict[str, Any]) -> None:
    rows = {row[0]: list(row[1:]) for row in targets_table(result).rows}
    assert rows == {
        "prefill, Paper": ["0.50 to 1.50", "0.80", "≤ 1.25", "≤ 1", "missed by 20.0%"],
        "prefill, Exponential": ["0.90", "", "≤ 1.25", "≤ 1", "aim reached"],
        "prefill, sharp rows, Exponential": ["1.10", "", "≤ 1.25", "≤ 1", "reached"],
        "textbook over sharpmax, 4k, full": ["10", "7.20", "≥ 8", "", "missed by 10.0%"],
        "ratio at 128k over that at 8k": ["", "1.20", "≤ 1.3", "", "reached"],
        "extra MiB a thread, 16k keys": ["2.0", "", "≤ 8", "", "reached"],
    }


def test_details_have_a_table_a_work_and_a_column_a_length(result: dict[str, Any]) -> None:
    prefill, sharp, curve = details_tables(result)
    assert list(prefill.header)[-2:] == ["4k", "16k"]
    assert list(prefill.rows[0]) == ["Paper", "full", "64", "1", "0.50", "1.50"]
    assert list(prefill.rows[1]) == ["Paper", "full", "64", "2", "0.80", ""]
    assert list(sharp.header)[-1] == "1,000"
    assert curve.title.startswith("256 queries"), "in the order of the table, not of the run"


def test_comparison_and_headlines(result: dict[str, Any]) -> None:
    ways = [row[0] for row in comparison_table(result).rows]
    assert ways == ["sharpmax cpu", "textbook"]
    first, *_, last = headline_table(result).rows
    assert list(first) == ["sharpmax: prefill", "4k … 16k", "0.50 to 1.50", "0.80"]
    assert list(last) == ["textbook, full", "4k", "9.00", ""]
    assert "Abacus" in headline_table(result).caption


def test_every_row_has_all_columns(result: dict[str, Any]) -> None:
    tables = [table(result) for table in (targets_table, comparison_table, headline_table)]
    for table in [*tables, *details_tables(result)]:
        assert {len(row) for row in table.rows} == {len(table.header)}


def test_the_figure(result: dict[str, Any], tmp_path: Path) -> None:
    png = draw_ratios(result, tmp_path / "deep" / "ratio.png")
    assert png.read_bytes().startswith(b"\x89PNG")
    assert draw_ratios(result, tmp_path / "again.png").read_bytes() == png.read_bytes()


def test_the_figure_names_what_it_shows(
    result: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Text as text, so that it can be read in the file.
    monkeypatch.setitem(sys.modules["matplotlib"].rcParams, "svg.fonttype", "none")
    svg = draw_ratios(result, tmp_path / "ratio.svg").read_text(encoding="utf-8")
    for said in ("Paper", "Exponential", "1 thread", "2 threads", "128k", "Abacus", "to reach"):
        assert said in svg


def test_nothing_to_draw(result: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^result: expected records of one of prefill"):
        draw_ratios(result | {"records": []}, tmp_path / "ratio.png")


def test_without_matplotlib(
    result: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r"sharpmax\[report\]"):
        draw_ratios(result, tmp_path / "ratio.png")
