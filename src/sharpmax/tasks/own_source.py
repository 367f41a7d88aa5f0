"""A text that is there wherever sharpmax is: its own source code."""

from __future__ import annotations

from pathlib import Path

__all__ = ["own_source"]


def own_source() -> str:
    """The source code of sharpmax, all files one after another in the order of their names.

    English and Python by turns, some hundred thousand tokens, and in no model's training data that
    is older than it.

    Example:
        >>> "def own_source() -> str:" in own_source()
        True
    """
    root = Path(__file__).parent.parent
    files = sorted(root.rglob("*.py"), key=lambda path: path.relative_to(root).as_posix())
    return "\n".join(file.read_text(encoding="utf-8") for file in files)
