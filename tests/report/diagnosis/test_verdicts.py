from __future__ import annotations

from diagnoses import MIXED
from sharpmax.models._diagnosis.heads import VERDICTS as JUDGED
from sharpmax.report.diagnosis.verdicts import VERDICTS, counts, legend_handles


def test_every_verdict_has_its_own_colour_and_marker() -> None:
    assert tuple(VERDICTS) == (*JUDGED, None)
    assert len({series.color for series in VERDICTS.values()}) == len(VERDICTS)
    assert len({series.marker for series in VERDICTS.values()}) == len(VERDICTS)


def test_counts_and_legend() -> None:
    found = counts(MIXED.heads)
    assert found == {"dispersing": 2, "growing": 2, "flat": 1, "sink": 2, "local": 4, None: 1}
    assert list(found) == list(VERDICTS)
    labels = [handle.get_label() for handle in legend_handles(MIXED.heads[:4], points=False)]
    assert labels == ["dispersing (2)", "growing (1)", "unknown (1)"]
    assert legend_handles(MIXED.heads, points=True)[0].get_marker() == "o"
