from __future__ import annotations

import numpy as np

from diagnoses import MIXED, make_diagnosis
from sharpmax.report._page import style
from sharpmax.report.diagnosis.slopes import draw_slopes


def test_one_cell_per_head() -> None:
    axes, _ = draw_slopes(MIXED).axes
    known, slopes = (image.get_array() for image in axes.images)
    assert slopes.shape == known.shape == (4, 3)
    assert np.ma.filled(slopes, np.nan)[:2, 0].tolist() == [0.9, 0.9]
    assert slopes[0, 2] == 0.02
    # Heads with a window and unknown heads have no colour.
    assert np.ma.getmaskarray(slopes)[:, 1].all()
    assert np.ma.getmaskarray(slopes)[3, 0]
    assert not np.ma.getmaskarray(known).any()


def test_marks() -> None:
    axes, bar = draw_slopes(MIXED).axes
    assert [line.get_xydata().tolist() for line in axes.lines] == [[[2.0, 1.0]], [[2.0, 2.0]]]
    frames = [patch for patch in axes.patches if patch.get_width() < 1]
    assert [patch.get_xy() for patch in frames] == [(-0.44, -0.44), (-0.44, 0.56)]
    assert matches(frames[0].get_edgecolor(), style.VERMILION)
    assert "uniform" in " ".join(label.get_text() for label in bar.get_yticklabels())


def matches(color: tuple[float, ...], name: str) -> bool:
    return "#" + "".join(f"{round(255 * part):02X}" for part in color[:3]) == name


def test_layers_with_fewer_heads_leave_cells_empty() -> None:
    axes, _ = draw_slopes(make_diagnosis([["flat"], ["flat", "growing"]])).axes
    empty = np.ma.getmaskarray(axes.images[0].get_array())
    assert empty.tolist() == [[False, False], [True, False]]


def test_titles_say_what_is_there() -> None:
    said = " ".join(text.get_text() for text in draw_slopes(MIXED).texts)
    assert "2 of 12 heads disperse" in said
    assert "grey" in said
    said = " ".join(text.get_text() for text in draw_slopes(make_diagnosis([["flat"]])).texts)
    assert "0 of 1 heads disperse" in said
    assert "frame" not in said
    assert "dot" not in said


def test_very_many_heads() -> None:
    figure = draw_slopes(make_diagnosis([["growing"] * 128] * 100))
    assert figure.get_size_inches()[1] < 12
    assert len(figure.axes[0].get_xticks()) <= 32
