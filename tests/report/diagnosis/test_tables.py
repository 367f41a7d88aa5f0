from __future__ import annotations

import math
from dataclasses import replace

from diagnoses import MIXED, SLOPES
from sharpmax.report.diagnosis.tables import heads_table, verdicts_table


def test_every_head_has_one_verdict() -> None:
    rows = verdicts_table(MIXED).rows
    assert sum(int(row[-1]) for row in rows) == len(MIXED.heads)
    assert rows[0][0] == "dispersing"


def test_heads_with_what_was_measured_of_them() -> None:
    worst = MIXED.worst()[:2]
    table = heads_table(MIXED, worst)
    assert [row[1:3] for row in table.rows] == [[str(h.layer), str(h.head)] for h in worst]
    cells = dict(zip(table.header, table.rows[0], strict=True))
    slope = SLOPES["dispersing"] or 0.0
    entropy = 1.0 + slope * math.log(16) + 0.01 * worst[0].head
    assert cells["slope"] == f"{slope:.2f}"
    assert cells["entropy at 1,024"] == f"{entropy:.2f}"
    assert cells["largest weight"] == f"{math.exp(-entropy):.3f}"
    assert table.caption.endswith("reach 0.01. Measured on text of a book.")
    assert heads_table(replace(MIXED, source=""), worst).caption.endswith("reach 0.01.")


def test_what_was_not_measured_is_left_empty() -> None:
    silent = [head for head in MIXED.heads if head.verdict is None]
    row = heads_table(MIXED, silent[:1]).rows[0]
    assert set(row[3:-1]) == {""}
