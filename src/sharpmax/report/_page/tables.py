"""Tables of text for the terminal, for HTML and for Markdown documents."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["Table", "listed", "numbered", "pieces", "plain", "quoted", "signed", "wrapped"]

_MARKS = re.compile(r"(?P<plain>\\[^\w\s])|\*\*(?P<bold>(?:\\.|[^\\])+?)\*\*|`(?P<code>[^`]+)`")


@dataclass(frozen=True)
class Table:
    """Hold a table of text: the names of its columns, its rows, and what is above and below it.

    Texts are Markdown with bold and code. What comes from a file or a user goes through `plain`.
    """

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
        from rich.table import Table as RichTable
        from rich.text import Text

        def text(content: str) -> Text:
            found = Text()
            for style, part in pieces(content):
                found.append(f"`{part}`" if style == "code" else part, "bold" * (style == "bold"))
            return found

        table = RichTable(
            box=box.SIMPLE_HEAD, title=self.title or None, title_justify="left", title_style="bold",
            caption=text(self.caption) if self.caption else None, caption_justify="left",
            padding=(0, 1, 0, 0),
        )  # fmt: skip
        for column, name in enumerate(self.header):
            # Fold long cells in a narrow terminal: an ellipsis would hide figures.
            justify: Literal["left", "right"] = "left" if column < self.words else "right"
            table.add_column(text(name), justify=justify, overflow="fold")
        for row in self.rows:
            table.add_row(*map(text, row))
        return table


def plain(text: str) -> str:
    r"""Escape a text in which Markdown has no meaning, such as the name of a model or a file.

    Example:
        >>> print(plain("a_b **c**"))
        a\_b \*\*c\*\*
    """
    return re.sub(r"([\\`*_\[\]<>&~$#!])", r"\\\1", " ".join(text.split()))


def quoted(text: str) -> str:
    """Return a text as code, if it has no marks of code itself."""
    return plain(text) if "`" in text else f"`{text}`"


def pieces(content: str) -> Iterator[tuple[str, str]]:
    """Split the Markdown of a table into pieces of a style: "", "bold" or "code".

    Example:
        >>> list(pieces("**best** of `all`"))
        [('bold', 'best'), ('', ' of '), ('code', 'all')]
    """
    start = 0
    for found in _MARKS.finditer(content):
        if found.start() > start:
            yield "", content[start : found.start()]
        style, part = str(found.lastgroup), str(found[str(found.lastgroup)])
        if style != "code":
            part = re.sub(r"\\([^\w\s])", r"\1", part)
        yield "" if style == "plain" else style, part
        start = found.end()
    if start < len(content):
        yield "", content[start:]


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
