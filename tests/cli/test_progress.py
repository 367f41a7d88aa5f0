from __future__ import annotations

import io

from rich.console import Console

from sharpmax.cli._progress import Bars


def test_in_a_file_a_bar_is_about_twenty_lines() -> None:
    file = io.StringIO()
    with Bars(Console(file=file)) as bars:
        bar = bars.add("train", 1000)
        for step in range(1001):
            bars.step(bar, step, f"loss {step}")
        bars.step(bar, 1000, "done again")
        bars.say("[kept] as it is")
    lines = file.getvalue().splitlines()
    assert lines[0] == "train: 50 of 1,000, loss 50"
    assert lines[19:] == ["train: 1,000 of 1,000, loss 1000", "[kept] as it is"]


def test_a_bar_can_change_its_name_and_end_between_steps() -> None:
    file = io.StringIO()
    with Bars(Console(file=file)) as bars:
        bar = bars.add("read", 2)
        bars.step(bar, 0.5, name="write")
    assert file.getvalue() == "write: 0.5 of 2\n"


def test_on_a_terminal_there_are_bars_and_no_lines() -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=120, color_system=None)
    with Bars(console, auto_refresh=False) as bars:
        bars.step(bars.add("train", 10), 5, "loss 0.5")
        bars.say("for files")
    said = file.getvalue()
    assert "train" in said
    assert "5/10" in said
    assert "loss 0.5" in said
    assert "for files" not in said
    assert "5 of 10" not in said
