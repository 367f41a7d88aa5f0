"""Documents: examples are run, links lead somewhere, commands exist, tables are up to date."""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import re
import shlex
from pathlib import Path
from types import ModuleType

import pytest
import torch
import transformers as hf

import tiny_models
from experiments.common.documents import EXPERIMENTS, documents, fill

ROOT = Path(__file__).parent.parent
DOCUMENTS = [*documents(), ROOT / "CONTRIBUTING.md"]
BLOCK = re.compile(r"^```(?P<language>\w+)\n(?P<code>.*?)^```", re.DOTALL | re.MULTILINE)
LONGEST_TABLE = 20

named = pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
NAMES = sorted(path.parent.name for path in EXPERIMENTS.glob("*/tables.py"))


def _blocks(path: Path, language: str) -> list[tuple[int, str]]:
    """Blocks of a language, each with the number of the line before it."""
    text = path.read_text(encoding="utf-8")
    return [
        (text.count("\n", 0, match.start("code")), match["code"])
        for match in BLOCK.finditer(text)
        if match["language"] == language
    ]


@named
def test_examples(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "experiments").symlink_to(EXPERIMENTS)
    torch.manual_seed(0)
    # Readers bring a model and their tokens. One namespace for all blocks: they are read in order.
    model = hf.LlamaForCausalLM(hf.LlamaConfig(**tiny_models.SETTINGS)).eval()
    names: dict[str, object] = {
        "model": model,
        "tokenizer": tiny_models.tokenizer(),
        "tokens": torch.randint(32, 127, (1, 256)),
    }
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    report = list[str]()
    for line, code in _blocks(path, "python"):
        if ">>>" in code:
            test = doctest.DocTestParser().get_doctest(code, names, path.name, str(path), line)
            runner.run(test, out=report.append, clear_globs=False)
            names = test.globs
        else:
            exec(compile("\n" * line + code, str(path), "exec"), names)
    assert not runner.summarize(verbose=False).failed, "".join(report)


@named
def test_linked_files_exist(path: Path) -> None:
    for target in re.findall(r"\]\((?!#|https?:)([^)#]+)", path.read_text(encoding="utf-8")):
        assert (path.parent / target).exists(), target


@named
def test_commands_exist(path: Path) -> None:
    targets = re.findall(
        r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE
    )
    lines = "".join(code for _, code in _blocks(path, "console")).replace("\\\n", " ")
    # What a document names in running text counts as well.
    text = path.read_text(encoding="utf-8")
    spans = re.findall(r"`((?:sharpmax|make|python -m experiments)[^`…]*)`", text)
    typed = [line.removeprefix("$ ") for line in lines.splitlines() if line.startswith("$ ")]
    for command in [*typed, *(" ".join(span.split()) for span in spans)]:
        words = shlex.split(command, comments=True)
        words[0] = Path(words[0]).name
        if words[0] == "make":
            assert words[1] in targets, command
        elif words[:2] == ["python", "-m"] and words[2].startswith("experiments."):
            spec = importlib.util.find_spec(words[2])
            assert spec is not None, command
            _check_options(_application(words[2]), words[3:], command)
        elif words[0] == "sharpmax" and len(words) > 1:
            _check_options(importlib.import_module("sharpmax.cli._app").app, words[1:], command)


def _application(module: str) -> object | None:
    if importlib.util.find_spec(f"{module}.__main__") is None:
        return None
    return vars(importlib.import_module(f"{module}.__main__")).get("app")


def _check_options(app: object | None, words: list[str], command: str) -> None:
    """Check that a command and each of its options exist."""
    if app is None or not words or words[0].startswith("-"):
        return
    import typer.main

    group = typer.main.get_command(app)
    assert words[0] in group.commands, command
    known = {
        option
        for parameter in group.commands[words[0]].params
        for option in [*parameter.opts, *parameter.secondary_opts]
    }
    asked = {word.split("=")[0] for word in words[1:] if word.startswith("--")}
    assert asked <= known | {"--help"}, f"{command}: {sorted(asked - known)}"


def _tables(name: str) -> ModuleType:
    return importlib.import_module(f"experiments.{name}.tables")


@pytest.mark.parametrize("name", NAMES)
def test_tables_are_those_of_the_results(name: str) -> None:
    module, results = _tables(name), EXPERIMENTS / name / "results"
    tables, used = module.tables(results), ""
    for path in documents():
        text = path.read_text(encoding="utf-8")
        assert fill(text, tables) == text, f"{path}: `make tables` brings it up to date"
        used += text
    for marker in tables:
        assert f"<!-- table: {marker} -->" in used
    for file, text in (module.pages(results) if hasattr(module, "pages") else {}).items():
        assert (results / file).read_text(encoding="utf-8") == text.rstrip("\n") + "\n", file


def test_every_marker_has_its_table() -> None:
    known = {
        marker for name in NAMES for marker in _tables(name).tables(EXPERIMENTS / name / "results")
    }
    for path in documents():
        markers = set(re.findall(r"<!-- table: ([\w-]+) -->", path.read_text(encoding="utf-8")))
        assert markers <= known, path


@named
def test_tables_are_short(path: Path) -> None:
    rows = 0
    for line in path.read_text(encoding="utf-8").splitlines():
        rows = rows + 1 if line.startswith("|") else 0
        # A header and a rule above the rows; the map of rooms is not a table of results.
        assert rows <= LONGEST_TABLE + 2 or path.name == "CONTRIBUTING.md", line


@named
def test_lines_are_wrapped(path: Path) -> None:
    inside = False
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        inside = line.startswith("<!-- table") or (inside and not line.startswith("<!-- end"))
        wrapped = len(line) <= 100 or inside or line.startswith(("|", "$ ", "!["))
        assert wrapped, f"{path.name}:{number}: {len(line)} characters"
