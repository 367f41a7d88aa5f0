from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from diagnoses import MIXED, SLOPES, make_diagnosis
from pages import Reader, assert_nothing_is_fetched, read
from sharpmax.report.diagnosis import text
from sharpmax.report.diagnosis.page import write_diagnosis_page


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Reader]:
    path = write_diagnosis_page(tmp_path_factory.mktemp("page") / "new" / "report.html", MIXED)
    return path.read_text(encoding="utf-8"), read(path)


def test_it_opens_with_the_conclusion(page: tuple[str, Reader]) -> None:
    lead = re.search(r'<p class="lead">(.*?)</p>', page[0])
    assert lead is not None
    assert lead[1].startswith("2 of 12 heads disperse as inputs grow from 64 to 1,024 tokens:")
    assert "Of the others, 2 spread slowly, 1 stays sharp, " in lead[1]
    ends = [math.exp(1.0 + slope * math.log(16)) for slope in (0.0, SLOPES["dispersing"] or 0.0)]
    assert f"attended tokens goes from {ends[0]:.0f} at 64 tokens" in lead[1]
    assert f"to {ends[1]:.0f} at 1,024" in lead[1]


def test_structure(page: tuple[str, Reader]) -> None:
    html, reader = page
    assert len(reader.all("h1")) == 1
    assert "Abacus &lt;small&gt;" in html
    assert re.findall(r"<h2>(.*?)</h2>", html) == [
        "All heads",
        "Entropy and length",
        "Heads that disperse most",
        "Sliding-window heads",
        "Theoretical bound",
        "Next steps",
        "Settings and environment",
    ]
    assert_nothing_is_fetched(html, reader)
    images = reader.all("img")
    assert len(images) == 3
    assert all(len(image["alt"] or "") > 40 for image in images)


def test_it_reports_what_was_measured_and_skipped(page: tuple[str, Reader]) -> None:
    said = page[1].text
    assert f"{MIXED.rows_measured} measured, {MIXED.rows_skipped} skipped without a visible" in said
    assert "60 skipped as not finite" in said
    assert "weights in bfloat16" in said
    assert "sdpa" in said
    assert "2 per length: text of a book" in said
    assert "torch 2.0" in said
    assert "4 heads in layer 1 see at most 128 tokens" in said
    assert "interrupted" not in said


def test_the_lemma(page: tuple[str, Reader]) -> None:
    said = page[1].text
    first = math.ceil(100 * math.exp(2.0))
    assert "per head ranges from 2.0 to 18.0" in said
    assert (
        "3 heads reach the critical length within the longest input measured (1,024 tokens)" in said
    )
    assert f"critical length is {first} tokens, in layer 0, head 0" in said


def test_next_steps_sharpen_the_worst_heads(page: tuple[str, Reader]) -> None:
    assert "sharpmax.sharpen(model, policies, heads={0: [0, 1, 2], 2: [3]})" in page[1].text
    assert "policies = {0: Exponential(1.01), 2: Exponential(1.03)}" in page[1].text


def test_next_steps_can_be_typed(page: tuple[str, Reader]) -> None:
    for command in ("calibrate", "evaluate"):
        assert f"sharpmax {command} 'somewhere/Abacus <small>' --text" in page[1].text


def test_no_head_disperses(tmp_path: Path) -> None:
    calm = make_diagnosis([["flat", "growing"]])
    reader = read(write_diagnosis_page(tmp_path / "calm.html", calm))
    assert "No head disperses as inputs grow" in reader.text
    assert "Heads whose entropy grows most" in reader.text
    one = make_diagnosis([["dispersing"]])
    assert "1 of 1 head disperses" in text.conclusion(one)


def test_only_windows_and_nothing_measured(tmp_path: Path) -> None:
    reader = read(write_diagnosis_page(tmp_path / "local.html", make_diagnosis([["local"]])))
    assert "Theoretical bound" not in reader.text
    assert "Heads that" not in reader.text
    reader = read(write_diagnosis_page(tmp_path / "none.html", make_diagnosis([[None]])))
    assert "Of the 1 head, 1 could not be measured" in reader.text


def test_unusual_settings_are_reported() -> None:
    facts = text.facts(
        make_diagnosis(
            [["flat"]],
            unit="elements",
            tokens=(400.0, 1500.0, 6000.0),
            sink=True,
            interrupted=True,
            unmeasured={"layers.7": "it is closed"},
            notes=("llama: yarn scales the logits",),
            source="",
        )
    )
    assert facts["Lengths"] == "64, 256, 1,024 elements (400, 1,500, 6,000 tokens)"
    assert facts["Inputs"] == "2 per length; interrupted before all inputs were measured"
    assert facts["Not measured"] == "layers.7: it is closed"
    assert facts["Temperature of the model itself"] == "llama: yarn scales the logits"
    assert "excluded" in facts["Sinks"]


def test_large_models_have_png_pictures(tmp_path: Path) -> None:
    path = write_diagnosis_page(tmp_path / "large.html", make_diagnosis([["growing"] * 64] * 7))
    reader = read(path)
    assert all((image["src"] or "").startswith("data:image/png") for image in reader.all("img"))
    assert "All 448 heads with full attention" in reader.text
    assert len(reader.all("tr")) < 500


def test_the_same_diagnosis_gives_the_same_page(tmp_path: Path) -> None:
    pages = [write_diagnosis_page(tmp_path / f"{i}.html", MIXED).read_bytes() for i in range(2)]
    assert pages[0] == pages[1]
