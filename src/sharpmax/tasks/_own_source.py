"""A text that is available wherever sharpmax is installed: its own source code."""

from __future__ import annotations

from pathlib import Path

__all__ = ["own_source"]


def own_source() -> str:
    """Return the source code of sharpmax, with its files in alphabetical order.

    It is English and Python, more than a hundred thousand tokens, and too recent for the training
    data of most models.

    Example:
        >>> "def own_source() -> str:" in own_source()
        True
    """
    root = Path(__file__).parent.parent
    files = sorted(root.rglob("*.py"), key=lambda path: path.relative_to(root).as_posix())
    return "\n".join(file.read_text(encoding="utf-8") for file in files)
