"""Check one framework: `python -m sharpmax.cli._doctor.worker torch 0 IMPL…` writes lines of JSON.

The first line says what there is. Then every step writes a line before and one after, so that the
parent knows where a crash happened, and can go on behind it.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from sharpmax._files import versions
from sharpmax.cli._doctor.problems import Problem, faults, problems

_MODULES = {"torch": "pytorch", "jax": "jax"}


def work(framework: str, start: int, wanted: list[str], write: Callable[[Any], None]) -> None:
    """Run the steps from number `start` on, and write what was found.

    Args:
        framework: "torch" or "jax".
        start: Number of the first step.
        wanted: Names of implementations; none means all.
        write: Takes plain data.
    """
    module = importlib.import_module(f"sharpmax.cli._doctor.{_MODULES[framework]}")
    ready, absent = [], {}
    for name in module.IMPLEMENTATIONS:
        if wanted and name not in wanted:
            continue
        reasons = {device: module.missing(name, device) for device in module.devices()}
        ready += [(name, device) for device, reason in reasons.items() if reason is None]
        if None not in reasons.values():
            absent[name] = "; ".join(dict.fromkeys(map(str, reasons.values())))
    steps: list[tuple[dict[str, str], Callable[[], dict[str, Any]]]] = []
    for name, device in ready:
        for problem in problems():
            step = {
                "name": f"{framework}, {name} on {device}: {problem.title}",
                "implementation": name,
                "device": device,
            }
            steps.append((step, partial(_check, module, problem, name, device)))
    for title, run in module.timings(ready).items():
        steps.append(({"name": f"time of {title}"}, partial(_timed, title, run)))
    write(
        {
            "versions": versions(module.PACKAGES),
            "facts": module.facts(),
            "notes": module.notes(ready) if hasattr(module, "notes") and not wanted else [],
            "ready": ready,
            "absent": absent,
            "steps": [step["name"] for step, _ in steps],
        }
    )
    for step, run in steps[start:]:
        write({"begin": step})
        write(step | run())


def _check(module: Any, problem: Problem, name: str, device: str) -> dict[str, Any]:
    try:
        wrong = faults(problem, module.solve(problem, name, device))
    except NotImplementedError as refusal:
        return {"verdict": "refused", "why": str(refusal)}
    except Exception as error:  # noqa: BLE001  (whatever it is, it is the finding)
        wrong = [f"{type(error).__name__}: {error}"]
    return {"verdict": "wrong" if wrong else "right", "why": "; ".join(wrong)}


def _timed(title: str, run: Callable[[], dict[str, float]]) -> dict[str, Any]:
    try:
        return {"title": title, "seconds": run()}
    except Exception as error:  # noqa: BLE001  (as above)
        return {"verdict": "wrong", "why": f"{type(error).__name__}: {error}"}


def main() -> None:
    """Do what the arguments say. What libraries print goes to the standard error."""
    lines = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def write(line: Any) -> None:
        lines.write(json.dumps(line) + "\n")
        lines.flush()

    framework, start, *wanted = sys.argv[1:]
    work(framework, int(start), wanted, write)


if __name__ == "__main__":
    main()
