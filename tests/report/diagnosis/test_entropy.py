from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from matplotlib.text import Text

from diagnoses import LENGTHS, MIXED, make_diagnosis
from sharpmax.report.diagnosis.entropy import draw_entropy
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
