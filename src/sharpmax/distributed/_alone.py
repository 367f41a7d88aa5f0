"""Run a part of a program on this rank alone, although there are others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_is_alone: ContextVar[bool] = ContextVar("sharpmax_alone", default=False)


@contextmanager
def alone() -> Iterator[None]:
    """Keep `diagnose`, `calibrate` and `evaluate` from sharing their inputs over ranks in a block.

    Without it they are collective calls where there is a process group: every rank has to make
    them. A model whose weights are spread over ranks still needs all ranks.

    Example:
        >>> import sharpmax
        >>> with sharpmax.distributed.alone():
        ...     pass  # only this rank calls sharpmax.evaluate
    """
    token = _is_alone.set(True)
    try:
        yield
    finally:
        _is_alone.reset(token)


def is_alone() -> bool:
    """Tell whether this rank works alone."""
    return _is_alone.get()
