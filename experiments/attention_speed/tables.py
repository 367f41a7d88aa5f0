"""Tables of the attention benchmark, from the file that it writes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sharpmax.report._page.tables import Table

__all__ = [
    "attention_tables",
    "comparison_table",
    "details_tables",
    "headline_table",
    "profile_table",
    "targets_table",
]

_TITLES = {
    "prefill": "prefill",
    "sharp": "prefill, sharp rows",
    "decode": "decode, one query",
    "statistics": "statistics alone",
    "entropy-target": "EntropyTarget",
    "backward": "forward + backward",
    "curve": "256 queries, n keys",
}
"""Kinds of work in the order of the tables."""

Record = dict[str, Any]


def attention_tables(result: Record) -> dict[str, str]:
    """All tables that documents may ask for, as Markdown by name.

    Args:
        result: What the benchmark wrote.

    Returns:
        Markdown by name.
    """
    return {
        "attention-headlines": headline_table(result).to_markdown(),
        "attention-targets": targets_table(result).to_markdown(),
        "attention-comparison": comparison_table(result).to_markdown(),
        "attention-details": "\n\n".join(
            f"**{table.title}**\n\n{table.to_markdown()}" for table in details_tables(result)
        ),
    }


def profile_table(result: Record) -> Table:
    """Where the time goes, from what `benchmarks/attention_profile.py` wrote.

    Args:
        result: What it wrote.

    Returns:
        A row a way.
    """
    width = "64"
    rows = [
        [
            record["implementation"],
            f"{1e3 * record['seconds'][width]:.0f}",
            f"{1e3 * record['fixed_seconds']:.0f}",
            f"{record['gflops_of_products']:.0f}",
        ]
        for record in result["records"]
    ]
    header = ["way", f"ms at width {width}", "of it not products, ms", "products, GFLOP/s"]
    length = result["settings"]["length"]
    caption = f"{length:,} queries and keys, full, 1 head, 1 thread; `{result['command']}`."
    return Table(header, rows, caption=caption)


def targets_table(result: Record) -> Table:
    """What was to be reached and what was: the range of ratios of each kind of work and policy.

    Args:
        result: What the benchmark wrote.

    Returns:
        A row a kind of work and policy, then the textbook version, the curve and the memory.
    """
    threads = _threads(result)
    rows = []
    for (work, policy), records in _grouped(_own(result), "work", "policy"):
        if records[0]["target"] is not None:
            worst = max(record["ratio"] for record in records)
            rows.append(
                [
                    _title(work, policy),
                    *(_range(_of_threads(records, count)) for count in threads),
                    f"≤ {records[0]['target']:g}",
                    f"≤ {records[0]['aim']:g}",
                    _verdict(worst, records[0]["target"], records[0]["aim"]),
                ]
            )
    against_ours = [record for record in result["records"] if record["bound"] == "at least"]
    for (length, causal), records in _grouped(against_ours, "length", "causal"):
        least, target = min(record["ratio"] for record in records), records[0]["target"]
        rows.append(
            [
                f"textbook over sharpmax, {_length(length)}, {_mask(causal)}",
                *(_range(_of_threads(records, count)) for count in threads),
                f"≥ {target:g}",
                "",
                "reached" if least >= target else f"missed by {1 - least / target:.1%}",
            ]
        )
    if result["growth"]:
        growth = {entry["threads"]: entry for entry in result["growth"]}
        first = result["growth"][0]
        longer, shorter = _length(first["to_length"]), _length(first["from_length"])
        rows.append(
            [
                f"ratio at {longer} over that at {shorter}",
                *(f"{growth[count]['growth']:.2f}" if count in growth else "" for count in threads),
                f"≤ {first['target']:g}",
                "",
                _verdict(max(entry["growth"] for entry in result["growth"]), first["target"]),
            ]
        )
    rows += _memory_rows(result, threads)
    return Table(
        ["work", *(_count(count) for count in threads), "to reach", "aim", "verdict"],
        rows,
        title="Time as a ratio to scaled_dot_product_attention",
        caption=_caption(result),
    )


def comparison_table(result: Record) -> Table:
    """What the same work costs by other means, beside sharpmax.

    Args:
        result: What the benchmark wrote.

    Returns:
        A row a way.
    """
    threads = _threads(result)
    records = [
        record
        for record in result["records"]
        if record["work"] == "comparison" and record["bound"] == "at most"
    ]
    rows = []
    for (causal, implementation), of_way in _grouped(records, "causal", "implementation"):
        rows.append(
            [
                implementation,
                _mask(causal),
                *(_range(_of_threads(of_way, count)) for count in threads),
                *(_milliseconds(_of_threads(of_way, count)) for count in threads),
            ]
        )
    where = ""
    if records:
        first = records[0]
        where = (
            f"{_length(first['length'])} queries and keys, width {first['width']},"
            f" {first['heads']} head."
        )
    return Table(
        [
            "way",
            "mask",
            *(f"ratio, {_count(count)}" for count in threads),
            *(f"ms, {_count(count)}" for count in threads),
        ],
        rows,
        title="What else there is, as a ratio to scaled_dot_product_attention",
        caption=where,
        words=2,
    )


def details_tables(result: Record) -> list[Table]:
    """Every ratio: a table a kind of work, with a column a length.

    Args:
        result: What the benchmark wrote.

    Returns:
        The tables.
    """
    tables = []
    for (work,), of_work in _grouped(_own(result), "work"):
        lengths = sorted({record["length"] for record in of_work})
        rows = []
        fields = ("policy", "causal", "width", "threads")
        for (policy, causal, width, threads), records in _grouped(of_work, *fields):
            ratios = {record["length"]: record["ratio"] for record in records}
            rows.append(
                [
                    policy or "",
                    _mask(causal),
                    str(width),
                    str(threads),
                    *(f"{ratios[length]:.2f}" if length in ratios else "" for length in lengths),
                ]
            )
        header = ["policy", "mask", "width", "threads", *map(_length, lengths)]
        title = f"{_TITLES[work]} (--work {work}): ratio by number of keys"
        tables.append(Table(header, rows, title=title, words=2))
    return tables


def headline_table(result: Record) -> Table:
    """A row a kind of work: sharpmax first, then what else there is.

    Args:
        result: What the benchmark wrote.

    Returns:
        The table.
    """
    threads = _threads(result)
    rows = []
    for (work,), records in _grouped(_own(result), "work"):
        lengths = sorted({record["length"] for record in records})
        reach = " … ".join(dict.fromkeys([_length(lengths[0]), _length(lengths[-1])]))
        rows.append(
            [
                f"sharpmax: {_TITLES[work]}",
                reach,
                *(_range(_of_threads(records, count)) for count in threads),
            ]
        )
    others = [
        record
        for record in result["records"]
        if record["work"] == "comparison"
        and record["bound"] == "at most"
        and not record["implementation"].startswith("sharpmax")
    ]
    for (causal, implementation), records in _grouped(others, "causal", "implementation"):
        rows.append(
            [
                f"{implementation}, {_mask(causal)}",
                _length(records[0]["length"]),
                *(_range(_of_threads(records, count)) for count in threads),
            ]
        )
    return Table(
        ["time over that of PyTorch's attention", "keys", *(_count(count) for count in threads)],
        rows,
        caption=_caption(result),
        words=2,
    )


def _own(result: Record) -> list[Record]:
    return [record for record in result["records"] if record["work"] != "comparison"]


def _threads(result: Record) -> list[int]:
    return sorted(result["settings"]["threads"])


def _of_threads(records: Iterable[Record], threads: int) -> list[Record]:
    return [record for record in records if record["threads"] == threads]


def _grouped(
    records: Iterable[Record], *fields: str
) -> Iterable[tuple[tuple[Any, ...], list[Record]]]:
    """Records by the values of fields, in the order in which these first occur by kind of work."""
    groups: dict[tuple[Any, ...], list[Record]] = {}
    order = list(_TITLES)
    for record in sorted(
        records, key=lambda record: order.index(record["work"]) if record["work"] in order else -1
    ):
        groups.setdefault(tuple(record[name] for name in fields), []).append(record)
    return groups.items()


def _memory_rows(result: Record, threads: Sequence[int]) -> list[list[str]]:
    rows = []
    measured = [entry for entry in result["memory"] if entry["target"] is not None]
    for (length,), entries in _by_length(measured):
        of_threads = {entry["threads"]: entry["mebibytes_a_thread"] for entry in entries}
        target = entries[0]["target"]
        rows.append(
            [
                f"extra MiB a thread, {_length(length)} keys",
                *(f"{of_threads[count]:.1f}" if count in of_threads else "" for count in threads),
                f"≤ {target:g}",
                "",
                _verdict(max(of_threads.values()), target),
            ]
        )
    return rows


def _by_length(entries: Iterable[Record]) -> Iterable[tuple[tuple[int], list[Record]]]:
    groups: dict[tuple[int], list[Record]] = {}
    for entry in entries:
        groups.setdefault((entry["length"],), []).append(entry)
    return groups.items()


def _mask(causal: bool) -> str:
    return "causal" if causal else "full"


def _title(work: str, policy: str | None) -> str:
    if policy is None or policy in _TITLES[work]:
        return _TITLES[work]
    return f"{_TITLES[work]}, {policy}"


def _range(records: Sequence[Record]) -> str:
    """The smallest ratio and the largest."""
    if not records:
        return ""
    ratios = [record["ratio"] for record in records]
    return " to ".join(dict.fromkeys(map(_readable, (min(ratios), max(ratios)))))


def _readable(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio < 10 else f"{ratio:.0f}"


def _milliseconds(records: Sequence[Record]) -> str:
    return f"{records[0]['seconds'] * 1000:,.0f}" if records else ""


def _verdict(worst: float, target: float, aim: float | None = None) -> str:
    if worst > target:
        return f"missed by {worst / target - 1:.1%}"
    return "aim reached" if aim is not None and worst <= aim else "reached"


def _length(length: int) -> str:
    """1,024 as 1k, which is how lengths are spoken of."""
    return f"{length // 1024}k" if length % 1024 == 0 else f"{length:,}"


def _count(threads: int) -> str:
    return "1 thread" if threads == 1 else f"{threads} threads"


def _caption(result: Record) -> str:
    machine, versions = result["machine"], result["versions"]
    return (
        f"float32, {machine['processor']}, {machine['processors']} processors,"
        f" {machine['vector_extension']}, PyTorch {versions['torch']},"
        f" written by `{result['command']}`."
    )
