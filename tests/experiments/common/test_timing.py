from __future__ import annotations

import gc
from collections.abc import Callable

import pytest
import torch

from experiments.common.timing import Timing, interleave, thread_count


class FakeClock:
    """Time that passes only when a fake callable says so."""

    def __init__(self) -> None:
        self.now = 0.0
        self.calls: list[str] = []

    def __call__(self) -> float:
        return self.now

    def taking(self, name: str, *durations: float) -> Callable[[], None]:
        """A callable that takes these times one after the other, then the last for ever."""
        left = list(durations)

        def call() -> None:
            self.calls.append(name)
            self.now += left.pop(0) if len(left) > 1 else left[0]

        return call


def test_they_take_turns() -> None:
    clock = FakeClock()
    ways = {name: clock.taking(name, 1.0) for name in "abc"}
    interleave(ways, peer="a", seconds=0.5, least=3, clock=clock)
    assert "".join(clock.calls) == "abc" * 4, "one round before, then three"


def test_the_best_counts_and_the_first_call_does_not() -> None:
    clock = FakeClock()
    ways = {
        "peer": clock.taking("peer", 0.125, 4.0, 2.0, 8.0),
        "mine": clock.taking("mine", 0.125, 8.0, 1.0, 3.0),
    }
    timing = interleave(ways, peer="peer", seconds=2.0, least=3, clock=clock)
    assert timing.best == {"peer": 2.0, "mine": 1.0}
    assert timing.ratio("mine") == 0.5
    assert timing.ratio("peer", to="mine") == 2.0


def test_cheap_ones_run_more_often_and_the_peer_stays_to_the_end() -> None:
    clock = FakeClock()
    ways = {
        "peer": clock.taking("peer", 0.5),
        "cheap": clock.taking("cheap", 0.125),
        "dear": clock.taking("dear", 2.0),
    }
    timing = interleave(ways, peer="peer", seconds=2.0, least=3, clock=clock)
    assert timing.rounds == {"peer": 16, "cheap": 16, "dear": 3}


def test_there_is_a_largest_number_of_rounds_and_a_largest_price() -> None:
    clock = FakeClock()
    ways = {"peer": clock.taking("peer", 0.001), "dear": clock.taking("dear", 100.0)}
    timing = interleave(ways, peer="peer", seconds=1.0, least=3, most=7, clock=clock)
    assert timing.rounds == {"peer": 7, "dear": 1}


@pytest.mark.parametrize("was_on", [True, False])
def test_the_garbage_collector_is_off_meanwhile_and_then_as_before(was_on: bool) -> None:
    seen = []

    def fails() -> None:
        seen.append(gc.isenabled())
        if len(seen) > 1:
            raise RuntimeError("in the way")

    before = gc.isenabled()
    (gc.enable if was_on else gc.disable)()
    try:
        with pytest.raises(RuntimeError, match="in the way"):
            interleave({"fails": fails}, peer="fails")
        assert gc.isenabled() == was_on
    finally:
        (gc.enable if before else gc.disable)()
    assert seen == [was_on, False]


def test_threads_are_restored() -> None:
    before = torch.get_num_threads()
    seen = []

    def fails() -> None:
        with thread_count(before + 1):
            seen.append(torch.get_num_threads())
            raise RuntimeError("in the way")

    with pytest.raises(RuntimeError, match="in the way"):
        fails()
    assert seen == [before + 1]
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"peer": "b"}, "^peer: expected one of a, got 'b'"),
        ({"seconds": 0.0}, "^seconds: expected a number above 0, got 0.0"),
        ({"least": 0}, "^least: expected from 1 to most = 2000, got 0"),
        ({"least": 3, "most": 2}, "^least: expected from 1 to most = 2, got 3"),
    ],
)
def test_errors_name_the_argument(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        interleave({"a": lambda: None}, **{"peer": "a", **arguments})


def test_no_threads_at_all() -> None:
    with (
        pytest.raises(ValueError, match=r"^count: expected at least 1 thread, got 0"),
        thread_count(0),
    ):
        pass


def test_a_timing_is_plain() -> None:
    timing = Timing("peer", {"peer": 2.0, "mine": 3.0}, {"peer": 3, "mine": 3})
    assert timing.ratio("mine") == 1.5
