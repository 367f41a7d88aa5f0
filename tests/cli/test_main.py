from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import sharpmax
from sharpmax.cli import main

COMMAND = Path(sys.executable).with_name("sharpmax")


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([COMMAND, *arguments], capture_output=True, text=True, check=False)


def test_version_in_a_fresh_process() -> None:
    assert _run("--version").stdout == f"sharpmax {sharpmax.__version__}\n"
    module = [sys.executable, "-m", "sharpmax", "--version"]
    assert subprocess.run(module, capture_output=True, text=True, check=True).stdout


def test_help_names_every_command() -> None:
    result = _run("--help")
    assert result.returncode == 0
    assert {"calibrate", "demo", "diagnose", "evaluate", "theory"} <= set(result.stdout.split())


def test_without_arguments_shows_the_help() -> None:
    result = _run()
    assert result.returncode == 2
    assert "Usage" in result.stdout + result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["teory"], "teory"),
        (["--colour"], "--colour"),
        (["theory"], "--spread"),
        (["theory", "--spread", "wide", "--epsilon", "0.1"], "--spread"),
        (["demo", "--seeds", "0"], "--seeds"),
    ],
)
def test_bad_arguments_exit_with_2_and_one_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    assert exit_.value.code == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("sharpmax: ")
    assert output.err.count("\n") == 1
    assert said in output.err


def test_help_imports_neither_the_experiments_nor_a_framework() -> None:
    script = (
        "import sys\n"
        "from sharpmax.cli import main\n"
        "try:\n    main(['--help'])\n"
        "except SystemExit:\n    pass\n"
        "heavy = {'experiments', 'sharpmax.models', 'matplotlib', 'torch', 'jax', 'scipy'}\n"
        "heavy &= set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)


@pytest.mark.parametrize("module", ["typer", "rich"])
def test_without_the_extra_a_line_says_what_to_install(module: str) -> None:
    script = f"import sys; sys.modules[{module!r}] = None\n"
    library = "import sharpmax; assert sharpmax.theory.critical_length(1.0, 0.5)"
    subprocess.run([sys.executable, "-c", script + library], check=True)
    command = "from sharpmax.cli import main; main(['theory'])"
    result = subprocess.run(
        [sys.executable, "-c", script + command], capture_output=True, text=True, check=False
    )
    assert result.returncode == 1
    assert result.stdout == ""
    expected = f"needs {module}, which is not installed: pip install 'sharpmax[cli]'\n"
    assert result.stderr == f"sharpmax: The command line of sharpmax {expected}"


@pytest.mark.usefixtures("holder")
@pytest.mark.parametrize("command", ["calibrate", "evaluate"])
def test_two_runs_in_one_folder_are_refused(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([command, "no-such-model", "--resume", "--output", str(tmp_path / "held")])
    said = capsys.readouterr().err
    assert stopped.value.code == 1
    assert "another run is writing to this folder" in said
    assert len(said.splitlines()) == 1
