from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import typer

from experiments.common.command import Output, Quick, Resume, application, current_command, main
from sharpmax._files import RefusedError


def _run(
    context: typer.Context,
    steps: int = 10,
    output: Output = Path("build/toy"),
    quick: Quick = False,
    resume: Resume = False,
) -> None:
    """Run it."""
    if steps < 0:
        raise RefusedError("steps: expected at least 0")
    typer.echo(f"{current_command(context)}|{steps}|{output}|{quick}|{resume}")


def _tables(results: Path) -> dict[str, str]:
    return {"toy": (results / "data.txt").read_text(encoding="utf-8")}


def _figures(results: Path) -> list[Path]:
    path = results / "figure.png"
    path.write_bytes(b"picture")
    return [path]


@pytest.fixture
def call(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., tuple[int, str, str]]:
    monkeypatch.chdir(tmp_path)
    app = application(
        "toy", "A toy.", _run, _tables, _figures, pages=lambda _: {"long.md": "# Long"}
    )

    def called(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as stopped:
            main(app, arguments)
        told = capsys.readouterr()
        return int(stopped.value.code or 0), told.out, told.err

    return called


def test_run_knows_its_command(call: Callable[..., tuple[int, str, str]]) -> None:
    code, out, _ = call("run", "--steps", "3", "--quick", "--resume")
    assert code == 0
    assert (
        out.strip() == "python -m experiments.toy run --steps 3 --quick|3|build/toy/quick|True|True"
    )


def test_a_quick_run_has_a_folder_of_its_own(call: Callable[..., tuple[int, str, str]]) -> None:
    assert "|build/toy|" in call("run")[1]
    assert "|build/toy/quick|" in call("run", "--quick")[1]
    assert "|here|" in call("run", "--quick", "--output", "here")[1]


def test_an_error_is_one_line(call: Callable[..., tuple[int, str, str]]) -> None:
    code, _, err = call("run", "--steps", "-1")
    assert (code, err) == (1, "python -m experiments.toy: steps: expected at least 0\n")
    code, _, err = call("run", "--steps", "many")
    assert code == 2
    assert err.count("\n") == 1
    assert "--steps" in err


def test_an_experiment_with_timings_runs_here_alone(
    call: Callable[..., tuple[int, str, str]],
) -> None:
    code, out, err = call("run", "--engine", "ray")
    assert (code, out) == (2, "")
    assert "this experiment takes timings, and cells that run beside each other slow" in err
    told = call("run", "--engine", "local", "--steps", "3")[1]
    assert told.startswith("python -m experiments.toy run --steps 3|3|")


def test_help_names_the_verbs(call: Callable[..., tuple[int, str, str]]) -> None:
    code, out, _ = call("--help")
    assert code == 0
    assert all(verb in out for verb in ("run", "tables", "figures"))


def test_tables_and_figures_of_another_folder(
    call: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    (tmp_path / "data.txt").write_text("| a |", encoding="utf-8")
    code, out, _ = call("tables", "--output", str(tmp_path))
    assert code == 0
    assert str(tmp_path / "tables.md") in out.replace("\n", "")
    assert (tmp_path / "tables.md").read_text(encoding="utf-8") == "| a |\n\n# Long\n"
    code, _, _ = call("figures", "--output", str(tmp_path))
    assert code == 0
    assert (tmp_path / "figure.png").exists()
    code, _, err = call("tables", "--output", str(tmp_path / "none"))
    assert code == 1
    assert "No such file" in err


@pytest.mark.usefixtures("holder")
def test_two_runs_in_one_folder_are_refused(
    call: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    code, out, err = call("run", "--output", str(tmp_path / "held"), "--resume")
    assert (code, out) == (1, "")
    assert "another run is writing to this folder" in err
    assert len(err.splitlines()) == 1
