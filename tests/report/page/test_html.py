from __future__ import annotations

from pathlib import Path

from pages import assert_nothing_is_fetched, read
from sharpmax.report._page import html
from sharpmax.report._page.tables import Table


def test_a_page_is_whole(tmp_path: Path) -> None:
    path = html.write_html(tmp_path / "deep" / "page.html", "Less < more", ["<h1>One</h1>\n"])
    reader = read(path)
    page = path.read_text(encoding="utf-8")
    assert page.startswith("<!DOCTYPE html>")
    assert "<title>Less &lt; more</title>" in page
    assert reader.all("html") == [{"lang": "en"}]
    assert_nothing_is_fetched(page, reader)


def test_what_comes_from_outside_is_escaped() -> None:
    for part in (
        html.opening("a < b", "a < b", "a < b"),
        html.section("a < b", "<p>c</p>"),
        html.folded("a < b", "<p>c</p>"),
        html.code("a < b"),
        html.entries({"a < b": "a < b"}),
        html.inline("a < b"),
        html.figure_html({"name": "data:"}, "name", "a < b", "a < b"),
        html.table_html(Table(["a < b"], [["a < b"]])),
    ):
        assert "a &lt; b" in part
        assert "a < b" not in part


def test_sections_and_figures_without_content_are_left_out() -> None:
    assert html.section("Nothing", "", "") == ""
    assert html.figure_html({}, "name", "alt", "caption") == ""


def test_pictures_are_inside() -> None:
    assert html.data_uri(b"\x89PNG", ".png") == "data:image/png;base64,iVBORw=="


def test_marks_of_tables() -> None:
    assert html.inline("**best** of `all`") == "<strong>best</strong> of <code>all</code>"
    table = html.table_html(Table(["name", "n"], [["a", "1"]], caption="`c`"))
    assert '<td class="word">a</td><td>1</td>' in table
    assert "<code>c</code>" in table
