from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.common.command import main
from experiments.dispersion.__main__ import app
from experiments.dispersion.measure import Dispersion


def _call(*arguments: str) -> object:
    with pytest.raises(SystemExit) as exit_:
        main(app, arguments)
    return exit_.value.code


def test_a_quick_run_ends_with_its_table_and_its_figure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = ["--output", str(tmp_path)]
    assert _call("run", "--quick", "--rows", "1", *folder) == 0
    said = capsys.readouterr().out
    assert "EntropyTarget" in said
    assert "4,096" in said
    measured = Dispersion.load(tmp_path / "dispersion.json")
    assert measured.sizes[-1] == 4096
    data = json.loads((tmp_path / "dispersion.json").read_text(encoding="utf-8"))
    assert data["command"] == "python -m experiments.dispersion run --rows 1 --quick"
    assert (tmp_path / "dispersion.png").exists()
    assert _call("run", *folder) == 1
    assert "earlier run" in capsys.readouterr().err
    (tmp_path / "dispersion.png").unlink()
    assert _call("run", "--resume", *folder) == 0
    assert (tmp_path / "dispersion.png").exists()
    assert _call("tables", *folder) == 0
    assert "| plain softmax |" in (tmp_path / "tables.md").read_text(encoding="utf-8")
