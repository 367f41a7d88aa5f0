"""Tables of the monitor: what became of two trainings, and what watching them costs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from sharpmax._files import read_sealed
from sharpmax.report._page.tables import Table

__all__ = ["KIND", "cost_table", "tables", "training_table"]

KIND = "monitored trainings"
EVERY = 100  # the default rate of `sharpmax.monitor`


def tables(results: Path) -> dict[str, str]:
    """Make the tables of the document from `monitor.json`."""
    data = read_sealed(results / "monitor.json", KIND)
    found = {"monitor-trainings": training_table(data), "monitor-cost": cost_table(data)}
    return {name: table.to_markdown(100) for name, table in found.items()}


def training_table(data: dict[str, Any]) -> Table:
    """Show how each training ended, and its alarms."""
    rows = []
    for name, training in data["trainings"].items():
        last = training["readings"][-1]
        heads = last["heads"]
        alarms = Counter(alarm["kind"] for alarm in training["alarms"])
        first = {each["kind"]: each["step"] for each in reversed(training["alarms"])}
        shown = [f"{n} of {kind}, from step {first[kind]}" for kind, n in sorted(alarms.items())]
        rows.append([
            f"{name}, {training['learning_rate']:g}", f"{last['loss']:.2f}",
            f"{sum(each['entropy'] for each in heads) / len(heads):.2f}",
            f"{min(each['entropy'] for each in heads):.2f}",
            f"{max(each['largest_logit'] for each in heads):,.0f}", "; ".join(shown) or "none",
        ])  # fmt: skip
    header = ["learning rate", "loss", "mean entropy", "lowest entropy", "largest logit", "alarms"]
    caption = (
        f"At the last of {len(data['trainings']['stable']['readings'])} readings in"
        f" {data['steps']:,} steps, seed {data['seed']}. Loss in nats per character; entropy in"
        " nats per head."
    )
    return Table(header, rows, caption=caption)


def cost_table(data: dict[str, Any]) -> Table:
    """Show the time of steps, and the cost at the default rate."""
    rows = []
    for each in data["costs"]:
        plain, measured = each["seconds"]["plain"], each["seconds"]["measured"]
        shape = (
            f"{each['layers']} layers of {each['width']}, {each['rows']} rows of {each['length']:,}"
        )
        cost = (measured / plain - 1) / EVERY
        cells = [f"{1000 * plain:.1f} ms", f"{1000 * measured:.1f} ms", f"{cost:.2%}"]
        rows.append([shape, *cells])
    header = ["model and batch", "step", "measured step", f"cost, one step in {EVERY}"]
    least = min((n for each in data["costs"] for n in each["rounds"].values()), default=0)
    caption = (
        f"Best of at least {least} steps of each kind, in turn, with {data['threads']} threads on"
        f" {data['machine']['processor']}."
    )
    return Table(header, rows, caption=caption)
