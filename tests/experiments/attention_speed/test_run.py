from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from experiments.attention_speed import benchmark, run
from experiments.attention_speed.__main__ import app
from experiments.attention_speed.tables import pages, tables
from experiments.common.command import main


def _run(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    with pytest.raises(SystemExit) as exit_:
        main(app, arguments)
    captured = capsys.readouterr()
    assert exit_.value.code == code, captured.err
    return captured.err if code else captured.out


def test_quick_run_ends_with_tables_and_pictures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The same workloads, timed a little shorter.
    monkeypatch.setattr(run, "QUICK", replace(benchmark.QUICK, seconds=0.01))
    folder = tmp_path / "new" / "folder"
    output = _run(capsys, "run", "--quick", "--output", str(folder))
    for said in ("prefill", "sharp rows", "decode", "Exponential", "textbook", "verdict", "MiB"):
        assert said in output
    result = json.loads((folder / "benchmark.json").read_text(encoding="utf-8"))
    assert result["command"] == "python -m experiments.attention_speed run --quick"
    assert result["settings"]["threads"] == [1]
    assert {record["workload"] for record in result["records"]} >= {"prefill", "decode", "backward"}
    assert result["memory"] or sys.platform != "linux"
    profile = json.loads((folder / "profile.json").read_text(encoding="utf-8"))
    assert profile["settings"]["length"] == 512
    for name in ("ratio.png", "workloads.png", "comparison.png"):
        assert (folder / name).read_bytes().startswith(b"\x89PNG")
        assert str(folder / name) in output.replace("\n", "")
    assert all(tables(folder).values())
    assert "| policy |" in pages(folder)["ratios.md"]


def test_one_kind_of_workload_and_resume(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = (
        *("run", "--workload", "decode", "--threads", "1,2"),
        *("--quick", "--output", str(tmp_path)),
    )
    _run(capsys, *command)
    result = json.loads((tmp_path / "benchmark.json").read_text(encoding="utf-8"))
    assert {record["workload"] for record in result["records"]} == {"decode"}
    assert {record["threads"] for record in result["records"]} == {1, 2}
    assert result["command"].endswith("run --workload decode --threads 1,2 --quick")
    assert {path.name for path in tmp_path.iterdir()} == {"benchmark.json", "workloads.png"}

    assert "--resume" in _run(capsys, *command, code=1)
    # Nothing is measured again: every step is in the file.
    monkeypatch.setattr(benchmark, "interleave", None)
    _run(capsys, *command, "--resume")
    assert json.loads((tmp_path / "benchmark.json").read_text(encoding="utf-8")) == result

    _run(capsys, "tables", "--output", str(tmp_path))
    assert "decode, one query" in (tmp_path / "tables.md").read_text(encoding="utf-8")
    (tmp_path / "workloads.png").unlink()
    _run(capsys, "figures", "--output", str(tmp_path))
    assert (tmp_path / "workloads.png").exists()


def test_profile_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ("run", "--quick", "--workload", "profile", "--output", str(tmp_path))
    assert "GFLOP/s" in _run(capsys, *command)
    assert {path.name for path in tmp_path.iterdir()} == {"profile.json"}
    assert list(tables(tmp_path)) == ["attention-profile"]
    measured = (tmp_path / "profile.json").read_bytes()
    assert "--resume" in _run(capsys, *command, code=1)
    assert "GFLOP/s" in _run(capsys, *command, "--resume")
    assert (tmp_path / "profile.json").read_bytes() == measured


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--workload", "training"], "expected one of prefill, sharp,"),
        (["--threads", "0"], "expected whole numbers above 0"),
        (["--threads", "two"], "got 'two'"),
        (["--device", "abacus"], "expected cpu or cuda, got 'abacus'"),
    ],
)
def test_bad_arguments_are_one_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    error = _run(capsys, "run", "--quick", *arguments, code=2)
    assert arguments[0] in error
    assert said in error
    assert error.count("\n") == 1


def test_without_the_kernels_the_reason_is_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_compiler(*_: object, **__: object) -> None:
        raise NotImplementedError("there is no C++ compiler")

    monkeypatch.setattr(benchmark, "attention", no_compiler)
    arguments = ("run", "--quick", "--workload", "curve", "--output", str(tmp_path))
    assert "needs the kernels: there is no C++ compiler" in _run(capsys, *arguments, code=1)
