from __future__ import annotations

import re
from pathlib import Path

import pytest

from calibrations import CALIBRATIONS, SHARES, make_calibration, make_evaluation
from pages import Reader, assert_nothing_is_fetched, read
from sharpmax._settings import is_control
from sharpmax.models._evaluation.cells import Cell, cells_of
from sharpmax.report.calibration.arms import series_of
from sharpmax.report.calibration.figures import draw_accuracy, draw_trade
from sharpmax.report.calibration.page import write_calibration_report

EVALUATION = make_evaluation(rises={"paper in all heads": 1.3})


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Reader]:
    folder = tmp_path_factory.mktemp("page") / "new"
    path, *_ = write_calibration_report(folder, EVALUATION, CALIBRATIONS)
    return path.read_text(encoding="utf-8"), read(path)


def test_it_opens_with_the_verdict_and_what_was_fitted(page: tuple[str, Reader]) -> None:
    html, reader = page
    lead = re.search(r'<p class="lead">(.*?)</p>\n<p>(.*?)</p>', html)
    assert lead is not None
    assert lead[1].startswith("Sharpening helps. Changing the temperature of 4 heads")
    assert lead[2].startswith("The largest change in loss on ordinary test text")
    assert "Fitted on passkey and key-value at 512 and 1,024 tokens" in reader.text
    assert "within the tolerance of 0.02" in reader.text
    assert "constant is better than every control that needs no fit" in reader.text


def test_structure(page: tuple[str, Reader]) -> None:
    html, reader = page
    assert "Abacus &lt;small&gt;" in html
    assert re.findall(r"<h2>(.*?)</h2>", html) == [
        "Results for all arms",
        "Accuracy and prompt length",
        "Trade-off between answers and ordinary text",
        "Changed heads",
        "Method and assumptions",
        "Settings and environment",
        "Commands",
    ]
    assert_nothing_is_fetched(html, reader)
    images = reader.all("img")
    assert len(images) == 2
    assert all(len(image["alt"] or "") > 40 for image in images)


def test_it_names_heads_controls_and_counts(page: tuple[str, Reader]) -> None:
    said = page[1].text
    for arm in SHARES:
        assert arm in said
    assert "constant: 4 heads" in said
    assert "Control: one factor per head output; no temperature changes." in said
    assert "200 per cell in 25 contexts" in said
    assert "torch 2.0" in said
    assert "sharpmax calibrate abacus" in said


def test_all_files_are_written_and_the_same_each_time(tmp_path: Path) -> None:
    small = make_evaluation(cells=cells_of(["passkey", "text"], [1024]), questions=50)
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        written = write_calibration_report(tmp_path / folder, small, CALIBRATIONS)
        assert [path.name for path in written] == [
            "report.html", "table.md", "accuracy.png", "trade.png",
        ]  # fmt: skip
    for path in written:
        assert path.read_bytes() == (tmp_path / "one" / path.name).read_bytes()
    table = (tmp_path / "one" / "table.md").read_text(encoding="utf-8")
    assert table.startswith("Sharpening helps. ")
    assert table.count("\n## ") == 3


def test_no_calibration_helps_and_none_was_compared(tmp_path: Path) -> None:
    empty = {name: make_calibration(name, certain=None) for name in ("constant", "gain")}
    shares = {"plain": 0.5, "constant": 0.5, "gain": 0.5}
    reader = read(write_calibration_report(tmp_path, make_evaluation(shares), empty)[0])
    assert "No calibration significantly improved on the plain model" in reader.text
    assert "constant: no heads; no change passed the selection." in reader.text
    bare = make_evaluation({"plain": 0.5}, [Cell("passkey", 64)], questions=4, contexts=2)
    reader = read(write_calibration_report(tmp_path, bare, {})[0])
    assert len(reader.all("img")) == 1
    assert "No arms were compared" in reader.text


def test_one_panel_per_task_and_wording() -> None:
    figure = draw_accuracy(EVALUATION, CALIBRATIONS)
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == [
        "passkey", "key-value", "maximum, not fitted", "passkey, unseen wording",
        "key-value, unseen wording", "text",
    ]  # fmt: skip
    lines = [len(axes.containers) for axes in figure.axes]
    assert lines == [len(SHARES)] * 5 + [len(SHARES) - 1]
    legend = [label.get_text() for label in figure.legends[0].get_texts()]
    assert legend == list(SHARES)
    one = draw_accuracy(make_evaluation(cells=[Cell("text", 1024)]), {})
    assert len(one.axes) == 1
    with pytest.raises(LookupError, match="no results to draw"):
        draw_accuracy(make_evaluation(cells=[]), {})


def test_points_are_where_the_data_is() -> None:
    figure = draw_accuracy(make_evaluation(cells=cells_of(["maximum"], [1024, 4096])), {})
    (axes,) = figure.axes
    means = axes.containers[1].lines[0].get_ydata()
    assert means == pytest.approx([80.0, 72.5])


def test_the_curve_of_gain_against_rise() -> None:
    figure = draw_trade(CALIBRATIONS)
    (axes,) = figure.axes
    labels = [label.get_text() for label in axes.get_legend().get_texts()]
    assert labels == [
        "constant: 4 heads", "gain: 2 heads", "constant+gain: 3 heads",
    ]  # fmt: skip
    kept = make_calibration("constant", certain=None)
    legend = draw_trade({"constant": kept}).axes[0].get_legend().get_texts()
    assert legend[0].get_text() == "constant: none chosen"
    with pytest.raises(LookupError, match="no calibration has candidates"):
        draw_trade({})


def test_every_arm_has_its_own_series() -> None:
    names = ["plain", "mine", "yours", "uniform beta 1.1", "shuffled mine"]
    found = series_of(names)
    assert list(found) == names
    assert [each.label for each in found.values()] == names
    assert len({(each.color, each.marker) for each in found.values()}) == 5
    assert [is_control(name) for name in names] == [True, False, False, True, True]
    assert len({(each.color, each.line_style) for each in series_of(SHARES).values()}) == 7
