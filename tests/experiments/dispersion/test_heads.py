from __future__ import annotations

from pathlib import Path

import pytest

from experiments.dispersion.heads import FOLDER, HeadCurve, Heads, load_heads
from experiments.dispersion.tables import heads_table
from sharpmax._files import DamagedFileError


def _curve(layer: int, head: int, kind: str, entropy: tuple[float, ...]) -> HeadCurve:
    slope, verdict = (0.2, "local") if kind == "sliding" else (0.6 + head / 10, "dispersing")
    visible = (60.0, 512.0) if kind == "sliding" else (60.0, 700.0)
    return HeadCurve(layer, head, kind, slope, verdict, entropy, (0.1, 0.1), (0.0, 0.0), visible)


HEADS = Heads(
    name="Small, from 4 bits", items=(8, 128), tokens=(60.0, 700.0), prompts=3, seed=7,
    versions={"torch": "2"},
    curves=(
        _curve(0, 0, "sliding", (1.0, 2.0)), _curve(0, 1, "sliding", (2.0, 4.0)),
        _curve(1, 0, "sliding", (0.0, 0.0)), _curve(1, 1, "sliding", (1.0, 2.0)),
        _curve(2, 0, "global", (1.0, 5.0)), _curve(2, 1, "global", (3.0, 6.0)),
    ),
)  # fmt: skip


def test_files_are_sealed(tmp_path: Path) -> None:
    path = HEADS.save(tmp_path / FOLDER / "small.json", "a command")
    assert load_heads(tmp_path) == [HEADS]
    assert '"command": "a command"' in path.read_text(encoding="utf-8")
    path.write_text(path.read_text(encoding="utf-8").replace("5.0", "5.5"), encoding="utf-8")
    with pytest.raises(DamagedFileError):
        load_heads(tmp_path)


def test_a_row_per_first_layer_and_per_kind() -> None:
    table = heads_table([HEADS])
    assert table.header[3:] == [
        "entropy at 8", "entropy at 128", "tokens visible at 128", "slope", "verdicts",
    ]  # fmt: skip
    assert table.rows == [
        ["Small", "layer 0, sliding", "2", "1.50", "3.00", "512", "0.20 [0.20, 0.20]", "2 local"],
        ["Small", "all 2 sliding", "4", "1.00", "2.00", "512", "0.20 [0.20, 0.20]", "4 local"],
        ["Small", "layer 2, global", "2", "2.00", "5.50", "700", "0.65 [0.60, 0.70]",
         "2 dispersing"],
    ]  # fmt: skip
    assert "3 prompts" in table.caption
    assert "seed 7" in table.caption
