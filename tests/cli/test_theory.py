from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sharpmax.cli import main
from sharpmax.theory import critical_length


def _run(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as exit_:
        main(["theory", *arguments])
    assert exit_.value.code == 0
    return capsys.readouterr().out


def test_table(capsys: pytest.CaptureFixture[str]) -> None:
    output = _run(
        capsys, "--spread", "5.69", "--spread", "900", "--epsilon", "0.01", "--epsilon", "0.5"
    )
    assert f"{critical_length(5.69, 0.01):,}" in output
    assert f"{critical_length(5.69, 0.5):,}" in output
    assert "7.32e+392" in output
    assert "epsilon 0.01" in output
    assert "exp(spread / 1) / n" in output


def test_json_has_every_pair(capsys: pytest.CaptureFixture[str]) -> None:
    output = _run(
        capsys,
        *("--spread", "1", "--spread", "800", "--epsilon", "0.1", "--epsilon", "0.01"),
        *("--temperature", "0.5", "--json"),
    )
    result = json.loads(output)
    assert result["temperature"] == 0.5
    assert [tuple(entry.values()) for entry in result["critical_lengths"]] == [
        (s, e, critical_length(s, e, 0.5)) for s in (1.0, 800.0) for e in (0.1, 0.01)
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--spread", "-1", "--epsilon", "0.1"], "spread: expected"),
        (["--spread", "nan", "--epsilon", "0.1"], "got nan"),
        (["--spread", "1", "--epsilon", "0"], "epsilon: expected"),
        (["--spread", "1", "--epsilon", "2"], "got 2.0"),
        (["--spread", "1", "--epsilon", "0.1", "--temperature", "0"], "temperature: expected"),
        (["--spread", "1e6", "--epsilon", "0.1"], "at most 9000"),
    ],
)
def test_bad_values_exit_with_2_and_one_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["theory", *arguments])
    assert exit_.value.code == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.count("\n") == 1
    assert said in output.err


def test_in_a_fresh_process() -> None:
    command = Path(sys.executable).with_name("sharpmax")
    arguments = ["theory", "--spread", "5.69", "--epsilon", "0.01"]
    good = subprocess.run([command, *arguments], capture_output=True, text=True, check=True)
    assert "29,590" in good.stdout
    bad = subprocess.run(
        [command, *arguments, "--temperature", "-1"], capture_output=True, text=True, check=False
    )
    assert bad.returncode == 2
    assert bad.stderr.count("\n") == 1
    assert "Traceback" not in bad.stderr
