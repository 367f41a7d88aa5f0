"""Table of the engines: accuracy plain and folded, and agreement with the sharpened model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.common.timing import read_benchmark
from sharpmax._resampling import clustered_interval
from sharpmax.report._page.tables import Table
from sharpmax.report.calibration.tables import change

__all__ = ["STATES", "states", "table", "tables"]

Record = dict[str, Any]
STATES = {"plain": "plain", "sharpened": "sharpened, not folded", "folded": "folded"}
"""What is served, in the order of the table."""

FORMATS = {
    "transformers": "checkpoint, float32",
    "onnxruntime": "ONNX, float32",
    "llama.cpp": "GGUF, Q4_1",
}


def tables(results: Path) -> dict[str, str]:
    """Make the table of the documents from `serving.json`."""
    return {"serving": table(read_benchmark(results / "serving.json")).to_markdown(100)}


def states(result: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the pairs of engine and model that were asked, in the order of the table."""
    asked = {(each["engine"], each["model"]) for each in result["records"]}
    wanted = [(engine, model) for engine in FORMATS for model in STATES]
    return [each for each in wanted if each in asked]


def table(result: dict[str, Any]) -> Table:
    """Show one row per engine and model: accuracy by task, and what folding changes."""
    records = result["records"]
    cells = list(dict.fromkeys((each["task"], each["length"]) for each in records))
    rows = []
    for engine, model in states(result):
        own = _of(records, engine, model)
        accuracy = [
            f"{100 * sum(own[cell]['correct']) / len(own[cell]['correct']):.0f}"
            if cell in own else ""
            for cell in cells
        ]  # fmt: skip
        plain, sharp = (
            _of(records, engine, "plain"), _of(records, "transformers", "sharpened")
        )  # fmt: skip
        compared = "" if model == "plain" else _change(own, plain)
        alike = "" if model != "folded" else _agreement(own, sharp)
        rows.append([engine, FORMATS[engine], STATES[model], *accuracy, compared, alike])
    settings = result["settings"]
    header = [
        "engine", "file", "model", *(f"{task}, {length:,}, %" for task, length in cells),
        "change, points", "same as sharpened",
    ]  # fmt: skip
    caption = (
        f"{settings['questions']} questions in {settings['contexts']} contexts per column, the same"
        " for all rows. Change from the plain model in the same engine, over all columns, with a"
        " 95% interval from resampled contexts. The last column counts questions on which the"
        " folded model and the sharpened model in PyTorch are both right or both wrong."
    )
    return Table(header, rows, caption=caption)


def _of(records: Sequence[Record], engine: str, model: str) -> dict[tuple[str, int], Record]:
    return {
        (each["task"], each["length"]): each
        for each in records
        if (each["engine"], each["model"]) == (engine, model)
    }


def _pairs(ours: dict[Any, Record], theirs: dict[Any, Record]) -> list[tuple[Any, int, int]]:
    """Return the context and both results of every question that both were asked."""
    found = []
    for cell in ours.keys() & theirs.keys():
        columns = (ours[cell]["contexts"], ours[cell]["correct"], theirs[cell]["correct"])
        # A passage is one cluster for all tasks at a length, which share it.
        found += [((cell[1], c), a, b) for c, a, b in zip(*columns, strict=True)]
    return sorted(found)


def _change(ours: dict[Any, Record], plain: dict[Any, Record]) -> str:
    pairs = _pairs(ours, plain)
    if not pairs:
        return ""
    values = [a - b for _, a, b in pairs]
    interval = clustered_interval(values, [context for context, _, _ in pairs])
    return change(sum(values) / len(values), interval, False)


def _agreement(ours: dict[Any, Record], sharpened: dict[Any, Record]) -> str:
    pairs = _pairs(ours, sharpened)
    return f"{sum(a == b for _, a, b in pairs)} of {len(pairs)}" if pairs else ""
