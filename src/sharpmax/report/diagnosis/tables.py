"""Tables of a diagnosis: heads per verdict, and measurements per head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from sharpmax.report._page.tables import Table, plain
from sharpmax.report.diagnosis.verdicts import VERDICTS, counts

if TYPE_CHECKING:
    from sharpmax.models import Diagnosis, Head, HeadRecord

__all__ = ["SHOWN", "heads_table", "mean", "readable", "verdicts_table"]

SHOWN: Final = 15
"""Heads in a table."""

_LAYOUTS: Final = {
    "entropy": ".2f", "effective_support": ",.0f", "largest_weight": ".3f", "first_mass": ".3f",
    "tail_mass": ".3f", "spread": ".1f",
}  # fmt: skip
"""How the figures of a head are written, in the order of the columns."""

_SUPERSCRIPT: Final = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


def verdicts_table(diagnosis: Diagnosis) -> Table:
    """Return a table with one row per verdict: its meaning and its number of heads."""
    rows = [
        [VERDICTS[verdict].label, VERDICTS[verdict].meaning, f"{number:,}"]
        for verdict, number in counts(diagnosis.heads).items()
    ]
    return Table(["verdict", "meaning", "heads"], rows, words=2)


def heads_table(diagnosis: Diagnosis, heads: Sequence[Head]) -> Table:
    """Return a table with one row per head and its measurements at the longest length."""
    shortest, longest = (f"{length:,}" for length in (diagnosis.lengths[0], diagnosis.lengths[-1]))
    header = [
        "verdict", "layer", "head", "slope", f"entropy at {shortest}", f"entropy at {longest}",
        "effective support", "largest weight", "weight on first token",
        f"weight on last {diagnosis.tail}", "logit spread", "critical length",
    ]  # fmt: skip
    source = f" Measured on {plain(diagnosis.source)}." if diagnosis.source else ""
    caption = (
        f"Means over rows at {longest} {plain(diagnosis.unit)}, unless stated otherwise. Effective"
        " support is exp(entropy): the number of tokens in a uniform distribution with the same"
        " entropy. Logit spread is the largest logit minus the smallest. Beyond the critical"
        f" length, no weight can reach 0.01.{source}"
    )
    return Table(header, [_row(diagnosis, head) for head in heads], caption=caption)


def _row(diagnosis: Diagnosis, head: Head) -> list[str]:
    record = diagnosis.record(head)
    return [
        VERDICTS[head.verdict].label, str(head.layer), str(head.head),
        "" if head.slope is None else f"{head.slope:.2f}",
        mean(diagnosis.record(head, diagnosis.lengths[0]), "entropy"),
        *(mean(record, figure) for figure in _LAYOUTS), readable(record.critical_length),
    ]  # fmt: skip


def mean(record: HeadRecord, figure: str) -> str:
    """Format the mean of a figure over rows, or return "" if nothing was measured."""
    found = getattr(record, figure)
    return "" if found is None else format(found.mean, _LAYOUTS[figure])


def readable(length: float | None) -> str:
    """Format a length that may be very large.

    Example:
        >>> readable(365386), readable(4.09e8), readable(None)
        ('365,386', '4.1·10⁸', 'beyond 10¹⁵')
    """
    if length is None:
        return "beyond 10¹⁵"
    if length < 1e6:
        return f"{length:,.0f}"
    mantissa, exponent = f"{length:.1e}".split("e")
    return f"{mantissa}·10{str(int(exponent)).translate(_SUPERSCRIPT)}"
