from __future__ import annotations

from pathlib import Path

import pytest

from experiments.common.documents import documents, fill, fill_documents, write_pages

MARKED = "Before\n<!-- table: {} -->\nold\n<!-- end -->\nafter\n"


def test_other_markers_are_left() -> None:
    text = MARKED.format("speed") + MARKED.format("size")
    filled = fill(text, {"speed": "| new |"})
    assert filled == MARKED.format("speed").replace("old", "| new |") + MARKED.format("size")
    assert fill(filled, {"speed": "| new |"}) == filled


def test_tables_go_into_all_documents(tmp_path: Path) -> None:
    for name in ("README.md", "docs/guide.md", "experiments/one/README.md", "notes.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(MARKED.format("speed"), encoding="utf-8")
    (tmp_path / "docs/other.md").write_text("no table", encoding="utf-8")
    filled = fill_documents({"speed": "new"}, tmp_path)
    assert [path.relative_to(tmp_path).as_posix() for path in filled] == [
        "README.md",
        "docs/guide.md",
        "experiments/one/README.md",
    ]
    assert "new" in (tmp_path / "docs/guide.md").read_text(encoding="utf-8")
    assert "old" in (tmp_path / "notes.md").read_text(encoding="utf-8")


def test_a_table_that_no_document_has(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text(MARKED.format("speed"), encoding="utf-8")
    with pytest.raises(LookupError, match="no document has a marker for size"):
        fill_documents({"speed": "new", "size": "new"}, tmp_path)


def test_pages(tmp_path: Path) -> None:
    (path,) = write_pages(tmp_path, {"long.md": "# Long\n\n"})
    assert path.read_text(encoding="utf-8") == "# Long\n"


def test_the_documents_of_the_repository() -> None:
    names = {path.name for path in documents()}
    assert "README.md" in names
