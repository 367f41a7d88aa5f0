from __future__ import annotations

import json
import platform
from pathlib import Path

import pytest

import sharpmax
from sharpmax.lab import results


def test_versions_and_machine_are_plain_and_name_no_machine() -> None:
    found = {**results.versions(["numpy", "torch"]), **results.machine()}
    assert found["sharpmax"] == sharpmax.__version__
    assert json.loads(json.dumps(found)) == found
    assert platform.node() not in found.values()


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "result.json"
    results.write_json(path, {"ratio": 0.5})
    with pytest.raises(ValueError, match="not JSON compliant"):
        results.write_json(path, {"ratio": float("nan")})
    with pytest.raises(TypeError):
        results.write_json(path, {"ratio": object()})
    assert json.loads(path.read_text(encoding="utf-8")) == {"ratio": 0.5}
    assert [each.name for each in path.parent.iterdir()] == ["result.json"]


def test_nothing_is_left_where_writing_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        results.write_json(tmp_path / "result.json", {})
    assert not list(tmp_path.iterdir())
