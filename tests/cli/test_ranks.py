"""The commands for models on two ranks: the files of one process, and one voice."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import model_calls
from gloo import Pool
from sharpmax.cli import main
from sharpmax.models import Calibration, Diagnosis, Evaluation
from tiny_models import save_llama

FIT = [
    "--text", "book.txt", "--tasks", "passkey", "--lengths", "120", "--families", "constant,gain",
    "--steps", "2", "--batch", "2", "--contexts", "3,3,2", "--windows", "2,2,2",
    "--evaluate-tasks", "passkey,text", "--evaluate-lengths", "120", "--questions", "4",
    "--evaluate-contexts", "2", "--evaluate-windows", "2", "--output", "out",
]  # fmt: skip
ASK = [
    "--text", "book.txt", "--tasks", "passkey,text", "--lengths", "120", "--questions", "4",
    "--contexts", "2", "--windows", "2", "--output", "out",
]  # fmt: skip
LOOK = ["--text", "book.txt", "--lengths", "16,64", "--inputs", "3", "--json", "out.json"]


@pytest.fixture(scope="module")
def two() -> Iterator[Pool]:
    pool = Pool(2, modules=("model_calls",))
    yield pool
    pool.close()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_llama(tmp_path_factory.mktemp("models") / "llama")


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    """One folder for one process, and one for each of two ranks."""
    found = [tmp_path / name for name in ("one", "first", "second")]
    for folder in found:
        folder.mkdir()
        book = "".join(f"It was the {place}th of times. " for place in range(100))
        (folder / "book.txt").write_text(book, encoding="utf-8")
    return found


def _alone(folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> None:
    monkeypatch.chdir(folder)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    torch.set_num_threads(threads)
    assert exit_.value.code == 0


def _names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("arguments", "kind", "written"),
    [
        (["diagnose", *LOOK], Diagnosis, ["out.json"]),
        (["evaluate", *ASK], Evaluation, ["out/evaluation.json"]),
        (["calibrate", *FIT], Calibration, ["out/families/gain.json", "out/calibration.json"]),
    ],
)
def test_two_ranks_write_what_one_process_writes(
    two: Pool,
    model: Path,
    folders: list[Path],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    kind: Any,
    written: list[str],
) -> None:
    command = [arguments[0], str(model), *arguments[1:]]
    _alone(folders[0], monkeypatch, command)
    first, second = two.call(model_calls.command, *[(each, command) for each in folders[1:]])
    assert first[0] == second[0] == 0
    assert "Report" in first[1] or "Written" in first[1]
    assert second[1:] == ("", ""), "only the first rank speaks"
    assert _names(folders[1]) == _names(folders[0])
    assert _names(folders[2]) == {"book.txt"}, "only the first rank writes"
    for file in written:
        ours, theirs = (kind.load(folder / file).to_dict() for folder in folders[1::-1])
        assert ours == theirs
    if kind is Calibration:
        evaluations = [Evaluation.load(folder / "out/evaluation.json") for folder in folders[:2]]
        assert evaluations[0].to_dict() == evaluations[1].to_dict()
        again = [*command, "--resume"]
        resumed = two.call(model_calls.command, *[(each, again) for each in folders[1:]])
        assert [each[0] for each in resumed] == [0, 0]
        assert "fitting" not in resumed[0][1]


def test_an_error_is_said_once(two: Pool, model: Path, folders: list[Path]) -> None:
    command = ["evaluate", str(model), *ASK, "--calibration", "none.json"]
    found = two.call(model_calls.command, *[(each, command) for each in folders[1:]])
    assert [each[0] for each in found] == [1, 1]
    assert "none.json" in found[0][2]
    assert found[1][1:] == ("", "")


def test_under_torchrun(model: Path, folders: list[Path]) -> None:
    ranks = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "sharpmax"]
    found = subprocess.run(
        [sys.executable, "-m", *ranks, "diagnose", str(model), *LOOK],
        cwd=folders[1],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    assert found.stdout.count("Report: ") == 1
    assert Diagnosis.load(folders[1] / "out.json").inputs == 3
