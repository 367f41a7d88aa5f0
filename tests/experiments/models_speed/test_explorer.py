"""The table of how fast the explorer reacts."""

from __future__ import annotations

from pathlib import Path

from experiments.models_speed.explorer import TARGETS, explorer_table
from sharpmax._files import write_sealed


def test_one_row_per_device_and_change(tmp_path: Path) -> None:
    times = {f"{kind} {n}": [1.0, 2.0, 9.0] for n in TARGETS for kind in ("length", "settled")}
    data = {
        "command": "python scripts/time_explorer.py",
        "versions": {"browser": "Chrome/1"},
        "machine": {"processor": "Abacus"},
        "times": {"desktop": times, "phone": times},
    }
    table = explorer_table(write_sealed(tmp_path / "explorer.json", "times of the explorer", data))
    assert [row[:2] for row in table.rows] == [
        [device, kind] for device in ("desktop", "phone") for kind in ("length", "settled")
    ]
    assert table.rows[0][2:] == ["2.0, at most 9.0"] * 2
    assert "of 3 changes" in table.caption
