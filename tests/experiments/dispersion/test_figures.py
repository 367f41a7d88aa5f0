from __future__ import annotations

import sys
from pathlib import Path

import pytest

from experiments.dispersion.figures import draw_dispersion
from experiments.dispersion.measure import Dispersion, measure_dispersion
from sharpmax import policies


@pytest.fixture(scope="module")
def measured() -> Dispersion:
    return measure_dispersion(sizes=(16, 64, 256, 1024), rows=1)


def test_formats_and_folders(measured: Dispersion, tmp_path: Path) -> None:
    png = draw_dispersion(measured, tmp_path / "deep" / "figure.png")
    assert png.read_bytes().startswith(b"\x89PNG")
    svg = draw_dispersion(measured, str(tmp_path / "figure.svg")).read_text(encoding="utf-8")
    assert svg.count("<path") > 10


def test_every_curve_is_named_in_the_figure(
    measured: Dispersion, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Text as text, so that it can be read in the file.
    monkeypatch.setitem(sys.modules["matplotlib"].rcParams, "svg.fonttype", "none")
    svg = draw_dispersion(measured, tmp_path / "figure.svg").read_text(encoding="utf-8")
    for curve in measured.curves:
        assert curve.name in svg
    assert "number of items n" in svg
    assert "seed 0" in svg


def test_a_policy_of_ones_own_and_a_spread_beyond_the_sizes(tmp_path: Path) -> None:
    # exp(20) is beyond the largest size: the upper bound is above one everywhere.
    mine = {"mine": policies.Constant(3.3333333333333335)}
    measured = measure_dispersion(20.0, sizes=(16, 64), rows=1, compared=mine)
    assert draw_dispersion(measured, tmp_path / "figure.png").exists()
