from __future__ import annotations

from rich.console import Console

from sharpmax.report._page.tables import Table


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
