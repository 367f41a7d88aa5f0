"""The README's Python is run, its commands exist, and its links lead somewhere."""

from __future__ import annotations

import doctest
import importlib.util
import re
import shlex
from pathlib import Path

import pytest
import torch

import tiny_models

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(?P<language>\w+)\n(?P<code>.*?)^```", re.DOTALL | re.MULTILINE)


def _blocks(language: str) -> list[tuple[int, str]]:
    """Blocks of a language, each with the number of the line before it."""
    return [
        (README.count("\n", 0, match.start("code")), match["code"])
        for match in BLOCK.finditer(README)
        if match["language"] == language
    ]


def test_python_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    # The reader brings a model and its tokens. One namespace for all blocks: they are read in order.
    tokens = torch.randint(128, (1, 256), generator=torch.Generator().manual_seed(0))
    names: dict[str, object] = {"model": tiny_llama(), "tokens": tokens}
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    report: list[str] = []
    blocks = _blocks("python")
    assert blocks
    for line, code in blocks:
        test = doctest.DocTestParser().get_doctest(code, names, "README.md", "README.md", line)
        runner.run(test, out=report.append, clear_globs=False)
        names = test.globs
    assert not runner.summarize(verbose=False).failed, "".join(report)


def test_the_commands_exist() -> None:
    lines = [line for _, code in _blocks("console") for line in code.splitlines()]
    commands = [shlex.split(line.removeprefix("$ "), comments=True) for line in lines]
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    for words in commands:
        if words[0] == "make":
            assert words[1] in targets
        else:
            assert words[:2] == ["python", "-m"]
            assert importlib.util.find_spec(f"{words[2]}.__main__"), words
    assert len(commands) > 4


def test_linked_files_exist() -> None:
    for target in re.findall(r"\]\((?!#|https?:)([^)]+)\)", README):
        assert (ROOT / target).exists(), target
