from __future__ import annotations

import re
import shlex

import typer

from experiments.common.documents import EXPERIMENTS, documents, fill
from experiments.smollm2.tables import load, pages, tables
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
        context = group.commands[name].make_context(name, arguments)
        assert context.params["model"] == "smollm2"
        for given in context.params.get("calibration") or ():
            assert (EXPERIMENTS.parent / given.partition("=")[2]).exists()


def test_documents_and_pages_have_the_published_tables() -> None:
    found = tables(RESULTS)
    for path in documents():
        text = path.read_text(encoding="utf-8")
        assert fill(text, found) == text, f"{path}: run python -m experiments.smollm2 tables"
    for name, page in pages(RESULTS).items():
        assert (RESULTS / name).read_text(encoding="utf-8") == f"{page}\n"
    readme = (RESULTS.parent / "README.md").read_text(encoding="utf-8")
    for block in re.findall(r"<!-- table: .*? -->(.*?)<!-- end -->", readme, re.DOTALL):
        assert block.count("\n|") <= 22, "a header, a rule and at most 20 rows"
