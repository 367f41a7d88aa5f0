"""Fill the tables of the documents from `experiments/*/results`.

    python -m experiments.common.documents

fills all of them; `python -m experiments.NAME tables` fills those of one experiment. A document has
a table between `<!-- table: NAME -->` and `<!-- end -->`.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from pathlib import Path

__all__ = ["EXPERIMENTS", "documents", "fill", "fill_documents", "write_pages"]

EXPERIMENTS = Path(__file__).parent.parent
"""Folder of the experiments."""

_BLOCK = re.compile(
    r"(?P<begin><!-- table: (?P<name>[\w-]+) -->\n)(?P<body>.*?)(?P<end><!-- end -->)", re.DOTALL
)


def fill(document: str, tables: Mapping[str, str]) -> str:
    r"""Put tables into a document, each between the markers with its name.

    Args:
        document: The text.
        tables: Markdown by name. Markers with other names are left as they are.

    Returns:
        The new text.

    Example:
        >>> fill("<!-- table: speed -->\nold\n<!-- end -->", {"speed": "new"})
        '<!-- table: speed -->\nnew\n<!-- end -->'
    """
    return _BLOCK.sub(
        lambda match: (
            f"{match['begin']}{tables[match['name']]}\n{match['end']}"
            if match["name"] in tables
            else match[0]
        ),
        document,
    )


def documents(root: Path = EXPERIMENTS.parent) -> list[Path]:
    """Return the documents that may have tables, of a repository."""
    patterns = ("README.md", "docs/*.md", "experiments/*/README.md")
    return sorted(path for pattern in patterns for path in root.glob(pattern))


def fill_documents(tables: Mapping[str, str], root: Path = EXPERIMENTS.parent) -> list[Path]:
    """Put tables into all documents.

    Args:
        tables: Markdown by name.
        root: Folder of the repository.

    Returns:
        The documents that have one of the tables.

    Raises:
        LookupError: No document has a marker for one of the tables.
    """
    filled, missing = [], set(tables)
    for path in documents(root):
        text = path.read_text(encoding="utf-8")
        names = {match["name"] for match in _BLOCK.finditer(text)} & tables.keys()
        if names:
            path.write_text(fill(text, tables), encoding="utf-8")
            filled.append(path)
            missing -= names
    if missing:
        raise LookupError(f"no document has a marker for {', '.join(sorted(missing))}")
    return filled


def write_pages(folder: Path, pages: Mapping[str, str]) -> list[Path]:
    """Write generated pages into a folder of results.

    Args:
        folder: The folder.
        pages: Markdown by file name.

    Returns:
        Their paths.
    """
    for name, text in pages.items():
        (folder / name).write_text(text.rstrip("\n") + "\n", encoding="utf-8")
    return [folder / name for name in pages]


def _fill_all() -> None:
    for path in sorted(EXPERIMENTS.glob("*/tables.py")):
        name = path.parent.name
        module = importlib.import_module(f"experiments.{name}.tables")
        results = path.parent / "results"
        fill_documents(module.tables(results))
        if hasattr(module, "pages"):
            write_pages(results, module.pages(results))


if __name__ == "__main__":
    _fill_all()
