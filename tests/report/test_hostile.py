"""Names and texts with HTML, Markdown or mathematics in them change no report."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from calibrations import CALIBRATIONS, make_evaluation
from diagnoses import make_diagnosis
from sharpmax.models._evaluation.cells import Cell
from sharpmax.report.calibration import tables
from sharpmax.report.calibration.page import write_calibration_report
from sharpmax.report.diagnosis.page import write_diagnosis_page

HOSTILE = [
    "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>&lt;b&gt;&#60;i>",
    (
        "**bold** `code` `` | a \\| b \\** <b> [/bold] [a](javascript:x) ${x} $\\frac{x$ $$ _{^\n\n"
        "# heading\n| row | row |\n<!-- end -->"
    ),
]
hostile = pytest.mark.parametrize("name", HOSTILE)


class Elements(HTMLParser):
    """The elements of a page, with the names of their attributes, in order."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.found: list[Any] = []
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = [(key, None if key in ("alt", "src") else value) for key, value in attrs]
        self.found.append((tag, values))

    def handle_endtag(self, tag: str) -> None:
        self.found.append(tag)

    def handle_comment(self, data: str) -> None:
        self.found.append(("comment", data))


def _diagnosis_page(path: Path, name: str) -> Path:
    texts = ("model_name", "model_type", "dtype", "implementation", "unit", "source")
    facts: dict[str, Any] = dict.fromkeys(texts, name)
    facts |= {"notes": (name,), "unmeasured": {name: name}, "versions": {name: name}}
    return write_diagnosis_page(path, make_diagnosis([["dispersing", "local"]], **facts))


@hostile
def test_a_diagnosis(name: str, tmp_path: Path) -> None:
    harmless = Elements(_diagnosis_page(tmp_path / "a.html", "name")).found
    assert Elements(_diagnosis_page(tmp_path / "b.html", name)).found == harmless


def _calibration_report(folder: Path, name: str) -> list[Path]:
    cells = [Cell("passkey", 1024, "usual"), Cell("text", 1024, "usual")]
    made = make_evaluation({"plain": 0.5, name: 0.9, "gain": 0.55}, cells, questions=40)
    made.command = f"sharpmax calibrate {name.splitlines()[0]}"
    made.settings = replace(made.settings, model=name, texts={name: 1}, dtype=name)
    made.versions, made.machine = {name: name}, {"processor": name}
    notes = CALIBRATIONS["constant"].notes
    settings = {**notes["settings"], "texts": {name: 1}, "test_texts": {name: 1}}
    own = replace(CALIBRATIONS["constant"], notes={**notes, "settings": settings})
    calibrations = {name: own, "gain": CALIBRATIONS["gain"]}
    verdict = made.verdict(calibrations)
    console = Console(width=200)
    with console.capture() as captured:
        console.print(tables.summary_table(made, calibrations, verdict).to_rich())
        console.print(tables.means_table(made).to_rich())
    assert name.split()[0] in captured.get()
    return write_calibration_report(folder, made, calibrations)


@hostile
def test_a_calibration(name: str, tmp_path: Path) -> None:
    harmless, plain, *_ = _calibration_report(tmp_path / "a", "name")
    page, markdown, *_ = _calibration_report(tmp_path / "b", name)
    expected = [each for each in Elements(harmless).found if each not in (("code", []), "code")]
    assert [e for e in Elements(page).found if e not in (("code", []), "code")] == expected
    lines, usual = (path.read_text("utf-8").splitlines() for path in (markdown, plain))
    assert len(lines) == len(usual)
    outside_code = re.sub(r"`[^`]*`", "", "\n".join(lines))
    assert not re.search(r"(?<!\\)[<*$]", outside_code.replace("**", ""))
