from __future__ import annotations

import pytest

from diagnoses import MIXED, make_diagnosis
from sharpmax.report.diagnosis.critical import draw_critical_lengths


def test_one_point_per_head_with_full_attention() -> None:
    (axes,) = draw_critical_lengths(MIXED).axes
    *points, line = axes.lines
    heights = [float(point.get_ydata()[0]) for point in points]
    expected = [
        MIXED.record(head).critical_length
        for head in MIXED.heads
        if head.verdict not in ("local", None)
    ]
    assert heights == expected
    assert line.get_ydata()[0] == 1024
    low, high = axes.get_ylim()
    assert low < min(heights) < max(heights) <= high
    assert "longest input measured: 1,024 tokens" in [text.get_text() for text in axes.texts]


def test_beyond_all_inputs() -> None:
    (axes,) = draw_critical_lengths(make_diagnosis([["flat"]] * 6)).axes
    assert [line.get_ydata()[0] for line in axes.lines[4:6]] == [1e15, 1e15]
    assert axes.get_yticklabels()[-1].get_text() == "beyond"


@pytest.mark.parametrize("verdict", ["local", None])
def test_no_head_to_draw(verdict: None) -> None:
    (axes,) = draw_critical_lengths(make_diagnosis([[verdict]])).axes
    assert len(axes.lines) == 1
