"""Time calls in turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping


def best_times(
    calls: Mapping[str, Callable[[], object]], finish: Callable[[], object], seconds: float = 1.0
) -> dict[str, float]:
    """Return the best time of each call, in seconds, over rounds A B C A B C.

    Args:
        calls: What to time, by name. The first run of each is not timed.
        finish: Waits until the device has done what it was given.
        seconds: How long all calls together may take, but for two rounds at least.
    """
    for call in calls.values():
        call()
    finish()
    best = dict.fromkeys(calls, float("inf"))
    started, rounds = time.perf_counter(), 0
    while rounds < 2 or time.perf_counter() - started < seconds:
        for name, call in calls.items():
            begun = time.perf_counter()
            call()
            finish()
            best[name] = min(best[name], time.perf_counter() - begun)
        rounds += 1
    return best
