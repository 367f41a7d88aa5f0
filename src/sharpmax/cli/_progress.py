"""Progress bars, and silence from libraries that report on their own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from rich import progress
from rich.console import Console
from rich.progress import TaskID

_LINES = 20
"""Lines per bar where the output is a file."""


def say(console: Console, line: str) -> None:
    """Print a line as it is."""
    console.print(line, soft_wrap=True, highlight=False, markup=False)


class Bars(progress.Progress):
    """Show progress: bars on a terminal, about 20 lines per bar in a file.

    Without `auto_refresh` no thread redraws the bars, only each step: turn it off while times are
    measured. `transient` bars disappear at the end.
    """

    def __init__(
        self, console: Console, *, transient: bool = False, auto_refresh: bool = True
    ) -> None:
        self._redraw = not auto_refresh
        super().__init__(
            progress.TextColumn("{task.description}", markup=False),
            progress.BarColumn(bar_width=20),
            progress.MofNCompleteColumn(),
            progress.TimeElapsedColumn(),
            progress.TimeRemainingColumn(),
            progress.TextColumn("{task.fields[note]}", markup=False),
            console=console,
            transient=transient,
            auto_refresh=auto_refresh,
            # In a file the lines of `step` replace the bars, which would only be drawn at the end.
            disable=not console.is_terminal,
        )

    def add(self, name: str, total: float) -> TaskID:
        """Add a bar that `total` steps complete."""
        return self.add_task(name, total=total, note="", written=0)

    def step(
        self,
        bar: TaskID,
        completed: float,
        note: str = "",
        name: str | None = None,
        total: float | None = None,
    ) -> None:
        """Move a bar, with a note beside it; a name or total of None keeps the present one."""
        shown: dict[str, Any] = {"description": name, "total": total, "note": note}
        self.update(bar, completed=completed, refresh=self._redraw, **shown)
        task = self.tasks[bar]
        part = int(_LINES * completed / (task.total or 1))
        if part > task.fields["written"]:
            task.fields["written"] = part
            done = f"{completed:,}" if completed == int(completed) else f"{completed:,.1f}"
            line = f"{task.description}: {done} of {task.total:,}"
            self.say(f"{line}, {note}" if note else line)

    def say(self, line: str) -> None:
        """Write a line where the output is a file; a terminal shows the bars instead."""
        if not self.console.is_terminal:
            say(self.console, line)


@contextmanager
def quiet(bars: bool) -> Iterator[None]:
    """Silence transformers and the hub, but for progress bars, as of a download, if `bars`."""
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
