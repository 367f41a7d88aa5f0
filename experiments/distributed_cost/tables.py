"""Tables of the cost: messages and bytes, the model for many ranks, and the model against gloo."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from experiments.distributed_cost.measure import network_of
from experiments.distributed_cost.model import (
    METHODS,
    NETWORKS,
    Shape,
    backward_transfers,
    seconds,
    transfers,
)
from sharpmax._files import read_sealed
from sharpmax.report._page.tables import Table

__all__ = ["DECODING", "KIND", "PREFILL", "RANKS", "all_tables", "gloo_rows", "tables"]

KIND = "cost of attention over ranks"
RANKS = (8, 64, 256, 1024)
DECODING = Shape(1, 32, 8, 128, 1, 1 << 20, 2)
PREFILL = Shape(1, 32, 8, 128, 1 << 20, 1 << 20, 2)


def tables(results: Path) -> dict[str, str]:
    """Make the tables of the documents from `distributed_cost.json`."""
    found = all_tables(read_sealed(results / "distributed_cost.json", KIND))
    return {name: table.to_markdown(100) for name, table in found.items()}


def all_tables(data: dict[str, Any]) -> dict[str, Table]:
    """Make all tables."""
    return {
        "distributed-bytes": _bytes(),
        "distributed-model": _model(),
        "distributed-gloo": _gloo(data),
    }


def _cases(ranks: int) -> list[tuple[str, Shape]]:
    """Return the methods that serve so many ranks, each with the shape that it is meant for."""
    shapes = [(method, DECODING if method == "tree" else PREFILL) for method in METHODS]
    return [(m, s) for m, s in shapes if m != "ulysses" or s.heads % ranks == 0]


def _bytes() -> Table:
    ranks, rows = 8, []
    for method, shape in _cases(ranks):
        parts = transfers(method, shape, ranks, settings=False)
        count = shape.batch * shape.heads * shape.queries // (1 if method == "tree" else ranks)
        sent = sum(part.sent(ranks) for part in parts)
        behind = sum(part.sent(ranks) for part in backward_transfers(method, shape, ranks))
        steps = sum(part.steps(ranks) for part in parts)
        calls = {"all_reduce": "all-reduce", "shift": "pass on", "all_gather": "all-gather"}
        kind = calls.get(parts[0].kind, "all-to-all")
        what = "1 query" if method == "tree" else f"{shape.queries:,} queries"
        rows.append([
            f"`{method}`, {what}", f"{len(parts)} {kind}", f"{steps:,}",
            f"{sent / count:,.0f}", _megabytes(sent), _megabytes(behind),
        ])  # fmt: skip
    caption = (
        f"One pass on {ranks} ranks, bfloat16: {PREFILL.heads} heads, {PREFILL.key_heads}"
        f" key heads, width {PREFILL.width}, {PREFILL.keys:,} keys. Rows are those of one rank:"
        " heads times its queries. Without `key_lengths`, one all-gather of 48 bytes comes first."
        " Backward: gradients by query, key, value and policy; those that are summed over ranks are"
        " sent in float32."
    )
    header = ["method", "collectives", "steps", "bytes sent per row", "MB sent per rank"]
    header.append("MB backward")
    return Table(header, rows, caption=caption, words=2)


def _megabytes(size: float) -> str:
    return f"{size / 1e6:,.0f}" if size >= 1e9 else f"{size / 1e6:.4g}"


def _model() -> Table:
    rows = []
    for ranks in RANKS:
        for method, shape in _cases(ranks):
            times = [
                seconds(method, shape, ranks, network, logarithmic=True)
                for network in NETWORKS.values()
            ]
            rows.append([f"`{method}`", f"{ranks:,}", *(f"{1e3 * t:,.3g}" for t in times)])
    inputs = "; ".join(
        f"{name} {1e6 * n.latency:g} µs and {n.bandwidth / 1e9:g} GB/s"
        for name, n in NETWORKS.items()
    )
    caption = (
        "Milliseconds of communication by the model, nothing overlapped; not measured. `tree`: one"
        " query, as in decoding. The others: as many queries as keys, as in prefill. The shape is"
        f" that of the table before. Inputs: {inputs}. NVLink domains end well below 1,024 ranks:"
        " beyond, its column only shows what latency costs."
    )
    header = ["method", "ranks", *NETWORKS]
    return Table(header, rows, caption=caption)


def gloo_rows(data: dict[str, Any]) -> list[dict[str, Any]]:
    """Return measured and modelled seconds of every call with gloo."""
    found = []
    for each in data["gloo"]:
        network = network_of(each["shifts"])
        for call in each["calls"]:
            shape = Shape(**data["shapes"][call["shape"]])
            model = seconds(call["method"], shape, each["ranks"], network)
            found.append({**call, "ranks": each["ranks"], "model": model})
    return found


def _gloo(data: dict[str, Any]) -> Table:
    rows = []
    for each in gloo_rows(data):
        ratio = each["model"] / each["seconds"]
        rows.append([
            f"`{each['method']}`", each["shape"], f"{each['ranks']}",
            f"{sum(each['sizes']) / 1e6:,.3g}", f"{1e3 * each['seconds']:,.3g}",
            f"{1e3 * each['model']:,.3g}", f"{ratio:.2f}", f"{1e3 * each['within_call']:,.3g}",
        ])  # fmt: skip
    links = "; ".join(
        f"{each['ranks']} processes: {1e6 * n.latency:,.0f} µs and {n.bandwidth / 1e9:,.2f} GB/s"
        for each in data["gloo"]
        for n in [network_of(each["shifts"])]
    )
    shapes = "; ".join(
        f"{name}: {s['queries']:,} queries, {s['keys']:,} keys"
        for name, s in data["shapes"].items()
    )
    caption = (
        "Milliseconds. Measured: the same collectives one after the other, without computation,"
        f" best of {data['repeats']}. Within the call: also waiting for ranks that still compute,"
        " and for a ring only what computation does not hide. The model gets latency and bandwidth"
        f" from passing a short and a long message on ({links}). float32; {shapes}. Two cores,"
        " so that four processes compete for them."
    )
    header = ["method", "shape", "ranks", "MB into collectives", "measured", "model", "ratio"]
    header.append("within the call")
    return Table(header, rows, caption=caption, words=2)
