from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from matplotlib.text import Text

from diagnoses import LENGTHS, MIXED, make_diagnosis
from sharpmax.report._page import style
from sharpmax.report.diagnosis import draw_critical_lengths, draw_entropy, draw_slopes
from sharpmax.report.diagnosis.verdicts import VERDICTS


def shown(figure: Any) -> list[Any]:
    return [axes for axes in figure.axes if axes.get_visible()]


def texts(figure: Any) -> str:
    return " ".join(text.get_text() for text in figure.findobj(Text))


def test_one_panel_per_layer_and_one_curve_per_head() -> None:
    panels = shown(draw_entropy(MIXED))
    assert len(panels) == 3
    dashed, *curves = panels[0].lines
    assert np.allclose(dashed.get_ydata(), np.log(LENGTHS))
    assert len(curves) == 4
    by_color = {curve.get_color(): curve for curve in curves}
    growing = by_color[VERDICTS["growing"].color].get_ydata()
    head = MIXED.heads[2]
    entropies = [MIXED.record(head, length).entropy for length in LENGTHS]
    assert np.allclose(growing, [entropy.mean for entropy in entropies if entropy])
    # One deviation on either side is shaded.
    areas = [path for area in panels[0].collections for path in area.get_paths()]
    edges = np.concatenate([area.vertices for area in areas])
    first = entropies[0]
    assert first is not None
    for edge in (first.mean - first.deviation, first.mean + first.deviation):
        assert np.isclose(edges, (LENGTHS[0], edge)).all(axis=1).any()


def test_it_says_what_it_shows() -> None:
    said = texts(draw_entropy(MIXED))
    for part in ("Abacus", "dispersing (2)", "layer 1, sliding", "log n", "nats", "1k", "tokens"):
        assert part in said
    assert "local" not in texts(draw_entropy(MIXED, [0]))
    sized = make_diagnosis([["flat"]], unit="elements", tokens=(400.0, 1500.0, 6000.0))
    assert "elements (400 to 6,000 tokens)" in texts(draw_entropy(sized))


def test_many_layers_are_thinned() -> None:
    deep = make_diagnosis([["flat"]] * 130)
    figure = draw_entropy(deep)
    assert len(shown(figure)) == 48
    assert "48 of 130 layers" in texts(figure)
    assert "layer 0" in texts(figure)
    assert "layer 129" in texts(figure)
    assert len(shown(draw_entropy(deep, range(7)))) == 7


def test_layers_that_are_not_there() -> None:
    with pytest.raises(ValueError, match="layers: expected some of 0, 1, 2, which were measured"):
        draw_entropy(MIXED, [0, 3])
    with pytest.raises(ValueError, match="layers: expected at least one, got none"):
        draw_entropy(MIXED, [])


def test_nothing_measured_is_nothing_drawn() -> None:
    (axes,) = shown(draw_entropy(make_diagnosis([[None]])))
    assert np.isnan(axes.lines[1].get_ydata()).all()


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


def test_titles_of_slopes() -> None:
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
