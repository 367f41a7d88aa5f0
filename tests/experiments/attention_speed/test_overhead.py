from __future__ import annotations

from pathlib import Path

from experiments.attention_speed.overhead import overhead_of_a_call, table
from experiments.attention_speed.tables import tables
from sharpmax._files import write_json


def test_what_surrounds_the_kernel_is_told_apart(tmp_path: Path) -> None:
    found = overhead_of_a_call(seconds=1e-3)
    kernel, ours = (found["microseconds"][x] for x in ("the kernel alone", "sharpmax.attention"))
    assert found["overhead"]["sharpmax.attention"] == ours - kernel
    assert 0 < kernel < ours
    rows = {row[0]: list(row[1:]) for row in table(found).rows}
    assert rows["the kernel alone"][1] == ""
    assert len(rows) == 5
    write_json(tmp_path / "overhead.json", {"command": "python -m …", **found})
    assert "| sharpmax.attention, NumPy arrays |" in tables(tmp_path)["attention-overhead"]
