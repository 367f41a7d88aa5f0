"""Plant bugs one at a time in a copy of the tree, and see whether the tests notice."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer
from rich.console import Console

from experiments.common.command import Output, current_command, say
from experiments.common.documents import EXPERIMENTS
from experiments.reliability.bugs import BUGS, Bug
from sharpmax._files import locked, machine, read_sealed, versions, write_sealed

__all__ = ["attempts", "mutations", "planted"]

KIND = "reliability mutations, format 1"

_LIMIT = 1500
"""Seconds that the tests of one bug may take."""

_NOT_COPIED = (".git", ".venv", "build", "dist", "__pycache__", ".*_cache", ".hypothesis")

# Kernels that compute the same, compiled in less time.
_BUILD = ("src/sharpmax/kernels/_compile.py", "-O3", "-O1")


class NotPlantedError(ValueError):
    """The text that a bug replaces is not in its file exactly once."""


@contextmanager
def planted(root: Path, file: str, before: str, after: str) -> Iterator[None]:
    """Replace text in a file of a tree within a block.

    Raises:
        NotPlantedError: The file does not have the text exactly once.
    """
    path = root / file
    text = path.read_text(encoding="utf-8")
    if (found := text.count(before)) != 1:
        raise NotPlantedError(f"{file}: expected {before!r} once, found it {found} times")
    path.write_text(text.replace(before, after), encoding="utf-8")
    try:
        yield
    finally:
        path.write_text(text, encoding="utf-8")


def attempts(results: Path) -> dict[str, list[dict[str, Any]]]:
    """Read the attempts at each bug, in order; none if there is no file yet."""
    path = results / "mutations.json"
    return read_sealed(path, KIND)["attempts"] if path.exists() else {}


def mutations(
    context: typer.Context,
    output: Output = EXPERIMENTS / "reliability/results",
    again: Annotated[
        bool, typer.Option("--again", help="Plant those that were caught before, too.")
    ] = False,
    room: Annotated[str | None, typer.Option(help="Plant the bugs of this room alone.")] = None,
) -> None:
    """Plant every bug that is not caught yet, run its tests, and record what they notice.

    Takes about half an hour on two cores: a bug in the kernels is compiled first. The exit status
    is 1 if a bug survives.
    """
    output.mkdir(parents=True, exist_ok=True)
    context.with_resource(locked(output))
    console, found = Console(), attempts(output)
    chosen = [
        bug
        for bug in BUGS
        if room in (None, bug.room)
        and (again or not (found.get(bug.name) and found[bug.name][-1]["caught"]))
    ]
    with TemporaryDirectory() as folder:
        root = Path(folder) / "tree"
        shutil.copytree(EXPERIMENTS.parent, root, ignore=shutil.ignore_patterns(*_NOT_COPIED))
        for bug in chosen:
            caught = _plant(root, bug)
            say(console, f"{'caught' if caught else 'SURVIVED'}: {bug.name} ({caught})")
            found.setdefault(bug.name, []).append({"caught": bool(caught), "by": caught})
            made = {"versions": versions(("torch",)), "machine": machine()}
            write_sealed(
                output / "mutations.json",
                KIND,
                {"command": current_command(context), **made, "attempts": found},
            )
    if any(not (found.get(bug.name) and found[bug.name][-1]["caught"]) for bug in BUGS):
        raise typer.Exit(1)


def _plant(root: Path, bug: Bug) -> str:
    """The test that notices a bug; empty if none does.

    Raises:
        RuntimeError: That test fails without the bug as well.
    """
    with planted(root, bug.file, bug.before, bug.after):
        if bug.room == "kernels":
            with planted(root, *_BUILD):
                noticed = _run(root, bug.tests, TORCH_EXTENSIONS_DIR=str(root.parent / "kernels"))
        else:
            noticed = _run(root, bug.tests)
    if noticed and (failed := _run(root, [noticed])):
        raise RuntimeError(f"{failed} fails without the bug as well: {bug.name}")
    return noticed


def _run(root: Path, tests: Sequence[str], **variables: str) -> str:
    """Run tests in a tree until one fails, and name it; empty if all pass.

    Of tests that do not end in time, the first is named.
    """
    # Bytecode is recognised by time and size, which a bug may leave as they are.
    variables |= {"PYTHONPATH": f"{root / 'src'}{os.pathsep}{root}", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    try:
        done = subprocess.run(
            command,
            cwd=root,
            env=os.environ | variables,
            capture_output=True,
            text=True,
            check=False,
            timeout=_LIMIT,
        )
    except subprocess.TimeoutExpired:
        return tests[0]
    if done.returncode == 0:
        return ""
    # Without its parameters: all of them are run again.
    failed = re.search(r"^FAILED ([^\s\[]+)", done.stdout, re.MULTILINE)
    if done.returncode != 1 or failed is None:
        raise RuntimeError(f"{' '.join(command)}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return failed[1]
