from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from experiments.common.command import main
from experiments.dispersion.__main__ import app
from experiments.dispersion.heads import load_heads
from experiments.dispersion.measure import Dispersion


def _call(*arguments: str) -> object:
    with pytest.raises(SystemExit) as exit_:
        main(app, arguments)
    return exit_.value.code


def test_a_quick_run_ends_with_its_tables_and_its_figures(
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
    assert (tmp_path / "heads.png").exists()
    (heads,) = load_heads(tmp_path)
    layers = heads.first_layers()
    assert {kind: (len(first), first[0].layer) for kind, first in layers.items()} == {
        "sliding": (4, 0), "global": (4, 5),
    }  # fmt: skip
    # Random weights attend to all that they see, and a window of 128 tokens bounds it.
    for kind, seen in (("sliding", 128), ("global", heads.tokens[-1])):
        for curve in layers[kind]:
            assert curve.visible[-1] == pytest.approx(seen)
            assert curve.entropy[-1] == pytest.approx(np.log(seen), abs=0.05)
    assert _call("run", *folder) == 1
    assert "earlier run" in capsys.readouterr().err
    (tmp_path / "dispersion.png").unlink()
    assert _call("run", "--resume", *folder) == 0
    assert (tmp_path / "dispersion.png").exists()
    assert _call("tables", *folder) == 0
    written = (tmp_path / "tables.md").read_text(encoding="utf-8")
    assert "| plain softmax |" in written
    assert "| model | all 5 sliding | 20 |" in written
    assert "| model | layer 5, global | 4 |" in written
