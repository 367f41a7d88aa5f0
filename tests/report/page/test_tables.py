from __future__ import annotations

import pytest
from rich.console import Console

from sharpmax.report._page.tables import Table, fill


def test_markdown_and_terminal_have_the_same_cells() -> None:
    table = Table(["work", "ratio"], [["a|b", "0.50"]], title="Times", caption="Said below.")
    assert table.to_markdown() == "| work | ratio |\n|---|--:|\n| a\\|b | 0.50 |\n\nSaid below."
    console = Console(width=60)
    with console.capture() as captured:
        console.print(table.to_rich())
    shown = captured.get()
    for said in ("Times", "a|b", "0.50", "Said below."):
        assert said in shown


def test_captions_are_wrapped_between_words() -> None:
    table = Table(["n"], [["1"]], caption="one two-three four")
    assert table.to_markdown(width=10).endswith("| 1 |\n\none\ntwo-three\nfour")


def test_only_what_is_between_the_marks_is_replaced() -> None:
    document = "before\n<!-- table: speed -->\nold\nlines\n<!-- end -->\nafter <!-- end -->\n"
    filled = fill(document, {"speed": "| new |"})
    assert filled == "before\n<!-- table: speed -->\n| new |\n<!-- end -->\nafter <!-- end -->\n"
    assert fill(filled, {"speed": "| new |"}) == filled


def test_a_table_that_there_is_not() -> None:
    with pytest.raises(ValueError, match=r"^table: expected one of speed, got 'size'"):
        fill("<!-- table: size -->\n<!-- end -->", {"speed": ""})
