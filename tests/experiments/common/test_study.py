from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from experiments.common.records import OverSeeds, RecordTable
from experiments.common.study import Study
from sharpmax._files import DamagedFileError, SettingsChangedError


@dataclass(frozen=True)
class _Record(OverSeeds):
    method: str
    accuracy: tuple[float, ...]


@dataclass(frozen=True)
class _Table(RecordTable[_Record]):
    KIND = "test table"
    RECORD = _Record

    def extras(self, record: _Record) -> dict[str, Any]:
        return {"p_value": self.p_value_against(record, method="softmax")}


@dataclass(frozen=True)
class _Settings:
    seeds: tuple[int, ...] = (0, 1, 2)
    sizes: int = 4

    def to_dict(self) -> dict[str, Any]:
        return {"seeds": list(self.seeds), "sizes": self.sizes}


SOFTMAX = _Record("softmax", (0.5, 0.6, 0.7))
OURS = _Record("ours", (0.7, 0.8, 0.95))


def study(folder: Path, command: str = "run", *, resume: bool = False, sizes: int = 4) -> Any:
    return Study(folder, _Settings(sizes=sizes), command, _Table, resume=resume)


def test_a_table_grows_and_comes_back(tmp_path: Path) -> None:
    first = study(tmp_path)
    first.add({"plain": {"steps": 3}}, [SOFTMAX], {"test": "30 questions"})
    second = study(tmp_path, resume=True)
    assert second.has({"plain": {"steps": 3}})
    assert not second.has({"plain": {"steps": 3}, "other": {}})
    second.add({"other": {}}, [OURS])
    table = _Table.load(tmp_path / "table.json")
    assert table == second.table
    assert table.records == (SOFTMAX, OURS)
    assert table.settings["test"] == "30 questions"
    data = json.loads((tmp_path / "table.json").read_text())
    assert data["records"][1]["p_value"] < 0.02
    assert data["records"][1]["mean"] == OURS.mean


def test_two_processes_add_to_one_table(tmp_path: Path) -> None:
    one = study(tmp_path, "run a")
    other = study(tmp_path, "run b")
    one.add({"a": {}}, [SOFTMAX])
    other.add({"b": {}}, [OURS])
    assert other.table.records == (SOFTMAX, OURS)
    assert other.table.command == "run a && run b --resume"


def test_an_earlier_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "weights").mkdir()
    with pytest.raises(FileExistsError, match="--resume"):
        study(tmp_path)
    study(tmp_path, resume=True).add({"a": {"steps": 1}}, [SOFTMAX])
    with pytest.raises(SettingsChangedError, match="sizes"):
        study(tmp_path, resume=True, sizes=8)
    with pytest.raises(SettingsChangedError, match="steps"):
        study(tmp_path, resume=True).has({"a": {"steps": 2}})
    path = tmp_path / "table.json"
    path.write_text(path.read_text().replace("0.5", "0.9", 1))
    with pytest.raises(DamagedFileError):
        study(tmp_path, resume=True)


def test_partial_results_are_made_once(tmp_path: Path) -> None:
    calls = []

    def make() -> list[int]:
        calls.append(1)
        return [1, 2]

    path = tmp_path / "part.json"
    assert study(tmp_path).kept(path, "part", make) == [1, 2]
    assert study(tmp_path).kept(path, "part", make) == [1, 2]
    assert len(calls) == 1
    with pytest.raises(SettingsChangedError, match="sizes"):
        study(tmp_path, sizes=8).kept(path, "part", make)
