"""Tables of text for the terminal, for HTML and for Markdown documents."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["Table", "listed", "numbered", "signed", "wrapped"]

_BOLD = re.compile(r"\*\*(.+?)\*\*")


@dataclass(frozen=True)
class Table:
    """Hold a table of text: the names of its columns, its rows, and what is above and below it."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    caption: str = ""
    words: int = 1  # number of columns, from the left, that hold words; the others hold numbers

    def to_markdown(self, width: int | None = None) -> str:
        """Return the table as Markdown, with the caption below it, wrapped if there is a width."""
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
            box=box.SIMPLE_HEAD, title=self.title or None, title_justify="left", title_style="bold",
            caption=self.caption or None, caption_justify="left", padding=(0, 1, 0, 0),
        )  # fmt: skip
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
    """Format a number with its sign, with a true minus sign."""
    return f"{value:+.{digits}f}".replace("-", "\N{MINUS SIGN}")


def numbered(number: int, noun: str) -> str:
    """Format a number of things: "1 head", "2 heads"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def listed(items: Iterable[str], comma: str = "") -> str:
    """Join items as in a sentence: "a, b and c"; `comma` goes before the "and" of three or more."""
    *most, last = items
    return f"{', '.join(most)}{comma if len(most) > 1 else ''} and {last}" if most else last


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
