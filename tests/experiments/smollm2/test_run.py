from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from experiments.common.command import main
from experiments.smollm2.__main__ import app
from experiments.smollm2.tables import load, tables


def _run(*arguments: object) -> object:
    with pytest.raises(SystemExit) as stopped:
        main(app, [str(argument) for argument in arguments])
    return stopped.value.code


def test_a_quick_run_ends_with_a_table_and_pictures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    assert _run("run", "--quick", "--output", folder) == 0
    said = capsys.readouterr().out
    assert "Results for all arms" in said
    assert "tables.md" in said.splitlines()[-1]
    diagnosis, evaluation, calibrations = load(folder)
    assert len(diagnosis.heads) == 8
    assert calibrations.keys() == {"constant", "gain", "constant+gain"}
    assert {result.task for result in evaluation.results} == {"passkey", "maximum", "text"}
    commands = evaluation.command.splitlines()
    assert [command.split()[:3] for command in commands] == [
        ["sharpmax", "calibrate", "model"], ["sharpmax", "evaluate", "model"],
    ]  # fmt: skip
    pictures = {"slopes", "entropy", "critical", "accuracy", "trade"}
    before = {name: (folder / f"{name}.png").read_bytes() for name in pictures}
    assert "| passkey, % correct | 130 |" in (folder / "tables.md").read_text(encoding="utf-8")

    # A folder with the diagnosis of a further model has tables of its own.
    (folder / "other").mkdir()
    shutil.copy(folder / "diagnosis.json", folder / "other")
    found = tables(folder)
    assert found["other-verdicts"] == found["smollm2-verdicts"]
    assert found["other-heads"] == found["smollm2-heads"]
    shutil.rmtree(folder / "other")

    assert _run("run", "--quick", "--output", folder) == 1
    assert "holds an earlier run" in capsys.readouterr().err
    assert _run("figures", "--output", folder) == 0
    assert {name: (folder / f"{name}.png").read_bytes() for name in pictures} == before
    assert _run("tables", "--output", folder) == 0
    assert "# SmolLM2: all tasks" in (folder / "tables.md").read_text(encoding="utf-8")


def test_texts_are_required(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run("run", "--output", tmp_path) == 2
    assert "expected --text and --test-text, or --quick" in capsys.readouterr().err
