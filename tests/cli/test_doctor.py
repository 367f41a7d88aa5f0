from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sharpmax.cli import main
from sharpmax.cli._doctor import jax as jax_side
from sharpmax.cli._doctor import pytorch
from sharpmax.cli._doctor.problems import EPSILON, Problem, faults, problems
from sharpmax.cli._doctor.timing import best_times
from sharpmax.cli._doctor.worker import work

PLANTED = """
import sys
if "sharpmax.cli._doctor.worker" in sys.orig_argv and "torch" in sys.orig_argv:
    import os, signal
    from sharpmax._attention.impl import composed
    right = composed.attend

    def wrong(problem, beta, *args, **kwargs):
        if str(problem.query.dtype) == "torch.float16":
            os.kill(os.getpid(), signal.SIGSEGV)
        output, mass = right(problem, beta, *args, **kwargs)
        return output * (1.0 if problem.query.shape[2] == 1 else 1.01), mass

    composed.attend = wrong
"""


def _run(capsys: pytest.CaptureFixture[str], code: int, *arguments: str) -> str:
    with pytest.raises(SystemExit) as exit_:
        main(["doctor", *arguments])
    said = capsys.readouterr()
    assert exit_.value.code == code, said.out + said.err
    return said.out + said.err


def test_a_machine_that_is_well(capsys: pytest.CaptureFixture[str]) -> None:
    said = _run(capsys, 0, "--impl", "cpu")
    assert f"| torch | cpu | cpu | {len(problems())} right |" in said
    assert "- torch: " in said
    assert "- processor: " in said
    assert "scaled_dot_product_attention" in said
    assert said.endswith("All is well.\n")


def test_a_wrong_implementation_and_a_crash_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sitecustomize.py").write_text(PLANTED, encoding="utf-8")
    paths = [str(tmp_path), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    said = _run(capsys, 1, "--impl", "composed")
    # Half precision cannot tell; float16 ends the process, which starts again behind it.
    assert "| torch | composed | cpu | 3 right, 5 wrong, 4 refused |" in said
    assert said.count("the process ended with SIGSEGV") == 1
    assert "- wrong: torch, composed on cpu: causal, gradients: output differs by 0.0" in said
    assert "Not well: 5 findings." in said


def test_time_that_runs_out_is_a_finding(capsys: pytest.CaptureFixture[str]) -> None:
    assert "no time was left" in _run(capsys, 1, "--seconds", "0")


def test_the_specification_is_right_and_notes_say_what_is_missing() -> None:
    lines: list[Any] = []
    work("torch", 0, ["reference"], lines.append)
    verdicts = [line["verdict"] for line in lines if "verdict" in line]
    assert verdicts == ["right"] * len(problems())
    assert "missing" in pytorch.notes([])[0]


@pytest.mark.parametrize(("name", "title"), [("xla", "sink, gradients"), ("reference", "decode")])
def test_jax(name: str, title: str) -> None:
    problem = next(each for each in problems() if each.title == title)
    assert faults(problem, jax_side.solve(problem, name, "cpu")) == []


def test_small_mistakes_are_found() -> None:
    problem = problems()[0]
    right = pytorch.solve(problem, "reference", "cpu")
    assert faults(problem, right) == []

    def said(**changed: Any) -> list[str]:
        return [each.split(" differs")[0] for each in faults(problem, right._replace(**changed))]

    moved = right.output.copy()
    moved[2, 50, 3] += 1e-3
    assert said(output=moved) == ["output"]
    assert said(output=np.full_like(moved, np.nan)) == ["output"]
    assert said(seen=right.seen + 1) == ["number of visible keys"]
    assert said(entropy=right.entropy + 1e-3) == ["entropy"]
    for name, gradient in right.gradients.items():
        moved = gradient.copy()
        moved[1, 40] *= 1.5
        assert said(gradients=right.gradients | {name: moved}) == [f"gradient of {name}"]


@pytest.mark.parametrize("problem", problems(), ids=lambda problem: problem.title)
def test_every_dtype_holds_the_numbers(problem: Problem) -> None:
    import torch

    for array in problem.arrays.values():
        for dtype in EPSILON:
            kept = torch.from_numpy(array).to(getattr(torch, dtype)).double().numpy()
            np.testing.assert_array_equal(kept, array)


def test_best_times_takes_the_best_and_waits_for_the_device() -> None:
    waited: list[None] = []
    times = best_times({"nothing": lambda: None}, lambda: waited.append(None), seconds=0.0)
    assert 0.0 < times["nothing"] < 1.0
    assert len(waited) == 3
