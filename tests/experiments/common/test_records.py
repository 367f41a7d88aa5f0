from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from experiments.common.checkpoint import read_tensors, write_tensors
from experiments.common.records import OverSeeds, RecordTable
from sharpmax._files import DamagedFileError, read_sealed, write_sealed


@dataclass(frozen=True)
class _Record(OverSeeds):
    method: str
    n: int
    accuracy: tuple[float, ...]


@dataclass(frozen=True)
class _Table(RecordTable[_Record]):
    KIND = "a table"
    RECORD = _Record


SOME = _Record("softmax", 16, (0.5, 0.7, 0.9))


def test_figures_over_seeds() -> None:
    assert SOME.mean == pytest.approx(0.7)
    assert SOME.deviation == pytest.approx(np.std(SOME.accuracy, ddof=1))
    low, high = SOME.interval
    assert 0.5 <= low < 0.7 < high <= 0.9
    assert _Record("softmax", 16, (0.5,)).deviation == 0.0


def test_plain_data_and_back() -> None:
    data = SOME.to_dict()
    assert data["mean"] == SOME.mean
    assert data["interval"] == SOME.interval
    # As it comes back from JSON: a list, and figures beside the fields.
    assert _Record.from_dict({**data, "accuracy": list(SOME.accuracy)}) == SOME


def test_records_by_their_fields() -> None:
    other = _Record("paper", 16, (0.8, 0.8, 0.8))
    table = _Table("a command", (0, 1, 2), {}, (SOME, other))
    assert list(table.select(n=16)) == [SOME, other]
    assert table.find(method="paper") == other
    with pytest.raises(LookupError, match="found 2"):
        table.find(n=16)
    with pytest.raises(LookupError, match="found 0"):
        table.find(n=32)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"records": {}}, "records: expected a list, got dict"),
        ({"records": [7]}, r"records\[0\]: expected _Record, got 7"),
        ({"records": [{"method": "softmax", "n": 16}]}, "missing or unknown: .*accuracy"),
        ({"records": [{"method": "x", "n": "many", "accuracy": []}]}, "record.n: expected int"),
        ({"seeds": 3}, "table.seeds: expected"),
        ({"recipes": [[]]}, "table.recipes: expected"),
    ],
)
def test_a_forged_table_is_refused(tmp_path: Path, change: dict[str, object], said: str) -> None:
    table = _Table("a command", (0, 1, 2), {"usual": {"steps": 4}}, (SOME,))
    path = table.save(tmp_path / "table.json")
    assert _Table.load(path) == table
    data = read_sealed(path, "a table")
    del data["kind"]
    write_sealed(path, "a table", data | change)
    with pytest.raises(DamagedFileError, match=rf"table\.json: not a table .*{said}"):
        _Table.load(path)


def test_tensors_with_another_description_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "head.safetensors"
    write_tensors(path, {"weight": torch.ones(2)}, {"step": 3})
    description, tensors = read_tensors(path)
    assert description == {"step": 3}
    assert tensors["weight"].tolist() == [1.0, 1.0]
    for described in ([], math.nan, "[" * 100_000):
        write_tensors(path, {}, described)
        if isinstance(described, str):
            save_file({"weight": torch.ones(2)}, path, {"sharpmax": described})
        with pytest.raises(DamagedFileError, match=r"head\.safetensors: "):
            read_tensors(path)
