from __future__ import annotations

from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from sharpmax.cli._command import command_line

app = typer.Typer()


@app.command()
def run(
    context: typer.Context,
    model: str,
    text: list[Path] | None = None,
    calibration: list[str] | None = None,
    seeds: int = 10,
    sizes: Annotated[str, typer.Option("-s", "--sizes")] = "16,32",
    quick: Annotated[bool, typer.Option("--quick")] = False,
    controls: bool = True,
    output: Path = Path("build"),
    resume: Annotated[bool, typer.Option("--resume")] = False,
) -> None:
    del model, text, calibration, seeds, sizes, quick, controls, output, resume
    typer.echo(command_line(context, "python -m experiments.any"))


@app.command()
def other() -> None: ...


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("gpt", "gpt"),
        ("gpt --seeds 10 --sizes 16,32 --output build --resume", "gpt"),
        ("--quick --seeds 3 -s 8 gpt", "gpt --seeds 3 --sizes 8 --quick"),
        ("gpt --no-controls --output other/place", "gpt --no-controls --output other/place"),
        ("/far/away/gpt --output /far/away --text /far/a.txt", "gpt --text a.txt"),
        ("gpt --text a.txt --text texts/b.txt", "gpt --text a.txt --text texts/b.txt"),
        ("gpt --calibration warm=/far/c.json", "gpt --calibration warm=c.json"),
        ("gpt --text 'two words.txt'", "gpt --text 'two words.txt'"),
    ],
)
def test_options_that_differ_from_their_defaults_in_order(given: str, expected: str) -> None:
    result = CliRunner().invoke(app, f"run {given}", catch_exceptions=False)
    assert result.output == f"python -m experiments.any run {expected}\n"
