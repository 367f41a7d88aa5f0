"""`sharpmax doctor`: what this machine has, and whether attention is right on it."""

from __future__ import annotations

import json
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import IO, Annotated, Any

import typer
from rich.console import Console

from sharpmax._extras import available
from sharpmax._files import machine, versions
from sharpmax.cli._progress import say
from sharpmax.report._page.tables import Table, numbered, plain

Record = dict[str, Any]


def doctor(
    seconds: Annotated[float, typer.Option(help="Stop after this many seconds.")] = 120.0,
    impl: Annotated[
        list[str] | None,
        typer.Option(help="Check only this implementation. Repeat the option for several."),
    ] = None,
) -> None:
    """Show what this machine has, and check every implementation of attention on it.

    Each implementation is compared with the definition in double precision, gradients included,
    and timed against PyTorch's or JAX's own attention. The report on the standard output is
    Markdown: paste it into a bug report.

    Ends with exit code 0 if every implementation that is available passed every check, and with 1
    otherwise. Takes less than a minute once the kernels are compiled.
    """
    said = Console(stderr=True)
    deadline = time.monotonic() + seconds
    findings: dict[str, list[Record]] = {}
    with said.status("Starting") as status:
        for framework in ("torch", "jax"):
            if available(framework):
                findings[framework] = []
                for line in _lines(framework, impl or [], deadline):
                    if "begin" in line:
                        status.update(line["begin"]["name"])
                    else:
                        findings[framework].append(line)
    every = [line for lines in findings.values() for line in lines]
    wrong = [line for line in every if line.get("verdict") == "wrong"]
    console = Console(soft_wrap=True)
    say(console, _report(findings))
    if not any("verdict" in line for line in every):
        say(said, "Nothing was checked: see in the report what is missing, or name no --impl.")
        raise typer.Exit(1)
    if wrong:
        say(said, f"Not well: {numbered(len(wrong), 'finding')}. Please report the text above.")
        raise typer.Exit(1)
    say(said, "All is well.")


def _lines(framework: str, wanted: list[str], deadline: float) -> Iterator[Record]:
    """Run the steps of a framework in another process, and start again behind a crash."""
    steps: list[str] = []
    start = 0
    while True:
        begun: Record | None = None
        with tempfile.TemporaryFile() as errors:
            arguments = ["-m", "sharpmax.cli._doctor.worker", framework, str(start), *wanted]
            worker = subprocess.Popen(
                [sys.executable, *arguments],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                encoding="utf-8",
            )
            lines: queue.SimpleQueue[str] = queue.SimpleQueue()
            assert worker.stdout is not None
            reader = threading.Thread(target=_read, args=(worker.stdout, lines))
            reader.start()
            try:
                while text := lines.get(timeout=max(deadline - time.monotonic(), 0.0)):
                    line = json.loads(text)
                    begun = line.get("begin")
                    if "steps" not in line or not steps:
                        yield line
                    steps = line.get("steps", steps)
                why = _end(worker.wait(), errors)
                done = begun is None
            except queue.Empty:
                left = steps[start:] if begun is None else steps[steps.index(begun["name"]) :]
                why = f"no time was left for {numbered(len(left), 'step')}: raise --seconds"
                done = True
            finally:
                worker.kill()
                worker.wait()
                reader.join()
        if why:
            yield {**(begun or {"name": f"{framework}: start"}), "verdict": "wrong", "why": why}
        if done or begun is None:
            return
        start = steps.index(begun["name"]) + 1


def _read(stream: IO[str], lines: queue.SimpleQueue[str]) -> None:
    with stream:
        for line in stream:
            lines.put(line)
    lines.put("")


def _end(code: int, errors: IO[bytes]) -> str:
    """Say how a process ended, unless it ended well."""
    if code == 0:
        return ""
    errors.seek(0)
    last = errors.read().decode(errors="replace").strip().splitlines()[-1:]
    named = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    return ": ".join([f"the process ended with {named}", *last])


def _report(findings: dict[str, list[Record]]) -> str:
    """Write the report, in Markdown."""
    found = versions([])
    facts = {name: str(value) for name, value in machine().items()}
    rows, timed, notes = list[list[str]](), list[list[str]](), list[str]()
    for framework in ("torch", "jax"):
        lines = findings.get(framework)
        if lines is None:
            rows.append([framework, "", "", "not installed"])
            continue
        for line in lines:
            if "steps" in line:
                found |= line["versions"]
                facts |= line["facts"]
                notes += [f"- note: {plain(each)}" for each in line["notes"]]
                rows += [
                    [framework, name, device, _verdict(lines, name, device)]
                    for name, device in line["ready"]
                ]
                rows += [
                    [framework, name, "", f"missing: {plain(why)}"]
                    for name, why in line["absent"].items()
                ]
            elif "seconds" in line:
                timed += _times(line)
        notes += [
            f"- {line['verdict']}: {plain(line['name'])}: {plain(line['why'])}"
            for line in lines
            if line.get("verdict") in ("wrong", "refused")
        ]
    parts = ["### sharpmax doctor", _list(found | facts)]
    parts.append(
        Table(["framework", "implementation", "device", "checks"], rows, words=4).to_markdown()
    )
    if timed:
        parts.append(
            Table(["time of a call", "implementation", "ms", "ratio"], timed, words=2).to_markdown()
        )
    parts.append("\n".join(notes))
    return "\n\n".join(part for part in parts if part)


def _list(facts: dict[str, str]) -> str:
    return "\n".join(f"- {name}: {plain(value)}" for name, value in facts.items())


def _verdict(lines: list[Record], name: str, device: str) -> str:
    verdicts = [
        line["verdict"]
        for line in lines
        if (line.get("implementation"), line.get("device")) == (name, device)
    ]
    counts = {each: verdicts.count(each) for each in ("right", "wrong", "refused")}
    return ", ".join(f"{count} {each}" for each, count in counts.items() if count) or "not checked"


def _times(line: Record) -> list[list[str]]:
    baseline = next(iter(line["seconds"].values()))
    return [
        [line["title"], name, f"{1e3 * each:.3g}", f"{each / baseline:.2f}"]
        for name, each in line["seconds"].items()
    ]
