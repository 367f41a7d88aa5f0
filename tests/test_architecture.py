"""The map of rooms in CONTRIBUTING.md is the tree, and imports follow its order."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src/sharpmax"
FRONT = {"__init__", "__main__", "py"}
"""Not rooms: the front of the package re-exports from all of them. (`py` is py.typed.)"""
LONGEST = 400


def _rows() -> list[list[str]]:
    """The rooms of each row of the map, from top to bottom, as they are written there."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = text.split("<!-- rooms -->")[1].split("<!-- end -->")[0]
    cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    return [re.findall(r"`([^`]+)`", cell) for cell in cells]


def _levels() -> dict[str, int]:
    """The level of each room of the library; a room may import rooms of lower levels and itself."""
    library = [row for row in _rows() if not row[0].startswith("experiments")]
    names = [[room.removesuffix("/").removesuffix(".py") for room in row] for row in library]
    return {room: -index for index, row in enumerate(names) for room in row}


def _imported(path: Path) -> set[str]:
    """Every module that a file imports, also inside functions and for type checking."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: a relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def _room(module: str, levels: dict[str, int]) -> str | None:
    """The room of `sharpmax.room…`; None for other packages and for the front of the package."""
    words = module.split(".")
    if words[0] != "sharpmax":
        return None
    # `from sharpmax import theory` names a room; `from sharpmax import attention` a function.
    return words[1] if len(words) > 1 and words[1] in levels else None


def test_the_map_is_the_tree() -> None:
    there = {path.name.split(".")[0] for path in PACKAGE.iterdir() if path.name != "__pycache__"}
    assert set(_levels()) == there - FRONT
    experiments = {room for row in _rows() for room in row if room.startswith("experiments/")}
    folders = [p for p in (ROOT / "experiments").iterdir() if p.is_dir() and p.name[0] not in "._"]
    assert experiments == {f"experiments/{folder.name}/" for folder in folders}


@pytest.mark.parametrize("room", sorted(_levels()))
def test_imports_point_downward(room: str) -> None:
    levels = _levels()
    folder = PACKAGE / room
    files = sorted(folder.rglob("*.py")) if folder.is_dir() else [folder.with_suffix(".py")]
    for file in files:
        for module in _imported(file):
            assert module.split(".")[0] != "experiments", f"{file}: imports {module}"
            other = _room(module, levels)
            if other is not None and other != room:
                assert levels[other] < levels[room], f"{file}: {room} imports {other}, above it"


def test_no_file_is_too_long() -> None:
    kinds = ("*.py", "*.js", "*.css", "*.html")
    files = [file for kind in kinds for file in PACKAGE.rglob(kind)]
    files += (ROOT / "experiments").rglob("*.py")
    lengths = {file: len(file.read_text(encoding="utf-8").splitlines()) for file in files}
    long = {str(file.relative_to(ROOT)): n for file, n in lengths.items() if n > LONGEST}
    assert not long


@pytest.mark.parametrize(
    "name",
    sorted(
        path.name
        for path in (ROOT / "experiments").iterdir()
        if path.is_dir() and path.name not in ("common", "__pycache__")
    ),
)
def test_every_experiment_has_the_same_shape(name: str) -> None:
    folder = ROOT / "experiments" / name
    for file in ("README.md", "__main__.py", "run.py", "tables.py", "figures.py"):
        assert (folder / file).exists(), f"{name}: {file}"
    assert any((folder / "results").iterdir())
    page = (folder / "README.md").read_text(encoding="utf-8")
    for part in ("**Question.**", "**Answer.**", "<!-- table: ", "![", "Limit"):
        assert part in page, f"{name}: README.md without {part}"
