from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from experiments.attention_speed.tables import attention_tables
from experiments.models_speed.tables import models_tables
from sharpmax.cli import main


def _run(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as exit_:
        main(["bench", "attention", *arguments])
    assert exit_.value.code == 0
    return capsys.readouterr().out


def test_the_quick_run_prints_tables_and_writes_figures_and_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = _run(capsys, "--quick", "--output", str(tmp_path / "new" / "folder"))
    for said in ("prefill", "sharp rows", "decode", "Exponential", "textbook", "verdict", "MiB"):
        assert said in output
    result = json.loads((tmp_path / "new/folder/benchmark.json").read_text(encoding="utf-8"))
    assert result["command"] == "sharpmax bench attention --quick"
    assert result["settings"]["threads"] == [1]
    assert {record["work"] for record in result["records"]} >= {"prefill", "decode", "backward"}
    assert result["memory"] or sys.platform != "linux"
    assert (tmp_path / "new/folder/ratio.png").read_bytes().startswith(b"\x89PNG")
    assert all(attention_tables(result).values())


def test_one_kind_of_work_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = _run(
        capsys, "--quick", "--work", "decode", "--threads", "1,2", "--output", str(tmp_path)
    )
    assert "Picture" not in output, "there is no panel for it"
    result = json.loads((tmp_path / "benchmark.json").read_text(encoding="utf-8"))
    assert {record["work"] for record in result["records"]} == {"decode"}
    assert {record["threads"] for record in result["records"]} == {1, 2}
    assert result["command"].endswith("--quick --threads 1,2 --work decode")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--work", "training"], "--work: expected one of prefill, sharp,"),
        (["--threads", "0"], "--threads: expected whole numbers above 0"),
        (["--threads", "two"], "got 'two'"),
    ],
)
def test_bad_arguments_are_one_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["bench", "attention", "--quick", *arguments])
    assert exit_.value.code == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("module", ["torch", "entmax", "matplotlib"])
def test_a_missing_extra_is_named_before_the_work(
    module: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(SystemExit) as exit_:
        main(["bench", "attention", "--quick", "--output", str(tmp_path / "folder")])
    assert exit_.value.code == 1
    assert f"needs {module}, which is not installed" in capsys.readouterr().err
    assert not (tmp_path / "folder").exists()


def _run_models(*arguments: str) -> object:
    with pytest.raises(SystemExit) as exit_:
        main(["bench", "models", *arguments])
    return exit_.value.code


def test_the_quick_run_of_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run_models("--quick", "--output", str(tmp_path / "new")) == 0
    output = capsys.readouterr()
    for said in ("plain pass", "output_atte", "prefill", "decoding", "MiB", "Figures"):
        assert said in output.out
    assert "shards" not in output.err
    result = json.loads((tmp_path / "new/benchmark.json").read_text(encoding="utf-8"))
    assert result["command"] == "sharpmax bench models --quick"
    assert {record["work"] for record in result["records"]} == {
        "diagnose", "weights", "prefill", "decode",
    }  # fmt: skip
    assert result["memory"] or sys.platform != "linux"
    assert all(models_tables(result).values())


def test_a_model_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run_models("--model", str(tmp_path), "--output", str(tmp_path / "new")) == 1
    assert "there is no config.json" in capsys.readouterr().err
    assert _run_models("--threads", "none") == 2
    assert "--threads: expected whole numbers" in capsys.readouterr().err


def test_models_need_transformers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert _run_models("--quick", "--output", str(tmp_path / "new")) == 1
    assert "needs transformers, which is not installed" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
