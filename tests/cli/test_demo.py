from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sharpmax.cli import demo as module
from sharpmax.cli import main

ROOT = Path(__file__).parents[2]


def _run(*arguments: str) -> object:
    with pytest.raises(SystemExit) as exit_:
        main(["demo", *arguments])
    return exit_.value.code


def test_runs_the_demo_of_the_experiment_with_its_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {}

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        seen.update(options, command=command)
        return subprocess.CompletedProcess(command, 7)

    monkeypatch.setattr(module.subprocess, "run", run)
    monkeypatch.chdir(tmp_path)
    assert _run("--output", "here", "--steps", "5") == 7, "its exit code"
    expected = ["demo", "--output", str(tmp_path / "here"), "--steps", "5"]
    assert seen["command"] == [sys.executable, "-m", "experiments.max_retrieval", *expected]
    assert seen["cwd"] == ROOT


def test_needs_a_clone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "_ROOT", tmp_path)
    assert _run() == 1
    error = capsys.readouterr().err
    assert "expected a clone of the repository" in error
    assert error.count("\n") == 1
