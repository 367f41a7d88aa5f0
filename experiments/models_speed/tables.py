"""Tables of the benchmark of models, from the file that it writes."""

from __future__ import annotations

from typing import Any

from sharpmax.report._page.tables import Table

__all__ = ["memory_table", "models_tables", "times_table"]

_TITLES = {
    "diagnose": "diagnose: time over a plain pass",
    "weights": "diagnose: time over output_attentions",
    "prefill": "sharpened prefill: speed over stock",
    "decode": "sharpened decoding: speed over stock",
}
"""Works in the order of the tables."""

_SIGNS = {"at most": "≤", "at least": "≥"}

Record = dict[str, Any]


def models_tables(result: Record) -> dict[str, str]:
    """All tables that documents may ask for, as Markdown by name.

    Args:
        result: What the benchmark wrote.

    Returns:
        Markdown by name.
    """
    return {
        "models-times": times_table(result).to_markdown(),
        "models-memory": memory_table(result).to_markdown(),
    }


def times_table(result: Record) -> Table:
    """What each work takes, beside its peer, and whether that was to be reached.

    Args:
        result: What the benchmark wrote.

    Returns:
        A row a work and number of threads.
    """
    order = list(_TITLES)
    rows = [
        [
            _TITLES[record["work"]],
            f"{record['length']:,}",
            str(record["threads"]),
            f"{_compared(record):.2f}",
            "" if record["bound"] is None else f"{_SIGNS[record['bound']]} {record['target']:g}",
            _rate(record["tokens_a_second"]),
            _rate(record["peer_tokens_a_second"]),
            _verdict(_compared(record), record["target"], record["bound"]),
        ]
        for record in sorted(result["records"], key=lambda record: order.index(record["work"]))
    ]
    return Table(
        ["work", "tokens", "threads", "ratio", "aim", "tokens/s", "peer's", "verdict"],
        rows,
        title="What it costs to diagnose and to sharpen a model",
        caption=_caption(result),
    )


def memory_table(result: Record) -> Table:
    """Memory at the peak of a pass, beyond the model.

    Args:
        result: What the benchmark wrote.

    Returns:
        A row a model, way and length, and how the last grow.
    """
    rows = [
        [
            entry["way"],
            entry["model"],
            f"{entry['length']:,}",
            f"{entry['mebibytes']:,.0f}",
            f"{1024 * entry['mebibytes'] / entry['length']:,.1f}",
        ]
        for entry in result["memory"]
    ]
    caption = ""
    if growth := result["growth"]:
        caption = (
            f"From {growth['from_length']:,} to {growth['to_length']:,} tokens of a small model"
            f" memory a token grows by a factor of {growth['growth']:.2f}"
            f" (to reach: at most {growth['target']:g},"
            f" {_verdict(growth['growth'], growth['target'])})."
        )
    return Table(
        ["way", "model", "tokens", "MiB", "KiB a token"],
        rows,
        title="Memory at the peak, beyond the model",
        caption=caption,
        words=2,
    )


def _rate(tokens: float) -> str:
    return f"{tokens:,.0f}" if tokens >= 100 else f"{tokens:.1f}"


def _compared(record: Record) -> float:
    """The figure that a row is about: speed where that has an aim, time elsewhere."""
    ratio: float = record["speed" if record["work"] in ("prefill", "decode") else "ratio"]
    return ratio


def _verdict(ratio: float, target: float | None, bound: str | None = "at most") -> str:
    if target is None:
        return ""
    missing = ratio / target - 1 if bound == "at most" else 1 - ratio / target
    return "reached" if missing <= 0 else f"missed by {missing:.1%}"


def _caption(result: Record) -> str:
    model, machine, versions = result["model"], result["machine"], result["versions"]
    return (
        f"{model['name']}, {model['dtype']}, {model['attention']}; {machine['processor']},"
        f" {machine['processors']} processors, {machine['vector_extension']},"
        f" PyTorch {versions['torch']}, transformers {versions['transformers']}, written by"
        f" `{result['command']}`."
    )
