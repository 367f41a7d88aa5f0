"""Make the tables of the benchmark of models from the file of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from experiments.common.timing import machine_line, read_benchmark, verdict
from experiments.models_speed.explorer import explorer_table
from experiments.models_speed.modules import modules_table
from sharpmax.report._page.tables import Table

__all__ = ["TITLES", "calibration_table", "compared", "memory_table", "tables", "times_table"]

TITLES = {
    "diagnose": "diagnose: time relative to a plain pass",
    "weights": "diagnose: time relative to output_attentions",
    "prefill": "sharpened prefill: speed relative to stock",
    "decode": "sharpened decoding: speed relative to stock",
}
"""Titles of the workloads, in the order of the tables."""

GROWTH_TARGET = 1.1
"""Largest growth of a small model's memory per token from its shortest input to its longest."""

FULL: dict[str, Any] = {"steps": 45, "contexts": (45, 6, 8), "windows": (90, 16, 16)}
"""The setting of the SmolLM2 experiment."""

Record = dict[str, Any]


def tables(results: Path) -> dict[str, str]:
    """Return the tables that documents may ask for.

    Args:
        results: Folder of `benchmark.json`, and of `calibration` with what `calibrate` wrote.

    Returns:
        Markdown by name.
    """
    result = read_benchmark(results / "benchmark.json")
    made = {
        "models-times": times_table(result).to_markdown(),
        "models-memory": memory_table(result).to_markdown(),
    }
    # Other commands write these.
    if calibrations := _calibrations(results):
        made["models-calibration"] = calibration_table(calibrations).to_markdown(100)
    if (path := results / "modules.json").exists():
        made["models-modules"] = modules_table(read_benchmark(path)).to_markdown()
    if (path := results / "explorer.json").exists():
        made["explorer-times"] = explorer_table(path).to_markdown(100)
    return made


def times_table(result: Record) -> Table:
    """Return one row per workload and number of threads: cost, target and verdict."""
    rows = []
    for record in sorted(result["records"], key=lambda each: list(TITLES).index(each["workload"])):
        ratio, target, at_least = compared(record), record["target"], record["bound"] == "at least"
        judged = ("", "")
        if target is not None:
            sign = "≥" if at_least else "≤"
            judged = f"{sign} {target:g}", verdict(ratio, target, at_least=at_least)
        rows.append(
            [
                TITLES[record["workload"]],
                f"{record['length']:,}",
                str(record["threads"]),
                f"{ratio:.2f}",
                judged[0],
                _rate(record["tokens_per_second"]),
                _rate(record["baseline_tokens_per_second"]),
                judged[1],
            ]
        )
    model = result["model"]
    where = machine_line(result, {"torch": "PyTorch", "transformers": "transformers"})
    return Table(
        ["workload", "tokens", "threads", "ratio", "target", "tokens/s", "baseline", "verdict"],
        rows,
        title="Cost of diagnosing and sharpening a model",
        caption=f"{model['name']}, {model['dtype']}, {model['attention']}; {where}. Written by"
        f" `{result['command']}`.",
    )


def memory_table(result: Record) -> Table:
    """Return one row per model, method and length: peak memory of a pass, beyond the model."""
    rows = [
        [
            entry["method"],
            entry["model"],
            f"{entry['length']:,}",
            f"{entry['mebibytes']:,.0f}",
            f"{1024 * entry['mebibytes'] / entry['length']:,.1f}",
        ]
        for entry in result["memory"]
    ]
    small = [entry for entry in result["memory"] if entry["model"] == "small model"]
    caption = ""
    if len(small) > 1:
        first, last = small[0], small[-1]
        per_token = [entry["mebibytes"] / entry["length"] for entry in (first, last)]
        growth = per_token[1] / per_token[0] if per_token[0] else 1.0
        caption = (
            f"Memory per token of the small model at {last['length']:,} tokens, relative to"
            f" {first['length']:,}: {growth:.2f} (target: at most {GROWTH_TARGET:g},"
            f" {verdict(growth, GROWTH_TARGET)})."
        )
    return Table(
        ["method", "model", "tokens", "MiB", "KiB per token"],
        rows,
        title="Peak memory beyond the model",
        caption=caption,
        words=2,
    )


def calibration_table(runs: dict[str, Record]) -> Table:
    """Return one row per run and family: seconds by stage, and minutes at the full setting.

    Args:
        runs: What `calibrate` wrote, by the name of the run.
    """
    rows = []
    for name, run in runs.items():
        sizes = run["settings"]
        dtype = sizes["dtype"]
        fitted = sizes.get("fit_dtype") or dtype
        for record in run["records"]:
            seconds = record["seconds"]
            minutes = sum(seconds[stage] * _growth(sizes, stage) for stage in seconds) / 60
            cells = [f"{seconds[stage]:.0f}" for stage in ("fit", "select", "test")]
            total = f"{sum(seconds.values()):.0f}"
            rows.append(
                [
                    name.partition("-")[0],
                    record["family"],
                    fitted,
                    dtype,
                    str(sizes["steps"]),
                    *cells,
                    total,
                    f"{minutes:.1f}",
                ]
            )
    header = [
        "code", "family", "fit in", "model", "steps", "fit", "select", "test", "all", "minutes",
    ]  # fmt: skip
    return Table(
        header,
        rows,
        title="Time of a calibration",
        caption="Seconds per stage. Rows of 3 steps have 4 contexts and 3 windows per split; those"
        " of 45 have the setting of the SmolLM2 experiment (24 contexts and 16 windows to select"
        " by, 32 and 16 to test), and may end early. The last column is the time at that setting:"
        " of rows of 3 steps an estimate, each stage times the growth of its tokens.",
        words=4,
    )


def _calibrations(results: Path) -> dict[str, Record]:
    """Return the runs of `calibrate` by file, those before a change first."""
    paths = sorted(
        (results / "calibration").glob("*.json"), key=lambda path: (path.stem[0] == "a", path.stem)
    )
    return {path.stem: read_benchmark(path) for path in paths}


def _growth(sizes: Record, stage: str) -> float:
    """Return how many times as many tokens a stage reads in the SmolLM2 experiment."""
    if stage == "fit":
        return float(FULL["steps"] / sizes["steps"])
    place = ("fit", "select", "test").index(stage)
    tokens = [
        # Two tasks at both lengths, and windows of the longest.
        2 * sum(sizes["lengths"]) * each["contexts"][place]
        + max(sizes["lengths"]) * each["windows"][place]
        for each in (FULL, sizes)
    ]
    return float(tokens[0] / tokens[1])


def compared(record: Record) -> float:
    """Return a record's relative speed for sharpened models, its relative time for diagnoses."""
    ratio: float = record["ratio"]
    return 1.0 / ratio if record["workload"] in ("prefill", "decode") else ratio


def _rate(tokens: float) -> str:
    return f"{tokens:,.0f}" if tokens >= 100 else f"{tokens:.1f}"
