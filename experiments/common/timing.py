"""Times of several ways to do the same work, taken in turn so that they can be compared.

A machine is faster at one moment than at the next: its clock changes, other programs come and go.
Ways that are timed one after the other meet different moments; ways that take turns meet the same.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from sharpmax._extras import require

__all__ = ["Timing", "interleave", "thread_count"]


@dataclass(frozen=True)
class Timing:
    """The best time of each way, of a number of rounds.

    Attributes:
        peer: The way that the others are compared with.
        best: The shortest time of each way, in seconds.
        rounds: How often each way was timed.
    """

    peer: str
    best: dict[str, float]
    rounds: dict[str, int]

    def ratio(self, name: str, to: str | None = None) -> float:
        """How many times as long as another a way takes.

        Args:
            name: The way.
            to: The other; None is the peer.

        Returns:
            Best time of the one over best time of the other.
        """
        return self.best[name] / self.best[self.peer if to is None else to]


def interleave(
    callables: Mapping[str, Callable[[], object]],
    *,
    peer: str,
    seconds: float = 0.6,
    least: int = 3,
    most: int = 2000,
    clock: Callable[[], float] = time.perf_counter,
) -> Timing:
    """Time callables in turn, A B C A B C, and keep the best of each.

    Each is called once before, untimed. A callable then takes part until it has been timed for
    `seconds` in all, so that cheap ones run more often, and at least `least` times, unless that
    would take more than ten times `seconds`. The peer stays until all the others have left. The
    garbage collector is off meanwhile.

    Args:
        callables: What to time, by name.
        peer: Name of the one that the others are compared with.
        seconds: The time that each may use.
        least: How often each is timed at least.
        most: How often each is timed at most.
        clock: Gives the time in seconds.

    Returns:
        The best time of each.

    Raises:
        ValueError: A number is out of its range, or the peer is not among the callables.

    Example:
        >>> ways = {"loop": lambda: [x for x in range(99)], "list": lambda: list(range(99))}
        >>> timing = interleave(ways, peer="list", seconds=0.001)
        >>> timing.ratio("list"), timing.rounds["loop"] >= 3
        (1.0, True)
    """
    if peer not in callables:
        raise ValueError(f"peer: expected one of {', '.join(callables)}, got {peer!r}")
    if not seconds > 0:
        raise ValueError(f"seconds: expected a number above 0, got {seconds}")
    if not 1 <= least <= most:
        raise ValueError(f"least: expected from 1 to most = {most}, got {least}")

    for call in callables.values():
        call()
    best = dict.fromkeys(callables, float("inf"))
    spent = dict.fromkeys(callables, 0.0)
    rounds = dict.fromkeys(callables, 0)

    def goes_on(name: str) -> bool:
        if rounds[name] == 0:
            return True
        if rounds[name] < least:
            return spent[name] < 10 * seconds
        return spent[name] < seconds and rounds[name] < most

    with _collector_off():
        while taking_part := {name for name in callables if goes_on(name)}:
            for name, call in callables.items():
                if name in taking_part or name == peer:
                    start = clock()
                    call()
                    took = clock() - start
                    best[name] = min(best[name], took)
                    spent[name] += took
                    rounds[name] += 1
    return Timing(peer, best, rounds)


@contextmanager
def thread_count(count: int) -> Iterator[None]:
    """Let PyTorch use this many threads, and restore what was.

    Args:
        count: Number of threads, at least 1.

    Raises:
        MissingExtraError: PyTorch is not installed.
        ValueError: The count is below 1.

    Example:
        >>> import torch
        >>> with thread_count(1):
        ...     torch.get_num_threads()
        1
    """
    if count < 1:
        raise ValueError(f"count: expected at least 1 thread, got {count}")
    torch = require("torch", extra="torch", what="timing attention")
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _collector_off() -> Iterator[None]:
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
