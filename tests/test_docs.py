"""The examples in the documents are run, and what they link to exists."""

from __future__ import annotations

import doctest
import re
import runpy
from pathlib import Path

import pytest

from experiments.common.documents import fill

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted([*ROOT.glob("docs/*.md"), *ROOT.glob("benchmarks/*.md")])
BLOCK = re.compile(r"^```python\n(?P<code>.*?)^```", re.DOTALL | re.MULTILINE)

named = pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)


@named
def test_examples(path: Path) -> None:
    # One name space for all: a reader follows them from top to bottom.
    names: dict[str, object] = {}
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    text, report = path.read_text(encoding="utf-8"), list[str]()
    for match in BLOCK.finditer(text):
        line = text.count("\n", 0, match.start("code"))
        if ">>>" in match["code"]:
            test = doctest.DocTestParser().get_doctest(
                match["code"], names, path.name, str(path), line
            )
            runner.run(test, out=report.append, clear_globs=False)
            names = test.globs
        else:
            exec(compile("\n" * line + match["code"], str(path), "exec"), names)
    assert not runner.summarize(verbose=False).failed, "".join(report)


@named
def test_linked_files_exist(path: Path) -> None:
    for target in re.findall(r"\]\((?!#|https?:)([^)]+)\)", path.read_text(encoding="utf-8")):
        # What a full run writes is there once there has been one.
        if "results/" not in target or (ROOT / "results").exists():
            assert (path.parent / target).exists(), target


def test_the_tables_are_those_of_the_results() -> None:
    script = runpy.run_path(str(ROOT / "scripts/tables.py"))
    tables, used = script["tables"](), ""
    for name in script["DOCUMENTS"]:
        text = (ROOT / name).read_text(encoding="utf-8")
        assert fill(text, tables) == text, f"{name}: `make tables` brings it up to date"
        used += text
    for name in tables:
        assert f"<!-- table: {name} -->" in used
