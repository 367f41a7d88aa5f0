"""Tables of results, for the terminal and for documents, where they are filled in between marks."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Table", "fill"]

_BLOCK = re.compile(
    r"(?P<begin><!-- table: (?P<name>[\w-]+) -->\n)(?P<body>.*?)(?P<end><!-- end -->)", re.DOTALL
)

_BOLD = re.compile(r"\*\*(.+?)\*\*")


@dataclass(frozen=True)
class Table:
    """A table of text.

    Attributes:
        header: What the columns are.
        rows: The rows, as many cells each as there are columns.
        title: Of the whole, or nothing.
        caption: What has to be said below it, or nothing.
        words: How many columns from the left are words; the others are numbers.

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

    def to_markdown(self) -> str:
        """The table in Markdown, the caption as a paragraph below it."""
        rule = ["---" if column < self.words else "--:" for column in range(len(self.header))]
        lines = [_line(self.header), "|" + "|".join(rule) + "|", *map(_line, self.rows)]
        return "\n".join([*lines, "", self.caption] if self.caption else lines)

    def to_rich(self) -> Any:
        """The table for a terminal."""
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
            table.add_column(name, justify="left" if column < self.words else "right")
        for row in self.rows:
            table.add_row(*(_BOLD.sub(r"[bold]\1[/bold]", escape(cell)) for cell in row))
        return table


def fill(document: str, tables: Mapping[str, str]) -> str:
    r"""Put tables into a document, each between the marks that bear its name.

    What a document has between `<!-- table: name -->` and `<!-- end -->` is replaced.

    Args:
        document: The text.
        tables: Markdown by name.

    Returns:
        The new text.

    Raises:
        ValueError: The document asks for a table that there is not.

    Example:
        >>> fill("<!-- table: speed -->\nold\n<!-- end -->", {"speed": "new"})
        '<!-- table: speed -->\nnew\n<!-- end -->'
    """

    def replaced(match: re.Match[str]) -> str:
        if match["name"] not in tables:
            expected = ", ".join(tables)
            raise ValueError(f"table: expected one of {expected}, got {match['name']!r}")
        return f"{match['begin']}{tables[match['name']]}\n{match['end']}"

    return _BLOCK.sub(replaced, document)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
