"""Progress bars, and silence from libraries that report on their own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID

__all__ = ["Bars", "quiet"]

_LINES = 20
"""Lines per bar where the output is a file."""


class Bars:
    """Show progress: bars on a terminal, about 20 lines per bar in a file.

    Args:
        console: Where to write.
        transient: Whether the bars disappear at the end.
        auto_refresh: Whether a thread redraws the bars. Turn it off while times are measured; the
            bars are then redrawn at each step.
    """

    def __init__(
        self, console: Console, *, transient: bool = False, auto_refresh: bool = True
    ) -> None:
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        self._console = console
        self._refresh = not auto_refresh
        self._written: dict[TaskID, int] = {}
        # In a file the lines of `step` replace the bars, which would only be drawn at the end.
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=console,
            transient=transient,
            auto_refresh=auto_refresh,
            disable=not console.is_terminal,
        )

    def __enter__(self) -> Self:
        """Start to draw."""
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop drawing."""
        self._progress.stop()

    def add(self, name: str, total: float) -> TaskID:
        """Add a bar.

        Args:
            name: What it shows.
            total: How many steps complete it.

        Returns:
            The bar, for `step`.
        """
        bar = self._progress.add_task(name, total=total, note="")
        self._written[bar] = 0
        return bar

    def step(
        self,
        bar: TaskID,
        completed: float,
        note: str = "",
        name: str | None = None,
        total: float | None = None,
    ) -> None:
        """Move a bar.

        Args:
            bar: The bar, from `add`.
            completed: How many steps are complete.
            note: What to show beside it.
            name: A new name; None keeps the present one.
            total: A new total; None keeps the present one.
        """
        self._progress.update(
            bar,
            completed=completed,
            total=total,
            note=note,
            description=name,
            refresh=self._refresh,
        )
        task = next(task for task in self._progress.tasks if task.id == bar)
        part = int(_LINES * completed / (task.total or 1))
        if part > self._written[bar]:
            self._written[bar] = part
            done = f"{completed:,}" if completed == int(completed) else f"{completed:,.1f}"
            line = f"{task.description}: {done} of {task.total:,}"
            self.say(f"{line}, {note}" if note else line)

    def say(self, line: str) -> None:
        """Write a line where the output is a file; a terminal shows the bars instead."""
        if not self._console.is_terminal:
            self._console.print(line, soft_wrap=True, highlight=False, markup=False)


@contextmanager
def quiet(bars: bool) -> Iterator[None]:
    """Silence transformers and the hub while a model is loaded or saved.

    Args:
        bars: Whether to show their progress bars, as for a download.
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
    # The bar for GGUF files ignores the setting for progress bars.
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
