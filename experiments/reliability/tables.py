"""Tables of the campaign and of the planted bugs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from experiments.reliability.bugs import BUGS
from experiments.reliability.campaign import Campaign
from experiments.reliability.cases import KINDS
from experiments.reliability.libraries import libraries_table
from experiments.reliability.mutations import attempts
from sharpmax.report._page.tables import Table

__all__ = ["kinds_table", "mutations_table", "pages", "tables", "worst_table"]

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
    found = {
        "reliability-kinds": kinds_table(campaign),
        "reliability-worst": worst_table(campaign),
        "reliability-mutations": mutations_table(results),
    }
    if (results / "triton" / "campaign.json").exists():
        interpreted = Campaign.load(results / "triton" / "campaign.json")
        found["reliability-triton"] = kinds_table(interpreted)
    texts = {name: table.to_markdown(100) for name, table in found.items()}
    # The libraries are not dependencies, so a run may have none of them.
    if (others := results / "libraries.json").exists():
        texts["libraries"] = libraries_table(others).to_markdown()
    return texts


def pages(results: Path) -> dict[str, str]:
    """Make the page that lists every planted bug."""
    found = attempts(results)
    rows = []
    for bug in BUGS:
        tried = found.get(bug.name, [])
        first, now = (
            ("caught" if tried[at]["caught"] else "survived") if tried else "" for at in (0, -1)
        )
        by = f"`{tried[-1]['by']}`" if tried and tried[-1]["by"] else ""
        rows.append([bug.room, bug.name, f"`{bug.file}`", first, now, by])
    table = Table(["room", "bug", "file", "at first", "now", "first test to fail"], rows, words=6)
    return {"mutations.md": f"# Planted bugs\n\n{table.to_markdown()}"}


def mutations_table(results: Path) -> Table:
    """Show how many planted bugs the tests caught, at first and now, by room."""
    found = attempts(results)
    rows = []
    for room in dict.fromkeys(bug.room for bug in BUGS):
        tried = [found[bug.name] for bug in BUGS if bug.room == room and bug.name in found]
        counts = [len(tried), *(sum(each[at]["caught"] for each in tried) for at in (0, -1))]
        rows.append([room, *map(str, counts)])
    total = [str(sum(int(row[column]) for row in rows)) for column in (1, 2, 3)]
    return Table(["room", "planted", "caught at first", "caught now"], [*rows, ["**all**", *total]])


def kinds_table(campaign: Campaign) -> Table:
    """Show cases and rows by kind and implementation."""
    wrong = Counter(
        (found["kind"], name) for found in campaign.wrong.values() for name in found["reasons"]
    )
    rows = []
    for kind in KINDS:
        for name, tally in campaign.tallies.get(kind, {}).items():
            bad = wrong[kind, name]
            if not tally.cases + bad:
                continue  # it is not installed
            numbers = (tally.cases + bad, tally.refused, tally.rows, tally.undecided, bad)
            rows.append([NAMES[kind], f"`{name}`", *(f"{number:,}" for number in numbers)])
    on = f", kernels {' and '.join(campaign.instructions)}" if campaign.instructions else ""
    return Table(
        ["kind", "`impl`", "cases", "refused", "rows compared", "undecided", "wrong cases"],
        rows,
        caption=f"{campaign.done:,} cases, seed {campaign.seed}{on}. For gradients, a row is the"
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
