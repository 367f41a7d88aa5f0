"""The README's examples are run: Python as doctests, commands through the command line."""

from __future__ import annotations

import doctest
import re
import shlex
from pathlib import Path

import pytest

from sharpmax.cli import main

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(?P<language>\w+)\n(?P<code>.*?)^```", re.DOTALL | re.MULTILINE)


def _blocks(language: str) -> list[tuple[int, str]]:
    """Blocks of a language, each with the number of the line before it."""
    return [
        (README.count("\n", 0, match.start("code")), match["code"])
        for match in BLOCK.finditer(README)
        if match["language"] == language
    ]


def test_python_blocks() -> None:
    # One name space for all: a reader follows them from top to bottom.
    names: dict[str, object] = {}
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    blocks = _blocks("python")
    assert blocks
    report: list[str] = []
    for line, code in blocks:
        if ">>>" in code:
            test = doctest.DocTestParser().get_doctest(code, names, "README.md", "README.md", line)
            runner.run(test, out=report.append, clear_globs=False)
            names = test.globs
        else:
            exec(compile("\n" * line + code, "README.md", "exec"), names)
    assert not runner.summarize(verbose=False).failed, "".join(report)


def test_console_blocks_of_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    checked = 0
    for _, code in _blocks("console"):
        command, _, expected = code.partition("\n")
        words = shlex.split(command.removeprefix("$ "), comments=True)
        if words[0] != "sharpmax":
            continue
        with pytest.raises(SystemExit) as exit_:
            main(words[1:])
        assert exit_.value.code == 0
        assert capsys.readouterr().out == expected
        checked += 1
    assert checked


def test_linked_files_exist() -> None:
    root = Path(__file__).parent.parent
    for target in re.findall(r"\]\((?!#|https?:)([^)]+)\)", README):
        assert (root / target).exists(), target
