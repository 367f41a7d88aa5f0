from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.common.command import main
from experiments.models_speed import benchmark
from experiments.models_speed.__main__ import app
from experiments.models_speed.tables import tables


def _run(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> tuple[str, str]:
    with pytest.raises(SystemExit) as exit_:
        main(app, arguments)
    captured = capsys.readouterr()
    assert exit_.value.code == code, captured.err
    return captured.out, captured.err


def test_quick_run_ends_with_tables_and_a_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The processes that measure memory have a test of their own.
    monkeypatch.setattr(benchmark, "measure_apart", lambda *case: case[-2] * 2**15)
    folder = tmp_path / "new"
    output, error = _run(capsys, "run", "--quick", "--output", str(folder))
    for said in ("plain pass", "output_atte", "prefill", "decoding", "MiB", "cost.png"):
        assert said in output
    assert "shards" not in error
    result = json.loads((folder / "benchmark.json").read_text(encoding="utf-8"))
    assert result["command"] == "python -m experiments.models_speed run --quick"
    workloads = [record["workload"] for record in result["records"]]
    assert workloads == ["diagnose", "weights", "prefill", "decode"]
    assert [entry["mebibytes"] for entry in result["memory"][-2:]] == [16.0, 32.0]
    assert (folder / "cost.png").read_bytes().startswith(b"\x89PNG")
    assert all(tables(folder).values())


def test_bad_arguments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--model", str(tmp_path), "--output", str(tmp_path / "new"))
    assert "there is no config.json" in _run(capsys, "run", *arguments, code=1)[1]
    assert "expected whole numbers" in _run(capsys, "run", "--threads", "none", code=2)[1]
