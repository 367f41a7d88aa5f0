"""The notebooks run, and print what is kept in them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).parent.parent
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
NOTEBOOKS = sorted((ROOT / "docs/notebooks").glob("*.ipynb"))
POINTS = 12
"""Accuracies are of 64 questions at least, and a training ends elsewhere on another processor."""


def _printed(path: Path) -> str:
    """What the cells print, and the places of pictures."""
    notebook = nbformat.read(path, as_version=4)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    # One print may arrive in several parts.
    return "".join(output.get("text") or output["data"]["text/plain"] for output in outputs)


def test_all_are_there() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["dispersion", "hugging_face", "training"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_prints_what_is_kept(path: Path, tmp_path: Path) -> None:
    command = [sys.executable, "scripts/run_notebooks.py", "--output", str(tmp_path), path.stem]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    kept, found = _printed(path), _printed(tmp_path / path.name)
    assert NUMBER.sub("#", found).split() == NUMBER.sub("#", kept).split()
    for before, after in zip(kept.split(), found.split(), strict=True):
        # Nothing is random in the first one.
        tolerance = 0.0 if path.stem == "dispersion" else POINTS if "%" in before else 0.5
        for old, new in zip(NUMBER.findall(before), NUMBER.findall(after), strict=True):
            value = float(old.replace(",", ""))
            assert float(new.replace(",", "")) == pytest.approx(value, rel=1e-4, abs=tolerance)
