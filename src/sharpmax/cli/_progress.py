"""Progress bars of trainings, and quiet where others would speak."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID

__all__ = ["Bars", "quiet"]


class Bars:
    """Progress bars of trainings, each with a note; where no bar can move, lines.

    Args:
        console: Where to draw.
    """

    def __init__(self, console: Console) -> None:
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        self._console = console
        self._names: dict[TaskID, str] = {}
        self._said: dict[TaskID, int] = {}
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=console,
        )

    def add(self, name: str, total: int) -> TaskID:
        """A further bar; gives its number."""
        bar = self.progress.add_task(name, total=total, note="")
        self._names[bar], self._said[bar] = name, 0
        return bar

    def step(self, bar: TaskID, step: int, steps: int, note: str) -> None:
        """Move the bar of a training. In a file, say so every twentieth of the way."""
        self.progress.update(bar, completed=step, note=note)
        if step * 20 // steps > self._said[bar]:
            self._said[bar] = step * 20 // steps
            self.say(f"{self._names[bar]}: step {step:,} of {steps:,}, {note}")

    def say(self, line: str) -> None:
        """A line for a file; a terminal has the bars."""
        if not self._console.is_terminal:
            self._console.print(line, highlight=False)


@contextmanager
def quiet(bars: bool) -> Iterator[None]:
    """No remarks of transformers and the hub while a model is loaded or saved.

    Args:
        bars: Whether their progress bars are shown, as for a download.
    """
    from huggingface_hub.utils import logging as hub_logging
    from transformers import modeling_gguf_pytorch_utils as gguf_files
    from transformers.utils import logging as library_logging

    logging: Any = library_logging
    gguf: Any = gguf_files
    before = [(each, each.get_verbosity()) for each in (logging, hub_logging)]
    shown = logging.is_progress_bar_enabled()
    for each, _ in before:
        each.set_verbosity_error()
    # The bar of GGUF files does not ask whether bars are shown.
    bar_of_gguf = getattr(gguf, "tqdm", None)
    if not bars:
        logging.disable_progress_bar()
        if bar_of_gguf is not None:
            gguf.tqdm = partial(bar_of_gguf, disable=True)
    try:
        yield
    finally:
        for each, level in before:
            each.set_verbosity(level)
        if shown:
            logging.enable_progress_bar()
        if bar_of_gguf is not None:
            gguf.tqdm = bar_of_gguf
