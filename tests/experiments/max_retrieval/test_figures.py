from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.image import imread

from experiments.common.cells import percent
from experiments.common.labels import spread_between
from experiments.common.methods import look
from experiments.max_retrieval.accuracy_figure import draw_accuracy
from experiments.max_retrieval.attention_maps import draw_attention
from experiments.max_retrieval.figures import draw_all
from experiments.max_retrieval.records import Table
from experiments.max_retrieval.temperature_figures import draw_entropy_plane, draw_fit
from sharpmax._files import read_sealed, write_sealed


@pytest.fixture
def text_as_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Text as text, so that it can be read in the file."""
    monkeypatch.setitem(sys.modules["matplotlib"].rcParams, "svg.fonttype", "none")


def _words(path: Path) -> str:
    """All text of an SVG file."""
    root = ET.parse(path).getroot()
    texts = (element for element in root.iter() if element.tag.endswith("}text"))
    return " | ".join("".join(element.itertext()) for element in texts)


def _colors(path: Path) -> int:
    """How many colours there are in a picture; a blank one has one."""
    channels = (imread(path)[..., :3] * 255).round().astype(np.int64)
    return len(np.unique(channels @ np.array([65536, 256, 1])))


@given(st.lists(st.floats(0.0, 100.0), min_size=1, max_size=20))
def test_labels_stay_inside_and_apart(ends: list[float]) -> None:
    places = np.array(spread_between(ends, distance=6.0, low=1.0, high=101.0))
    assert places.min() >= 1.0 - 1e-6
    assert places.max() <= 101.0 + 1e-6
    distance = min(6.0, 100.0 / max(1, len(ends) - 1))
    assert (np.diff(np.sort(places)) >= distance - 1e-6).all()


@pytest.mark.usefixtures("text_as_text")
@pytest.mark.parametrize("group", ["inference", "trained", "training", "beyond"])
def test_lines_are_named_with_their_last_accuracy(table: Table, tmp_path: Path, group: Any) -> None:
    words = _words(draw_accuracy(table, tmp_path / "accuracy.svg", group, "last"))
    for record in table.select(group=group, weights="last", n=4096):
        # Of what goes beyond, the figure has the methods that matter, and the table the rest.
        drawn = (group, record.method) != ("beyond", "hard")
        assert (f"{look(record.method).label}  {percent(record.mean)}" in words) == drawn
    assert "4,096" in words
    assert "chance" in words
    assert "Last iterate; 3 seeds" in words


@pytest.mark.usefixtures("text_as_text")
def test_a_line_that_ends_early_says_where(table: Table, tmp_path: Path) -> None:
    records = tuple(r for r in table.records if r.method != "ssmax" or r.n < 4096)
    path = draw_accuracy(replace(table, records=records), tmp_path / "accuracy.svg", "trained")
    assert re.search(r"SSMax  [\d.]+ at 1,024", _words(path))


def test_one_seed_and_one_size(small_table: Table, tmp_path: Path) -> None:
    one = replace(small_table, records=small_table.records[:1])
    assert _colors(draw_accuracy(one, tmp_path / "accuracy.png")) > 10
    with pytest.raises(LookupError, match="'trained'"):
        draw_accuracy(small_table, tmp_path / "none.svg", "trained")
    with pytest.raises(LookupError, match="'averaged'"):
        draw_accuracy(small_table, tmp_path / "none.svg", weights="averaged")


def test_the_same_results_give_the_same_file(table: Table, tmp_path: Path) -> None:
    first, second = (draw_accuracy(table, tmp_path / f"{name}.svg") for name in "ab")
    assert first.read_bytes() == second.read_bytes()
    assert b"<dc:date>" not in first.read_bytes()


@pytest.mark.usefixtures("text_as_text")
def test_attention_maps_show_the_weight_of_the_first_item(
    figures: dict[str, Any], tmp_path: Path
) -> None:
    words = _words(draw_attention(figures, tmp_path / "compared.svg"))
    attention = figures["attention"]
    for name, weights in zip(attention["methods"], attention["weights"], strict=True):
        assert look(name).label in words
        for of_size in weights:
            assert f"first item {np.mean(of_size, axis=0)[0]:.3f}" in words
    assert "n = 1,024" in words
    alone = _words(draw_attention(figures, tmp_path / "alone.svg", ["softmax"], [16, 4096]))
    assert "n = 4,096" in alone
    assert "n = 128" not in alone
    assert "paper" not in alone


def test_attention_maps_are_drawn_on_one_scale(figures: dict[str, Any], tmp_path: Path) -> None:
    path = draw_attention(figures, tmp_path / "softmax.png", ["softmax"], [16, 4096])
    picture = imread(path)[..., :3]
    # Cividis runs from blue to yellow: bright weights at the left, none at the right.
    left, right = picture[:, : picture.shape[1] // 2], picture[:, picture.shape[1] // 2 : -220]
    yellow = [((half[..., 0] > 0.8) & (half[..., 2] < 0.5)).mean() for half in (left, right)]
    assert yellow[0] > 0.005
    assert yellow[1] == 0.0


def test_attention_that_is_not_there(figures: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(LookupError, match="expected one of softmax, paper, exponential, got hard"):
        draw_attention(figures, tmp_path / "none.png", ["hard"])
    with pytest.raises(LookupError, match="got 17"):
        draw_attention(figures, tmp_path / "none.png", ["softmax"], [17])


@pytest.mark.usefixtures("text_as_text")
def test_the_fit_says_where_the_polynomial_ends(figures: dict[str, Any], tmp_path: Path) -> None:
    path = draw_fit(figures, tmp_path / "fit.svg")
    words = _words(path)
    assert "above 5.945 nats" in words
    assert f"exponential law, exp(H - {figures['fit']['reference']:.2f})" in words
    assert "polynomial fitted here" in words
    # A mark for every point.
    assert path.read_text(encoding="utf-8").count("<use ") >= len(figures["fit"]["entropy"])


def test_a_polynomial_that_never_ends(figures: dict[str, Any], tmp_path: Path) -> None:
    rising = {"fit": {**figures["fit"], "published": [1.0, 1.0]}}
    flat = {
        "fit": {
            **figures["fit"],
            "published": [-1.0, 0.0, 0.5],
            "n": [16] * len(rising["fit"]["n"]),
        }
    }
    assert _colors(draw_fit(rising, tmp_path / "rising.png")) > 100
    assert _colors(draw_fit(flat, tmp_path / "flat.png")) > 100


@pytest.mark.usefixtures("text_as_text")
def test_the_plane_is_labelled(tmp_path: Path) -> None:
    words = _words(draw_entropy_plane(tmp_path / "plane.svg"))
    for word in ("base λ", "temperature θ", "2.25", "0.01", "nats"):
        assert word in words


def test_all_figures(table: Table, figures: dict[str, Any], tmp_path: Path) -> None:
    sealed = write_sealed(tmp_path / "figures.json", "max-retrieval figures, format 1", figures)
    data = read_sealed(sealed, "max-retrieval figures, format 1")
    paths = draw_all(table, data, tmp_path / "all")
    assert [path.name for path in paths] == [
        "accuracy-inference.svg",
        "accuracy-trained.svg",
        "accuracy-beyond.svg",
        "attention-softmax.png",
        "attention-compared.png",
        "fit.svg",
        "entropy-plane.png",
    ]
    for path in paths:
        assert path.parent == tmp_path / "all"
        if path.suffix == ".png":
            assert _colors(path) > 50
        else:
            assert path.read_text(encoding="utf-8").count("<path") > 30


def test_what_the_data_lack_is_left_out(small_table: Table, tmp_path: Path) -> None:
    paths = draw_all(small_table, None, tmp_path)
    assert [path.name for path in paths] == ["accuracy-inference.svg", "entropy-plane.png"]
