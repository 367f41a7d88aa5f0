"""Join the other ranks if torchrun started the command; only the first rank speaks and writes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path


def first() -> bool:
    """Tell whether this process writes files: the first rank, or the only process."""
    return not several() or int(os.environ["RANK"]) == 0


def several() -> bool:
    """Tell whether torchrun, or a launcher like it, started more than one process."""
    known = {"MASTER_ADDR", "RANK", "WORLD_SIZE"} <= os.environ.keys()
    return known and int(os.environ["WORLD_SIZE"]) > 1


@contextmanager
def joined() -> Iterator[None]:
    """Share the work with the other ranks within a block, and silence all but the first."""
    if not several():
        yield
        return
    import torch.distributed as dist

    with ExitStack() as stack:
        if not dist.is_initialized():
            # Models of the command line are on the CPU.
            dist.init_process_group("gloo")
            stack.callback(dist.destroy_process_group)
        if not first():
            nothing = stack.enter_context(Path(os.devnull).open("w", encoding="utf-8"))
            stack.enter_context(redirect_stdout(nothing))
            stack.enter_context(redirect_stderr(nothing))
        yield
