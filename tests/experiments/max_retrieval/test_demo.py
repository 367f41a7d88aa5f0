from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from experiments.max_retrieval.records import Table
from sharpmax.cli import main


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real thing at fewer sizes and on fewer sets: the command is the same, the wait is not."""
    # The package has the function under the name of the module.
    module = sys.modules["sharpmax.cli.demo"]
    monkeypatch.setattr(module, "_SIZES", (16, 64, 256))
    monkeypatch.setattr(module, "_SHOWN", (16, 256))
    monkeypatch.setattr(module, "_SETS", 64)


def _run(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as exit_:
        main(["demo", *arguments])
    assert exit_.value.code == 0
    return capsys.readouterr().out


def test_trains_prints_the_table_and_writes_the_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "new" / "folder"
    said = _run(capsys, "--output", str(output), "--seeds", "1", "--steps", "250")
    assert "loss" in said
    table = Table.load(output / "table.json")
    assert table.command == "sharpmax demo --seeds 1 --steps 250"
    for method in ("softmax", "paper", "exponential"):
        mean = table.find(method=method, weights="averaged", n=256).mean
        assert f"{mean:.1%}" in said
    # It is a head that has learnt something, not one that guesses.
    assert table.find(method="softmax", weights="last", n=16).mean > 0.4
    page = (output / "report.html").read_text(encoding="utf-8")
    assert page.startswith("<!DOCTYPE html>")
    assert not re.search(r'(src|href)="(https?:)?//', page)

    # A second run begins anew in the same folder.
    _run(capsys, "--output", str(output), "--seeds", "1", "--steps", "2")
    assert Table.load(output / "table.json").settings["steps"] == 2


def test_without_matplotlib_the_extra_is_named_before_anything_is_trained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(SystemExit) as exit_:
        main(["demo", "--output", str(tmp_path)])
    assert exit_.value.code == 1
    assert "pip install 'sharpmax[lab]'" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
