from __future__ import annotations

import gc
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from experiments.common.timing import (
    Step,
    Timing,
    conditions,
    interleave,
    run_steps,
    thread_count,
    verdict,
)
from sharpmax._files import DamagedFileError, SettingsChangedError


class FakeClock:
    """A clock that only the fake calls advance."""

    def __init__(self) -> None:
        self.now = 0.0
        self.calls: list[str] = []

    def __call__(self) -> float:
        return self.now

    def taking(self, name: str, *durations: float) -> Callable[[], None]:
        """Return a call that takes these times in order, then the last one forever."""
        left = list(durations)

        def call() -> None:
            self.calls.append(name)
            self.now += left.pop(0) if len(left) > 1 else left[0]

        return call


def test_calls_take_turns() -> None:
    clock = FakeClock()
    calls = {name: clock.taking(name, 1.0) for name in "abc"}
    interleave(calls, baseline="a", seconds=0.5, least=3, clock=clock)
    assert "".join(clock.calls) == "abc" * 4, "one untimed round, then three"


def test_best_time_counts_and_the_first_call_does_not() -> None:
    clock = FakeClock()
    calls = {
        "stock": clock.taking("stock", 0.125, 4.0, 2.0, 8.0),
        "mine": clock.taking("mine", 0.125, 8.0, 1.0, 3.0),
    }
    timing = interleave(calls, baseline="stock", seconds=2.0, least=3, clock=clock)
    assert timing.best == {"stock": 2.0, "mine": 1.0}
    assert timing.ratio("mine") == 0.5


def test_cheap_calls_run_more_often_and_the_baseline_to_the_end() -> None:
    clock = FakeClock()
    calls = {
        "stock": clock.taking("stock", 0.5),
        "cheap": clock.taking("cheap", 0.125),
        "dear": clock.taking("dear", 2.0),
    }
    timing = interleave(calls, baseline="stock", seconds=2.0, least=3, clock=clock)
    assert timing.rounds == {"stock": 16, "cheap": 16, "dear": 3}


def test_rounds_and_total_time_are_limited() -> None:
    clock = FakeClock()
    calls = {"stock": clock.taking("stock", 0.001), "dear": clock.taking("dear", 100.0)}
    timing = interleave(calls, baseline="stock", seconds=1.0, least=3, most=7, clock=clock)
    assert timing.rounds == {"stock": 7, "dear": 1}


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
            interleave({"fails": fails}, baseline="fails")
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
        ({"baseline": "b"}, "^baseline: expected one of a, got 'b'"),
        ({"seconds": 0.0}, "^seconds: expected a number above 0, got 0.0"),
        ({"least": 0}, "^least: expected from 1 to most = 2000, got 0"),
        ({"least": 3, "most": 2}, "^least: expected from 1 to most = 2, got 3"),
    ],
)
def test_errors_name_the_argument(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        interleave({"a": lambda: None}, **{"baseline": "a", **arguments})


def test_no_threads_at_all() -> None:
    with (
        pytest.raises(ValueError, match=r"^count: expected at least 1 thread, got 0"),
        thread_count(0),
    ):
        pass


def test_ratio_of_a_timing() -> None:
    timing = Timing("stock", {"stock": 2.0, "mine": 3.0}, {"stock": 3, "mine": 3})
    assert timing.ratio("mine") == 1.5


class Steps:
    """Two steps, the second of which fails until `broken` is false."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.broken = True

    def plan(self) -> dict[str, Step]:
        def first() -> dict[str, list[dict[str, object]]]:
            self.ran.append("first")
            return {"records": [{"ratio": 1.0}]}

        def second() -> dict[str, list[dict[str, object]]]:
            self.ran.append("second")
            if self.broken:
                raise RuntimeError("stopped")
            return {"memory": [{"mebibytes": 2.0}]}

        return {"first": first, "second": second}


def test_a_stopped_benchmark_is_resumed(tmp_path: Path) -> None:
    path, steps = tmp_path / "new" / "benchmark.json", Steps()
    header = {"command": "run", "settings": {"threads": (1, 2)}}
    with pytest.raises(RuntimeError, match="stopped"):
        run_steps(path, header, steps.plan())
    assert json.loads(path.read_text(encoding="utf-8"))["steps"] == ["first"]
    steps.broken = False
    with pytest.raises(FileExistsError, match="--resume"):
        run_steps(path, header, steps.plan())
    told: list[tuple[int, str]] = []
    result = run_steps(
        path, header, steps.plan(), resume=True, on_step=lambda *step: told.append(step)
    )
    assert steps.ran == ["first", "second", "second"]
    assert told == [(0, "first"), (1, "second")]
    assert result == {
        "command": "run",
        "settings": {"threads": [1, 2]},
        "steps": ["first", "second"],
        "records": [{"ratio": 1.0}],
        "memory": [{"mebibytes": 2.0}],
    }
    assert json.loads(path.read_text(encoding="utf-8")) == result
    assert run_steps(path, header, steps.plan(), resume=True) == result
    with pytest.raises(SettingsChangedError, match="threads"):
        run_steps(path, {**header, "settings": {"threads": (1,)}}, steps.plan(), resume=True)


@pytest.mark.parametrize(
    "text", ["", '{"records": [', "[]", "{}", '{"records": {}}', '{"records": [], "steps": 1}']
)
def test_a_benchmark_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "benchmark.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DamagedFileError, match=r"benchmark\.json: "):
        run_steps(path, {}, {}, resume=True)


def test_conditions_are_plain_data() -> None:
    found = conditions(["numpy", "torch"])
    assert json.loads(json.dumps(found)) == found
    assert found["machine"]["vector_extension"]
    assert {"sharpmax", "python", "numpy", "torch"} == found["versions"].keys()


def test_verdicts() -> None:
    assert verdict(1.0, 1.0) == verdict(1.0, 1.0, at_least=True) == "met"
    assert verdict(1.2, 1.0) == verdict(0.8, 1.0, at_least=True) == "missed by 20.0%"
