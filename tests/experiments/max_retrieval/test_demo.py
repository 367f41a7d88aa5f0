from __future__ import annotations

import re
from pathlib import Path

import pytest

from experiments.common.command import main
from experiments.max_retrieval import demo
from experiments.max_retrieval.__main__ import app
from experiments.max_retrieval.records import Table


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same command at fewer sizes and on fewer sets."""
    monkeypatch.setattr(demo, "_SIZES", (16, 64, 256))
    monkeypatch.setattr(demo, "_SETS", (64, 64, 64))
    monkeypatch.setattr(demo, "_FIT_ITEMS", 2**14)


def _run(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as exit_:
        main(app, ["demo", *arguments])
    assert exit_.value.code == 0
    return capsys.readouterr().out


def test_trains_prints_the_table_and_writes_the_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "new" / "folder"
    few = ["--seeds", "2", "--steps", "600", "--recipe-steps", "50"]
    said = _run(capsys, "--output", str(output), *few)
    assert "loss" in said
    table = Table.load(output / "table.json")
    assert table.command == f"python -m experiments.max_retrieval demo {' '.join(few)}"
    for method in ("softmax", "paper", "exponential"):
        mean = table.find(method=method, recipe="standard", n=256).mean
        assert f"{100 * mean:.1f}" in said
    # The head has learned something; it does not guess.
    assert table.find(method="softmax", recipe="standard", n=16).mean > 0.4
    assert {record.weights for record in table.records} == {"averaged"}
    differently = table.recipes["near-ties+cosine"]
    assert differently["ties"]
    assert differently["schedule"] == "cosine"
    assert table.recipes["standard"]["ties"] is None
    page = (output / "report.html").read_text(encoding="utf-8")
    assert page.startswith("<!DOCTYPE html>")
    assert not re.search(r'(src|href)="(https?:)?//', page)
    for text in (said, page):
        assert "trained differently" in " ".join(text.split())

    # A second run starts again in the same folder.
    _run(capsys, "--output", str(output), "--seeds", "1", "--steps", "2", "--recipe-steps", "2")
    assert Table.load(output / "table.json").settings["steps"] == 2
