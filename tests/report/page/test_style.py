from __future__ import annotations

import pytest

from sharpmax.report._page.style import Series, darkened, new_figure, render, write_title


def test_darkened() -> None:
    assert darkened("#ffffff", 0.0) == "#ffffff"
    assert darkened("#ffffff", 1.0) == "#000000"


def test_a_series_makes_its_legend_entry() -> None:
    series = Series("mine", "#0072B2", "s", (0, (5, 1.8)))
    entry = series.handle("mine (3)", marker=series.marker, linestyle="")
    assert (entry.get_label(), entry.get_marker(), entry.get_linestyle()) == (
        "mine (3)", "s", "None",
    )  # fmt: skip
    assert series.handle().get_label() == "mine"


def test_titles_keep_their_distance_from_the_top() -> None:
    for height in (3.0, 6.0):
        with new_figure(height) as figure:
            write_title(figure, "Title", "Subtitle")
        distances = [height * (1 - text.get_position()[1]) for text in figure.texts]
        assert distances == pytest.approx([0.26, 0.54])


def test_files_have_neither_date_nor_version() -> None:
    with new_figure(1.0) as figure:
        figure.text(0.5, 0.5, "Text")
    for suffix in (".png", ".svg", ".pdf"):
        content = render(figure, suffix)
        assert content == render(figure, suffix)
        assert b"matplotlib v" not in content.lower()
        assert b"Date" not in content
