"""Tables of text for the terminal, for HTML and for Markdown documents."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = ["Table", "signed", "wrapped"]

_BOLD = re.compile(r"\*\*(.+?)\*\*")


@dataclass(frozen=True)
class Table:
    """Hold a table of text.

    Attributes:
        header: Names of the columns.
        rows: The rows, with one cell per column.
        title: Title, or "".
        caption: Text below the table, or "".
        words: Number of columns, from the left, that hold words; the others hold numbers.

    Example:
        >>> print(Table(["work", "ratio"], [["decode", "0.50"]]).to_markdown())
        | work | ratio |
        |---|--:|
        | decode | 0.50 |
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    caption: str = ""
    words: int = field(default=1)

    def to_markdown(self, width: int | None = None) -> str:
        """Return the table as Markdown, with the caption as a paragraph below it.

        Args:
            width: Columns to wrap the caption at; None writes it on one line.
        """
        rule = ["---" if column < self.words else "--:" for column in range(len(self.header))]
        lines = [_line(self.header), "|" + "|".join(rule) + "|", *map(_line, self.rows)]
        caption = wrapped(self.caption, width) if width else self.caption
        return "\n".join([*lines, "", caption] if caption else lines)

    def to_rich(self) -> Any:
        """Return the table as a `rich.table.Table`, for a terminal."""
        from rich import box
        from rich.markup import escape
        from rich.table import Table as RichTable

        table = RichTable(
            box=box.SIMPLE_HEAD,
            title=self.title or None,
            title_justify="left",
            title_style="bold",
            caption=self.caption or None,
            caption_justify="left",
            padding=(0, 1, 0, 0),
        )
        for column, name in enumerate(self.header):
            # Fold long cells in a narrow terminal: an ellipsis would hide figures.
            justify: Literal["left", "right"] = "left" if column < self.words else "right"
            table.add_column(name, justify=justify, overflow="fold")
        for row in self.rows:
            table.add_row(*(_BOLD.sub(r"[bold]\1[/bold]", escape(cell)) for cell in row))
        return table


def wrapped(text: str, width: int = 100) -> str:
    """Wrap a paragraph of a document between words."""
    return textwrap.fill(text, width, break_long_words=False, break_on_hyphens=False)


def signed(value: float, digits: int) -> str:
    """Format a number with its sign, with a true minus sign.

    Example:
        >>> signed(0.0514, 2)
        '+0.05'
    """
    return f"{value:+.{digits}f}".replace("-", "\N{MINUS SIGN}")


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
