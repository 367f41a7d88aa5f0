from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from experiments.common.cells import percent
from experiments.max_retrieval.page import write_page
from experiments.max_retrieval.records import Table
from pages import Reader, assert_nothing_is_fetched, read


@pytest.fixture(scope="module")
def page(
    table: Table, figures: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Reader]:
    path = write_page(tmp_path_factory.mktemp("page") / "new" / "report.html", table, figures)
    return path.read_text(encoding="utf-8"), read(path)


def test_it_opens_with_what_one_sees(page: tuple[str, Reader], table: Table) -> None:
    right = {
        method: percent(table.find(group="inference", weights="averaged", method=method, n=n).mean)
        for method, n in (("softmax", 4096), ("paper", 4096), ("exponential", 4096))
    }
    expected = (
        f"On 4,096 items it is {right['softmax']}% with plain softmax, {right['paper']}% with the "
        f"paper's rule and {right['exponential']}% with sharpmax's exponential law."
    )
    assert expected in page[1].text
    assert "trained on sets of at most 16 items" in page[1].text
    best = table.find(
        group="beyond", recipe="near-ties+cosine", weights="averaged", method="exponential", n=4096
    )
    differently = f"with near ties + cosine, reaches {percent(best.mean)}% on 4,096 items"
    assert differently in page[1].text
    assert "the last row was trained differently" in page[1].text


def test_structure(page: tuple[str, Reader]) -> None:
    html, reader = page
    assert html.startswith("<!DOCTYPE html>")
    assert reader.all("html") == [{"lang": "en"}]
    assert len(reader.all("title")) == len(reader.all("h1")) == len(reader.all("main")) == 1
    assert {"charset": "utf-8"} in reader.all("meta")
    assert "prefers-color-scheme: dark" in html
    headings = re.findall(r"<h2>(.*?)</h2>", html)
    assert headings == [
        "Accuracy against the number of items",
        "A head trained differently",
        "Where the weight goes",
        "The temperature that a row needs",
        "How it works",
        "Trained with the method",
        "Details of the training",
        "What to do next",
        "What ran",
    ]


def test_nothing_is_fetched(page: tuple[str, Reader]) -> None:
    assert_nothing_is_fetched(*page)


def test_pictures_have_a_text(page: tuple[str, Reader], figures: dict[str, Any]) -> None:
    images = page[1].all("img")
    assert len(images) == 7
    for image in images:
        assert len(image["alt"] or "") > 40
    weights = figures["attention"]["weights"][0]
    ends = [sum(row[0] for row in weights[end]) / 32 for end in (0, -1)]
    assert f"softmax from {ends[0]:.3f} to {ends[1]:.3f}" in (images[2]["alt"] or "")


def test_tables_hold_the_accuracies(page: tuple[str, Reader], table: Table) -> None:
    html, reader = page
    for record in table.records:
        if record.group != "training" and (record.group != "trained" or record.weights != "last"):
            assert f"{percent(record.mean)} ± " in reader.text
    assert "<strong>" in html
    assert "**" not in reader.text
    assert "12.4" in reader.text
    assert "97.1†" in reader.text


def test_how_what_next_and_what_ran(page: tuple[str, Reader]) -> None:
    html, reader = page
    assert "beta = exp(max(0, H - reference)); weights = softmax(beta * logits)" in reader.text
    assert "Exponential(reference=0.60)" in reader.text
    assert "python -m experiments.max_retrieval run" in reader.text
    assert "python -m experiments.max_retrieval figures" in reader.text
    assert "0, 1, 2" in reader.text
    assert "numpy 2.0" in reader.text
    # What comes from outside is escaped.
    assert "Abacus &lt;fast&gt;" in html


def test_a_demonstration_is_enough(small_table: Table, tmp_path: Path) -> None:
    path = write_page(tmp_path / "report.html", small_table, title="Five <minutes>")
    reader = read(path)
    assert "Five &lt;minutes&gt;" in path.read_text(encoding="utf-8")
    assert len(reader.all("img")) == 2
    softmax = small_table.find(method="softmax", n=4096)
    assert f"On 4,096 items it is {percent(softmax.mean)}% with plain softmax" in reader.text
    assert "reference = sharpmax.entropy(logits_at_a_length_that_works).mean()" in reader.text
    assert "Where the weight goes" not in reader.text
    assert "Trained with the method" not in reader.text


def test_other_methods_and_sizes_that_do_not_meet(small_table: Table, tmp_path: Path) -> None:
    hard = replace(small_table.records[0], method="hard")
    reader = read(write_page(tmp_path / "hard.html", replace(small_table, records=(hard,))))
    assert f"it is {percent(hard.mean)}% with hard." in reader.text
    apart = tuple(
        record
        for record in small_table.records
        if (record.method, record.n) in {("softmax", 16), ("paper", 128)}
    )
    reader = read(write_page(tmp_path / "apart.html", replace(small_table, records=apart)))
    assert "On 16 items" in reader.text


def test_nothing_to_report(small_table: Table, tmp_path: Path) -> None:
    with pytest.raises(LookupError, match="no method at inference"):
        write_page(tmp_path / "none.html", replace(small_table, records=()))
