from __future__ import annotations

from pathlib import Path

import pytest

from experiments.common.command import main
from experiments.max_retrieval.__main__ import app
from experiments.max_retrieval.records import Table

_TINY = ["--seeds", "2", "--steps", "4", "--sizes", "16,24", "--far", "32"]


def _call(*arguments: str) -> object:
    with pytest.raises(SystemExit) as exit_:
        main(app, arguments)
    return exit_.value.code


def _run(*arguments: str) -> object:
    return _call("run", *arguments)


def test_a_run_goes_on_and_says_where_the_table_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [*_TINY, "--output", str(tmp_path)]
    assert _run(*options, "--arms", "with-linear") == 0
    said = capsys.readouterr().out
    assert "with-linear: train" in said
    assert "loss" in said
    assert f"Written: {tmp_path / 'table.json'}" in said

    assert _run(*options, "--arms", "with-linear") == 1
    assert "holds an earlier run" in capsys.readouterr().err
    assert _run(*options, "--resume", "--arms", "with-linear,with-log-n") == 0
    table = Table.load(tmp_path / "table.json")
    assert set(table.recipes) == {"with-linear", "with-log-n"}
    start = "python -m experiments.max_retrieval run --seeds 2 --steps 4 --sizes 16,24 --far 32"
    assert table.command == (
        f"{start} --arms with-linear && {start} --arms with-linear,with-log-n --resume"
    )

    other = ["--seeds", "2", "--steps", "6", *_TINY[4:], "--output", str(tmp_path), "--resume"]
    assert _run(*other) == 1
    assert "has steps 4, not 6" in capsys.readouterr().err

    (tmp_path / "table.json").write_text("{", encoding="utf-8")
    assert _run(*options, "--resume") == 1
    assert "table.json: truncated or damaged" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--sizes", "16,many"], "--sizes: expected whole numbers above 0"),
        (["--far", "0"], "--far: expected"),
        (["--arms", "with-nothing"], "got 'with-nothing'"),
    ],
)
def test_bad_arguments_are_one_line(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(*arguments, "--output", str(tmp_path / "none")) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not (tmp_path / "none").exists()


def test_the_arms_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run("--arms", "list") == 0
    assert "near-ties+cosine\n" in capsys.readouterr().out


def test_a_quick_run_ends_with_what_is_made_from_results(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # The run itself ends with them.
    assert _run("--quick", "--arms", "standard", "--output", str(tmp_path)) == 0
    assert "exponential law" in capsys.readouterr().out
    table = Table.load(tmp_path / "table.json")
    assert table.command == "python -m experiments.max_retrieval run --arms standard --quick"
    assert table.settings["steps"] == 200
    for name in ("accuracy-inference.svg", "report.html"):
        (tmp_path / name).unlink()

    assert _call("figures", "--output", str(tmp_path)) == 0
    said = capsys.readouterr().out
    for name in (
        "accuracy-inference.svg",
        "attention-softmax.png",
        "attention-compared.png",
        "entropy-plane.png",
        "fit.svg",
        "report.html",
    ):
        assert (tmp_path / name).exists()
        assert name in said
    assert _call("tables", "--output", str(tmp_path)) == 0
    assert "| softmax |" in (tmp_path / "tables.md").read_text(encoding="utf-8")

    figures = tmp_path / "figures.json"
    figures.write_text(figures.read_text(encoding="utf-8").replace("0.", "1.", 1), encoding="utf-8")
    assert _call("figures", "--output", str(tmp_path)) == 1
    assert "figures.json: the file was changed" in capsys.readouterr().err
