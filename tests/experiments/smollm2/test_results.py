from __future__ import annotations

import shlex
from pathlib import Path

import pytest
import typer

from experiments.common.documents import EXPERIMENTS
from experiments.smollm2.tables import load
from sharpmax.cli._app import app

RESULTS = EXPERIMENTS / "smollm2/results"


def test_stored_commands_can_be_run() -> None:
    _, evaluation, calibrations = load(RESULTS)
    commands = evaluation.command.splitlines()
    commands += [calibration.notes["command"] for calibration in calibrations.values()]
    assert len(commands) == 24
    group = typer.main.get_command(app)
    for command in commands:
        program, name, *arguments = shlex.split(command)
        assert program == "sharpmax"
        # Parses every option, and runs nothing.
        context = group.commands[name].make_context(name, arguments)  # type: ignore[attr-defined]
        assert context.params["model"] == "smollm2"
        for given in context.params.get("calibration") or ():
            assert (EXPERIMENTS.parent / given.partition("=")[2]).exists()


@pytest.mark.parametrize("path", sorted(RESULTS.rglob("*.md")), ids=lambda path: path.name)
def test_pages_are_generated_from_the_results(path: Path) -> None:
    from experiments.smollm2.tables import pages

    assert path.read_text(encoding="utf-8") == pages(RESULTS)[path.name] + "\n"
