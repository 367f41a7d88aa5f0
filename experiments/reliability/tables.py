"""Tables of the campaign and of the planted bugs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from experiments.reliability.campaign import Campaign
from experiments.reliability.cases import KINDS
from sharpmax.report._page.tables import Table

__all__ = ["kinds_table", "tables", "worst_table"]

NAMES = {
    "forward": "forward",
    "statistics": "statistics",
    "gradient": "gradients",
    "odd": "odd tensors",
    "compiled": "compiled calls",
}
DTYPES = ("float32", "float64", "float16", "bfloat16")


def tables(results: Path) -> dict[str, str]:
    """Make the tables of the document from `campaign.json` and `mutations.json`."""
    campaign = Campaign.load(results / "campaign.json")
    return {
        "reliability-kinds": kinds_table(campaign).to_markdown(100),
        "reliability-worst": worst_table(campaign).to_markdown(100),
    }


def kinds_table(campaign: Campaign) -> Table:
    """Show cases and rows by kind and implementation."""
    wrong = Counter(
        (found["kind"], name) for found in campaign.wrong.values() for name in found["reasons"]
    )
    rows = []
    for kind in KINDS:
        for name, tally in campaign.tallies.get(kind, {}).items():
            bad = wrong[kind, name]
            numbers = (tally.cases + bad, tally.refused, tally.rows, tally.undecided, bad)
            rows.append([NAMES[kind], f"`{name}`", *(f"{number:,}" for number in numbers)])
    return Table(
        ["kind", "`impl`", "cases", "refused", "rows compared", "undecided", "wrong cases"],
        rows,
        caption=f"{campaign.done:,} cases, seed {campaign.seed}. For gradients, a row is the"
        " gradient of one tensor.",
        words=2,
    )


def worst_table(campaign: Campaign, name: str = "cpu") -> Table:
    """Show the largest error over its tolerance, by policy and dtype."""
    found = {kind: campaign.worst.get(kind, {}).get(name, {}) for kind in ("forward", "gradient")}
    names = sorted(found["forward"].keys() | found["gradient"].keys())
    return Table(
        ["policy", *DTYPES, *(f"gradients, {dtype}" for dtype in DTYPES)],
        [
            [
                policy,
                *(
                    f"{ratio:.2f}" if (ratio := by.get(policy, {}).get(dtype)) is not None else ""
                    for by in found.values()
                    for dtype in DTYPES
                ),
            ]
            for policy in names
        ],
        caption=f'Largest error over its tolerance with `impl="{name}"`; above 1 a row is wrong.',
    )
