"""Time several ways to do the same work in turn, step by step, into a file that can be resumed.

The speed of a machine changes from moment to moment: its clock varies, other programs come and go.
Calls that take turns meet the same moments, so their ratios can be trusted.
"""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from sharpmax._engine import Engine, in_order, run_cells
from sharpmax._files import (
    DamagedFileError,
    check_settings,
    machine,
    read_json,
    refuse_earlier,
    versions,
    write_json,
)

__all__ = [
    "Step",
    "Timing",
    "conditions",
    "interleave",
    "machine_line",
    "read_benchmark",
    "run_steps",
    "thread_count",
    "verdict",
]

Step = Callable[[], dict[str, list[dict[str, Any]]]]
"""One step of a benchmark: returns lists of records by name, such as {"records": [...]}."""


@dataclass(frozen=True)
class Timing:
    """The best time of each call over several rounds.

    Attributes:
        baseline: The call that the others are compared with.
        best: The shortest time of each call, in seconds.
        rounds: How often each call was timed.
    """

    baseline: str
    best: dict[str, float]
    rounds: dict[str, int]

    def ratio(self, name: str) -> float:
        """Return the best time of a call over the best time of the baseline."""
        return self.best[name] / self.best[self.baseline]


def interleave(
    calls: Mapping[str, Callable[[], object]],
    *,
    baseline: str,
    seconds: float = 0.6,
    least: int = 3,
    most: int = 2000,
    clock: Callable[[], float] = time.perf_counter,
) -> Timing:
    """Time calls in turn, A B C A B C, and keep the best time of each.

    Every call runs once untimed. It then takes part until it has used `seconds` in all, so cheap
    calls run more often. It runs at least `least` times, unless that takes more than ten times
    `seconds`. The baseline takes part to the end. The garbage collector is off meanwhile.

    Args:
        calls: What to time, by name.
        baseline: Name of the call that the others are compared with.
        seconds: Time that each call may use.
        least: Smallest number of timed rounds per call.
        most: Largest number of timed rounds per call.
        clock: Returns the time in seconds.

    Returns:
        The best time of each call.

    Raises:
        ValueError: A number is out of range, or the baseline is not among the calls.

    Example:
        >>> calls = {"loop": lambda: [x for x in range(99)], "list": lambda: list(range(99))}
        >>> timing = interleave(calls, baseline="list", seconds=0.001)
        >>> timing.ratio("list"), timing.rounds["loop"] >= 3
        (1.0, True)
    """
    if baseline not in calls:
        raise ValueError(f"baseline: expected one of {', '.join(calls)}, got {baseline!r}")
    if not seconds > 0:
        raise ValueError(f"seconds: expected a number above 0, got {seconds}")
    if not 1 <= least <= most:
        raise ValueError(f"least: expected from 1 to most = {most}, got {least}")

    for call in calls.values():
        call()
    best = dict.fromkeys(calls, float("inf"))
    spent = dict.fromkeys(calls, 0.0)
    rounds = dict.fromkeys(calls, 0)

    def takes_part(name: str) -> bool:
        if rounds[name] < least:
            return rounds[name] == 0 or spent[name] < 10 * seconds
        return spent[name] < seconds and rounds[name] < most

    collected = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        while names := {name for name in calls if takes_part(name)}:
            for name, call in calls.items():
                if name in names or name == baseline:
                    start = clock()
                    call()
                    took = clock() - start
                    best[name] = min(best[name], took)
                    spent[name] += took
                    rounds[name] += 1
    finally:
        if collected:
            gc.enable()
    return Timing(baseline, best, rounds)


@contextmanager
def thread_count(count: int) -> Iterator[None]:
    """Let PyTorch use this many threads, and restore the earlier number afterwards.

    Args:
        count: Number of threads, at least 1.

    Raises:
        ValueError: The count is below 1.

    Example:
        >>> with thread_count(1):
        ...     torch.get_num_threads()
        1
    """
    if count < 1:
        raise ValueError(f"count: expected at least 1 thread, got {count}")
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def conditions(packages: list[str]) -> dict[str, Any]:
    """Return what a time depends on: versions of packages and the kind of machine.

    Args:
        packages: Names of distributions, beside sharpmax and Python.
    """
    instructions = {"vector_extension": torch.backends.cpu.get_cpu_capability()}
    return {"versions": versions(packages), "machine": machine() | instructions}


def machine_line(result: Mapping[str, Any], packages: Mapping[str, str]) -> str:
    """Describe in one line the conditions that a result was measured under.

    Args:
        result: A result with what `conditions` returns.
        packages: Display names of packages to name, by distribution.

    Example:
        >>> machine = {"processor": "Abacus", "processors": 2, "vector_extension": "AVX2"}
        >>> result = {"machine": machine, "versions": {"torch": "2.6"}}
        >>> machine_line(result, {"torch": "PyTorch"})
        'Abacus, 2 processors, AVX2, PyTorch 2.6'
    """
    machine, versions = result["machine"], result["versions"]
    named = [f"{shown} {versions[package]}" for package, shown in packages.items()]
    processors = f"{machine['processors']} processors"
    return ", ".join([machine["processor"], processors, machine["vector_extension"], *named])


def verdict(value: float, target: float, *, at_least: bool = False) -> str:
    """Say whether a value meets its target, or by how much it misses it.

    Args:
        value: What was measured.
        target: The largest value allowed, or the smallest.
        at_least: Whether the target is the smallest.

    Example:
        >>> verdict(1.3, 1.25), verdict(8.5, 8.0, at_least=True)
        ('missed by 4.0%', 'met')
    """
    excess = value / target - 1
    missed = -excess if at_least else excess
    return f"missed by {missed:.1%}" if missed > 0 else "met"


def read_benchmark(path: Path) -> dict[str, Any]:
    """Read what `run_steps` wrote, or a profile.

    Raises:
        DamagedFileError: The file is truncated or has another format.
    """
    result = read_json(path)
    found = result if isinstance(result, dict) else {}
    # A profile has no steps and no memory.
    lists = [found.get("records"), found.get("steps", []), found.get("memory", [])]
    if not all(isinstance(each, list) for each in lists):
        raise DamagedFileError(
            f"{path}: expected records, steps and memory of a benchmark as lists; run the command"
            " that made the file again"
        )
    return found


def run_steps(
    path: Path,
    header: Mapping[str, Any],
    steps: Mapping[str, Step],
    *,
    resume: bool = False,
    on_step: Callable[[int, str], None] = lambda *_: None,
    engine: Engine = "local",
) -> dict[str, Any]:
    """Run the steps of a benchmark and write their records to a file after each step.

    Args:
        path: The file.
        header: What the file begins with: command, versions, machine, settings.
        steps: The steps by name.
        resume: Continue the run in the file: steps that it lists are not run again.
        on_step: Called with the number of finished steps and the name of the next one.
        engine: Where the steps run. Steps that take timings run here.

    Returns:
        The content of the file.

    Raises:
        FileExistsError: The file exists, and `resume` is false.
        SettingsChangedError: The file has another header.
        DamagedFileError: The file is truncated or has another format.
    """
    plain = json.loads(json.dumps(header))
    result = {**plain, "steps": [], "records": [], "memory": []}
    if path.exists():
        if not resume:
            refuse_earlier(path.parent)
        result = read_benchmark(path)
        check_settings(result, plain, path)
    missing = [name for name in steps if name not in result["steps"]]
    numbers = {name: number for number, name in enumerate(steps)}
    for name in steps.keys() - set(missing):
        on_step(numbers[name], name)
    found = run_cells(
        partial(_run_step, steps), missing, engine=engine,
        on_message=lambda name, _: on_step(numbers[name], name),
    )  # fmt: skip
    for name, made in in_order(missing, found):
        for kind, records in made.items():
            result[kind] += records
        result["steps"].append(name)
        write_json(path, result)
    return result


def _run_step(
    steps: Mapping[str, Step], name: str, tell: Callable[[Any], None]
) -> dict[str, list[dict[str, Any]]]:
    """Say that a step begins, and run it."""
    tell(name)
    return steps[name]()
