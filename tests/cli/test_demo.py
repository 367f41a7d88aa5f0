from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path

import pytest

from sharpmax.cli import main
from sharpmax.lab import dispersion


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real measurement at fewer sizes: the command is the same, the wait is not."""
    small = partial(dispersion.measure_dispersion, sizes=dispersion.SIZES[:9], rows=2)
    monkeypatch.setattr(dispersion, "measure_dispersion", small)


def _run(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as exit_:
        main(["demo", *arguments])
    assert exit_.value.code == 0
    return capsys.readouterr().out


def test_prints_the_table_and_writes_picture_and_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = _run(capsys, "--output", str(tmp_path / "new" / "folder"), "--seed", "3")
    for name in ("plain softmax", "Paper", "Exponential", "Hard", "upper bound", "seed 3"):
        assert name in output
    assert max(map(len, output.splitlines()[:-2])) <= 80
    assert (tmp_path / "new/folder/dispersion.png").read_bytes().startswith(b"\x89PNG")
    result = json.loads((tmp_path / "new/folder/dispersion.json").read_text(encoding="utf-8"))
    assert result["seed"] == 3
    assert {curve["name"] for curve in result["curves"]} >= {"plain softmax", "EntropyTarget"}


def test_the_same_seed_gives_the_same_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("first", "second"):
        _run(capsys, "--output", str(tmp_path / name))
    for name in ("dispersion.png", "dispersion.json"):
        assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "second" / name).read_bytes()


def test_without_matplotlib_the_table_is_printed_and_the_extra_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    output = _run(capsys, "--output", str(tmp_path))
    assert "plain softmax" in output
    assert "pip install 'sharpmax[lab]'" in output
    assert not (tmp_path / "dispersion.png").exists()
    assert (tmp_path / "dispersion.json").exists()


def test_a_folder_that_cannot_be_made_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(SystemExit) as exit_:
        main(["demo", "--output", str(tmp_path / "file" / "folder")])
    assert exit_.value.code == 1
    error = capsys.readouterr().err
    assert error.startswith("sharpmax: ")
    assert error.count("\n") == 1
