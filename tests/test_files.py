from __future__ import annotations

import json
import platform
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import sharpmax
from sharpmax import _files


def test_versions_and_machine_are_plain_and_name_no_machine() -> None:
    found = {**_files.versions(["numpy", "torch"]), **_files.machine()}
    assert found["sharpmax"] == sharpmax.__version__
    assert json.loads(json.dumps(found)) == found
    assert platform.node() not in found.values()


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "result.json"
    _files.write_json(path, {"ratio": 0.5})
    with pytest.raises(ValueError, match="not JSON compliant"):
        _files.write_json(path, {"ratio": float("nan")})
    with pytest.raises(TypeError):
        _files.write_json(path, {"ratio": object()})
    assert json.loads(path.read_text(encoding="utf-8")) == {"ratio": 0.5}
    assert [each.name for each in path.parent.iterdir()] == ["result.json"]


def test_nothing_is_left_where_writing_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        _files.write_json(tmp_path / "result.json", {})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda text: text[: len(text) // 2], "truncated or damaged"),
        (lambda text: text.replace("0.5", "0.9"), "changed after it was written"),
        (lambda text: text.replace('"ratios"', '"times"'), "expected a file of kind 'ratios'"),
        (lambda _: "[]", "got 'list'"),
        (lambda text: text.replace('"seal"', '"steal"'), "changed after it was written"),
    ],
)
def test_damaged_results_are_refused(
    tmp_path: Path, damage: Callable[[str], str], said: str
) -> None:
    path = _files.write_sealed(tmp_path / "result.json", "ratios", {"ratio": 0.5, "size": (1, 2)})
    assert _files.read_sealed(path, "ratios")["size"] == [1, 2]
    path.write_text(damage(path.read_text(encoding="utf-8")), encoding="utf-8")
    with pytest.raises(_files.DamagedFileError, match=said):
        _files.read_sealed(path, "ratios")


def test_the_layout_of_a_sealed_file_does_not_count(tmp_path: Path) -> None:
    path = _files.write_sealed(tmp_path / "result.json", "ratios", {"ratio": 0.5})
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8"))), encoding="utf-8")
    assert _files.read_sealed(path, "ratios")["ratio"] == 0.5


def test_a_folder_has_one_run_and_a_killed_run_leaves_it(
    holder: subprocess.Popen[str], tmp_path: Path
) -> None:
    folder = tmp_path / "held"
    refused = pytest.raises(
        _files.RefusedError, match="held: another run is writing to this folder"
    )
    with refused, _files.locked(folder):
        pass
    holder.kill()
    holder.wait()
    with _files.locked(folder), _files.locked(folder):
        assert not list(folder.iterdir())


def test_settings_that_the_earlier_run_lacks_are_other_settings(tmp_path: Path) -> None:
    _files.check_settings({"seed": 1, "more": 2}, {"seed": 1}, tmp_path)
    with pytest.raises(_files.SettingsChangedError, match="has rows None, not 5"):
        _files.check_settings({"seed": 1}, {"seed": 1, "rows": 5}, tmp_path)
